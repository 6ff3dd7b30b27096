"""How well a draft foresees its target on given tokens: every position at once, no decoding.

The target reads a text once (`read_text`); what it expects after each token is what a draft should have proposed. The
draft is then run on the same text from every position, the tokens of the text standing for what was accepted.

Worked example, tokens t0..t6, features h0..h6, expected e0..e6 (e3 is what the target expects after t3), position 2:

    draft token    embeds   hidden state               rotary position   right when it is
    1              t3       h2                         2                 e3
    2              t4       own output of the row      3                 e4
    3              t5       own output of the row      4                 e5

Token 2 counts only where token 1 was right and t4 is e3, for otherwise no step would have come there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aquiline.kernels import CONTEXT_CHUNK, AttentionGroup, AttentionInputs
from aquiline.models.interfaces import DraftModel, TargetModel
from aquiline.models.kv_layer import KVLayer
from aquiline.models.llama import ForwardRows
from aquiline.models.model_config import LlamaConfig

MAX_RANK = 4
# Places that are left out at both ends of a text, so that a pairing may be off by so many.
MARGIN = 2


@dataclass(frozen=True)
class TargetReading:
    """A text as its target reads it.

    Attributes:
        num_prompt_tokens: leading tokens after which no draft token is asked for.
        features: as a forward of the target hands them out.
        hidden_states: after the final norm.
        expected_ids: the target's most likely next token after each.
    """

    token_ids: Tensor  # [num_tokens]
    num_prompt_tokens: int
    features: Tensor  # [num_tokens, feature_size]
    hidden_states: Tensor  # [num_tokens, hidden]
    expected_ids: Tensor  # [num_tokens]


@dataclass(frozen=True)
class RowPairing:
    """How draft rows are put together; the engine's own way is all zeros.

    Attributes:
        token: a row embeds the token so many places behind the one it should.
        label: its output stands for the token so many places behind the one it should.
        self_fed_position: added to the rotary positions of rows that are fed the draft's own output.
    """

    token: int = 0
    label: int = 0
    self_fed_position: int = 0


@dataclass(frozen=True)
class ProbeHits:
    """What a draft foresaw, at every position that was asked.

    Attributes:
        ranks: rank of the expected token among the first draft token's candidates; MAX_RANK where it is not among them.
        num_accepted: draft tokens of a chain that a step would have accepted.
        log_probs: of the expected token at each step of the chain, as the draft has them; no worse than a guess among
            the whole vocabulary, which also stands for tokens that the draft does not know.
        root_ids: the last token before those that are asked for.
        expected_ids: the target's token.
        proposed_ids: the first draft token's candidates, best first.
    """

    ranks: Tensor  # [num_positions]
    num_accepted: Tensor  # [num_positions]
    log_probs: Tensor  # [num_positions, num_steps] float32
    root_ids: Tensor  # [num_positions]
    expected_ids: Tensor  # [num_positions]
    proposed_ids: Tensor  # [num_positions, MAX_RANK], the last one repeated where the draft knows fewer tokens

    @property
    def num_steps(self) -> int:
        return int(self.log_probs.shape[1])

    def agreement(self, num_candidates: int) -> float:
        """Share of positions with the expected token among the first candidates, 1 to MAX_RANK of them."""
        return float((self.ranks < num_candidates).double().mean())

    def conditional_per_position(self) -> tuple[float, ...]:
        """Share of the draft tokens accepted at each place of the chain, given that all before were."""
        reached = [int((self.num_accepted >= step).sum()) for step in range(self.num_steps + 1)]
        return tuple(after / before if before else 0.0 for before, after in itertools.pairwise(reached))

    def chance(self) -> float:
        """Agreement that the draft would reach if it proposed its tokens at the wrong places."""
        num_positions = len(self.ranks)
        best = torch.bincount(self.proposed_ids[:, 0]).double() / num_positions
        expected = torch.bincount(self.expected_ids, minlength=len(best)).double() / num_positions
        return float((best * expected[: len(best)]).sum())


def read_text(
    target: TargetModel, token_ids: Sequence[int], num_prompt_tokens: int, memory_dtype: torch.dtype
) -> TargetReading:
    """Run a target over a text.

    Args:
        memory_dtype: of the keys and values of this forward.
    """
    num_tokens = len(token_ids)
    positions = torch.arange(num_tokens, device=target.device)
    group = AttentionGroup(0, _key_slots(num_tokens, target.device), (positions + 1).unsqueeze(0))
    tokens = torch.tensor(token_ids, device=target.device)
    memory = _new_memory(target.config, num_tokens, memory_dtype, target.device)
    states = target.forward(ForwardRows(tokens, positions, positions.clone(), AttentionInputs((group,))), memory)
    expected_ids = target.logits(states.hidden_states).argmax(dim=-1)
    return TargetReading(tokens, num_prompt_tokens, states.features, states.hidden_states, expected_ids)


def probe_draft(
    draft: DraftModel,
    readings: Sequence[TargetReading],
    num_steps: int,
    memory_dtype: torch.dtype,
    pairing: RowPairing | None = None,
) -> ProbeHits:
    """Ask a draft for a chain of `num_steps` tokens at every position behind the prompts.

    Args:
        readings: with the features that this draft takes; each has more than num_steps + MARGIN tokens behind its
            prompt.
        memory_dtype: of the draft's keys and values.
    """
    parts = [_probe_reading(draft, reading, num_steps, memory_dtype, pairing or RowPairing()) for reading in readings]
    return ProbeHits(
        torch.cat([part.ranks for part in parts]),
        torch.cat([part.num_accepted for part in parts]),
        torch.cat([part.log_probs for part in parts]),
        torch.cat([part.root_ids for part in parts]),
        torch.cat([part.expected_ids for part in parts]),
        torch.cat([part.proposed_ids for part in parts]),
    )


def _probe_reading(
    draft: DraftModel, reading: TargetReading, num_steps: int, memory_dtype: torch.dtype, pairing: RowPairing
) -> ProbeHits:
    num_tokens, device = len(reading.token_ids), reading.token_ids.device
    first, end = max(MARGIN, reading.num_prompt_tokens - 1), num_tokens - num_steps - 1 - MARGIN
    places = torch.arange(first, end, device=device)
    num_slots = num_tokens + (num_steps - 1) * len(places)
    memory = _new_memory(draft.config.layers, num_slots, memory_dtype, device)
    states = draft.forward(
        _true_rows(reading, pairing), draft.combine_features(reading.features[:-1].contiguous()), memory
    )
    head_inputs, hidden = states.head_inputs[places].contiguous(), states.hidden_states[places].contiguous()
    logits = [draft.logits(head_inputs)]
    for step in range(2, num_steps + 1):
        states = draft.forward(_self_fed_rows(reading, places, step, pairing), hidden, memory)
        hidden = states.hidden_states
        logits.append(draft.logits(states.head_inputs))
    num_accepted, is_alive = torch.zeros_like(places), torch.ones_like(places, dtype=torch.bool)
    expected = [reading.expected_ids[places + step + 1 + pairing.label] for step in range(num_steps)]
    candidates = [_candidates(draft, rows) for rows in logits]
    for step in range(num_steps):
        is_right = is_alive & (candidates[step][:, 0] == expected[step])
        num_accepted += is_right
        is_alive = is_right & (reading.token_ids[places + step + 2 + pairing.label] == expected[step])
    is_hit = candidates[0] == expected[0].unsqueeze(-1)
    return ProbeHits(
        torch.where(is_hit.any(dim=-1), is_hit.long().argmax(dim=-1), MAX_RANK),
        num_accepted,
        torch.stack([_log_probs(draft, rows, wanted) for rows, wanted in zip(logits, expected, strict=True)], dim=1),
        reading.token_ids[places + 1],
        expected[0],
        candidates[0],
    )


def _true_rows(reading: TargetReading, pairing: RowPairing) -> ForwardRows:
    """The draft's row of every feature but the last; that of feature i lies in slot i + 1, as in the engine."""
    num_rows, device = len(reading.token_ids) - 1, reading.token_ids.device
    rows = torch.arange(num_rows, device=device)
    tokens = reading.token_ids[(rows + 1 + pairing.token).clamp(0, num_rows)]
    group = AttentionGroup(0, _key_slots(num_rows + 1, device), (rows + 2).unsqueeze(0))
    return ForwardRows(tokens, rows, rows + 1, AttentionInputs((group,), 1))


def _self_fed_rows(reading: TargetReading, places: Tensor, step: int, pairing: RowPairing) -> ForwardRows:
    """The rows that propose draft token `step` at every place; those of one step lie side by side behind the text."""
    num_tokens, num_places, device = len(reading.token_ids), len(places), places.device
    slots = num_tokens + torch.arange((step - 1) * num_places, device=device).view(step - 1, num_places)
    group = AttentionGroup(
        0,
        _key_slots(num_tokens, device),
        (places + 2).unsqueeze(0),
        slots.T.contiguous().unsqueeze(0),
        torch.full((1, num_places), step - 1, device=device),
    )
    tokens = reading.token_ids[places + step + pairing.token]
    positions = places + step - 1 + pairing.self_fed_position
    return ForwardRows(tokens, positions, slots[-1].contiguous(), AttentionInputs((group,), 1))


def _candidates(draft: DraftModel, logits: Tensor) -> Tensor:
    """The draft's best tokens as the target's ids, [num_rows, MAX_RANK]."""
    best = draft.draft_to_target_ids[logits.topk(min(MAX_RANK, logits.shape[-1]), dim=-1).indices]
    return torch.cat((best, best[:, -1:].expand(-1, MAX_RANK - best.shape[-1])), dim=-1)


def _log_probs(draft: DraftModel, logits: Tensor, expected_ids: Tensor) -> Tensor:
    """Log-probability of each row's expected token, [num_rows]; see `ProbeHits`."""
    vocab_size = draft.config.layers.vocab_size
    draft_ids = torch.full((vocab_size,), -1, device=logits.device)
    draft_ids[draft.draft_to_target_ids] = torch.arange(logits.shape[-1], device=logits.device)
    wanted = draft_ids[expected_ids].unsqueeze(-1)
    found = logits.log_softmax(dim=-1).gather(1, wanted.clamp_min(0))
    floor = -math.log(vocab_size)
    return torch.where(wanted < 0, floor, found.clamp_min(floor)).squeeze(-1)


def _key_slots(num_positions: int, device: torch.device) -> Tensor:
    """Logical position i lies in slot i; entries past the end point to a slot that is written."""
    context = -(-num_positions // CONTEXT_CHUNK) * CONTEXT_CHUNK
    return torch.arange(context, device=device).clamp(max=num_positions - 1).unsqueeze(0)


def _new_memory(config: LlamaConfig, num_slots: int, dtype: torch.dtype, device: torch.device) -> list[KVLayer]:
    shape = (num_slots, config.num_kv_heads, config.head_dim)
    empty = torch.zeros(shape, dtype=dtype, device=device)
    return [KVLayer(empty.clone(), empty.clone()) for _ in range(config.num_layers)]
