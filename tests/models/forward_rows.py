"""One-request forwards without an engine: pages in a scrambled order, everything unwritten NaN."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from aquiline.kernels import CONTEXT_CHUNK, AttentionGroup, AttentionInputs
from aquiline.models.kv_layer import KVLayer
from aquiline.models.llama import ForwardRows, LlamaModel, TargetStates
from aquiline.models.model_config import LlamaConfig


def new_memory(config: LlamaConfig, num_slots: int, num_layers: int | None = None) -> list[KVLayer]:
    """K/V memory of every layer, filled with NaN."""
    shape = (num_slots, config.num_kv_heads, config.head_dim)
    count = config.num_layers if num_layers is None else num_layers
    return [KVLayer(torch.full(shape, torch.nan), torch.full(shape, torch.nan)) for _ in range(count)]


def scrambled_slots(num_positions: int, seed: int = 0) -> Tensor:
    """A slot for each logical position, rounded up to whole chunks, in random order."""
    context = -(-num_positions // CONTEXT_CHUNK) * CONTEXT_CHUNK
    return torch.randperm(context, generator=torch.Generator().manual_seed(seed))


def prompt_rows(token_ids: Sequence[int], first: int, end: int, slots: Tensor) -> ForwardRows:
    """Rows of a target for the tokens at positions first .. end - 1."""
    positions = torch.arange(first, end)
    attention = AttentionInputs((AttentionGroup(0, slots.unsqueeze(0), (positions + 1).unsqueeze(0)),))
    return ForwardRows(torch.tensor(token_ids[first:end]), positions, slots[first:end], attention)


def run_target(model: LlamaModel, token_ids: Sequence[int], chunk_sizes: Sequence[int] = ()) -> TargetStates:
    """States of all tokens of one sequence, computed in chunks; what the sizes leave over is the last chunk."""
    slots = scrambled_slots(len(token_ids))
    memory = new_memory(model.config, len(slots))
    states, first = [], 0
    for size in (*chunk_sizes, len(token_ids) - sum(chunk_sizes)):
        states.append(model.forward(prompt_rows(token_ids, first, first + size, slots), memory))
        first += size
    hidden_states = torch.cat([state.hidden_states for state in states])
    return TargetStates(hidden_states, torch.cat([state.features for state in states]))
