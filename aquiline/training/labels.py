"""What a frozen target says about packs of conversations: the inputs and the labels of a draft.

The target runs through the same models and kernels as in serving, so the features that a draft is trained on are bit
for bit those that it will be given (on the CPU backends).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aquiline.kernels import CONTEXT_CHUNK, AttentionGroup, AttentionInputs
from aquiline.models.interfaces import TargetModel
from aquiline.models.kv_layer import KVLayer
from aquiline.models.llama import ForwardRows
from aquiline.training.losses import TeacherRows
from aquiline.training.packing import Pack

ROWS_PER_LOGITS = 64


@dataclass(frozen=True)
class TargetLabels:
    """The target's states at the rows of a pack.

    Attributes:
        hidden_states: after the final norm, at `Pack.label_rows`; the head turns them into logits.
        log_normalisers: log of the sum of exp of the logits over the whole vocabulary.
        token_ids: the target's most likely token.
    """

    features: Tensor  # [num_rows, feature_size]
    hidden_states: Tensor  # [num_labels, hidden] in the dtype of the features
    log_normalisers: Tensor  # [num_labels] float32
    token_ids: Tensor  # [num_labels] int64


class TargetLabeller:
    """Runs a target over packs.

    Args:
        target: with the auxiliary layers that the draft wants.
        memory_dtype: of keys and values, float32 or bfloat16; those of serving give the features of serving.
    """

    def __init__(self, target: TargetModel, memory_dtype: torch.dtype) -> None:
        self._target = target
        self._memory_dtype = memory_dtype
        self._memory: list[KVLayer] = []

    @torch.no_grad()
    def label(self, pack: Pack) -> TargetLabels:
        """Run all conversations of a pack."""
        states = self._target.forward(self._rows(pack), self._memory_for(pack.num_rows))
        device = self._target.device
        hidden_states = states.hidden_states[pack.label_rows.to(device)]
        normalisers = torch.empty(len(hidden_states), dtype=torch.float32, device=device)
        token_ids = torch.empty(len(hidden_states), dtype=torch.long, device=device)
        for first in range(0, len(hidden_states), ROWS_PER_LOGITS):
            chunk = slice(first, first + ROWS_PER_LOGITS)
            logits = self._target.logits(hidden_states[chunk])
            peaks, token_ids[chunk] = logits.max(dim=-1)
            sums = logits.sub_(peaks.unsqueeze(-1)).exp_().sum(dim=-1)
            normalisers[chunk] = sums.log() + peaks
        return TargetLabels(states.features, hidden_states.to(states.features.dtype), normalisers, token_ids)

    def _memory_for(self, num_rows: int) -> list[KVLayer]:
        """Keys and values for that many rows, kept for the next pack."""
        if not self._memory or self._memory[0].keys.shape[0] < num_rows:
            config = self._target.config
            shape = (num_rows, config.num_kv_heads, config.head_dim)

            def empty() -> Tensor:
                return torch.zeros(shape, dtype=self._memory_dtype, device=self._target.device)

            self._memory = [KVLayer(empty(), empty()) for _ in range(config.num_layers)]
        return self._memory

    def _rows(self, pack: Pack) -> ForwardRows:
        """Each conversation as one prefill; slot i holds row i."""
        device = self._target.device
        groups = []
        for start, length in zip(pack.starts, pack.lengths, strict=True):
            context = -(-length // CONTEXT_CHUNK) * CONTEXT_CHUNK
            # Entries past the end point to a slot that is written; nobody sees them.
            slots = (start + torch.arange(context, device=device)).clamp(max=start + length - 1)
            visible = torch.arange(1, length + 1, device=device)
            groups.append(AttentionGroup(start, slots.unsqueeze(0), visible.unsqueeze(0)))
        slots = torch.arange(pack.num_rows, device=device)
        return ForwardRows(pack.token_ids.to(device), pack.positions.to(device), slots, AttentionInputs(tuple(groups)))


class Teacher:
    """Turns labels into distributions over a draft vocabulary.

    Args:
        head: the target's rows of that vocabulary, in the dtype of the run; [draft_vocab, hidden].
        target_ids: the target's id of every draft id, ascending.
        vocab_size: of the target.
    """

    def __init__(self, head: Tensor, target_ids: Sequence[int], vocab_size: int) -> None:
        self._head = head
        ids = torch.tensor(target_ids, dtype=torch.long)
        self._draft_ids = torch.full((vocab_size,), -1, dtype=torch.long)
        self._draft_ids[ids] = torch.arange(len(ids))
        self._draft_ids = self._draft_ids.to(head.device)

    @torch.no_grad()
    def rows(self, labels: TargetLabels) -> TeacherRows:
        """Distributions at all labels of a pack; 4 bytes for every label and draft token."""
        num_labels, device = len(labels.token_ids), self._head.device
        probs = torch.empty((num_labels, self._head.shape[0]), dtype=torch.float32, device=device)
        entropies, coverages = torch.empty(num_labels, device=device), torch.empty(num_labels, device=device)
        normalisers = labels.log_normalisers.to(device)
        for first in range(0, num_labels, ROWS_PER_LOGITS):
            chunk = slice(first, first + ROWS_PER_LOGITS)
            logits = torch.mm(labels.hidden_states[chunk].to(self._head), self._head.t()).float()
            peaks = logits.amax(dim=-1, keepdim=True)
            own = probs[chunk]
            torch.sub(logits, peaks, out=own).exp_()
            sums = own.sum(dim=-1, keepdim=True)
            own.div_(sums)
            restricted = (sums.log() + peaks).squeeze(-1)
            entropies[chunk] = restricted - torch.linalg.vecdot(own, logits)
            # Logits of two computations: rounding must not make the share greater than one.
            coverages[chunk] = (restricted - normalisers[chunk]).exp().clamp(max=1.0)
        return TeacherRows(probs, entropies, coverages, self._draft_ids[labels.token_ids.to(device)])
