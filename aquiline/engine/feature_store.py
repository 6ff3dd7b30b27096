"""Target features that the draft has not consumed yet, and those a cached block keeps for its next reader.

Worked example, block size 4, ten computed tokens t0..t9, draft rows final up to slot 7:

    pending of the request    h7 h8 h9        for the draft rows in slots 8, 9, 10
    kept with block 0         h3              a request that finds block 0 cached starts from h3: slot 4 needs (h3, t4)
    kept with block 1         h7
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from aquiline.engine.kv_pool import MemoryKind
from aquiline.request import Request


@dataclass(frozen=True, slots=True)
class RowCount:
    """So many features of a device row."""

    row: int
    count: int


class _Span(NamedTuple):
    """Rows first..end - 1 of some features; nothing is copied, nor a view made, until they are asked for."""

    features: Tensor
    first: int
    end: int


class FeatureStore:
    """Pending features by device row, and one feature per block.

    Args:
        feature_size: width of what the target hands over per token.
    """

    def __init__(self, num_blocks: int, block_size: int, feature_size: int, memory: MemoryKind) -> None:
        self._block_size = block_size
        self._block_rows = memory.unwritten(num_blocks, feature_size)
        self._pending: dict[int, deque[_Span]] = {}

    def admit(self, request: Request) -> None:
        """Start a request's row; after a prefix hit the feature of the last cached token is pending."""
        self._pending[request.row] = deque()
        if request.num_computed_tokens:
            last_block = request.block_ids[request.num_computed_tokens // self._block_size - 1]
            self._pending[request.row].append(_Span(self._block_rows, last_block, last_block + 1))

    def release(self, row: int) -> None:
        """Forget a row."""
        self._pending.pop(row, None)

    def append(self, row: int, features: Tensor, first: int = 0, end: int | None = None) -> None:
        """Add features [first:end] of [num_rows, feature_size]: those of the request's newly computed tokens."""
        self._pending[row].append(_Span(features, first, len(features) if end is None else end))

    def take(self, counts: Sequence[RowCount]) -> Tensor:
        """Hand over the first pending features of some rows, one row after the other: [num_tokens, feature_size].

        Worked example: pending h4 h5 h6 of row 0 and h9 of row 1; taking 2 of row 0 and 1 of row 1 gives h4 h5 h9, and
        h6 stays pending.
        """
        taken: list[Tensor] = []
        for each in counts:
            left, pending = each.count, self._pending[each.row]
            while left > 0:
                span = pending.popleft()
                end = min(span.end, span.first + left)
                if end < span.end:
                    pending.appendleft(_Span(span.features, end, span.end))
                taken.append(span.features[span.first : end])
                left -= end - span.first
        return torch.cat(taken)

    def pending(self, row: int) -> Tensor:
        """What is pending of one row, left in place: [num_tokens, feature_size]."""
        spans = [span.features[span.first : span.end] for span in self._pending[row]]
        return torch.cat([self._block_rows[:0], *spans])

    def keep_with_blocks(self, block_ids: Sequence[int], features: Tensor) -> None:
        """Remember the feature of the last token of each block; features [num_blocks, feature_size]."""
        index = torch.tensor(block_ids, dtype=torch.long, device=features.device)
        self._block_rows[index] = features
