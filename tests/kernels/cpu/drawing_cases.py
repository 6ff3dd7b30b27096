"""Random steps that need every combination of logit rules."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from aquiline.kernels.reference.sampling import DenseRows, LogitRules, MinTokens, Penalties, TokenMasks
from aquiline.kernels.sampling_kernels import LogitRows, SamplingRequests


@dataclass(frozen=True)
class DrawingCase:
    """The requests of a step and its rows of logits."""

    requests: SamplingRequests
    rows: LogitRows


class CaseMaker:
    """Makes cases of one seed; rules come and go, requests with and without them share a step."""

    def __init__(self, seed: int, vocab_size: int, num_reqs: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.vocab_size = vocab_size
        self.num_reqs = num_reqs

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=self.generator)

    def flags(self, share: float, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator) < share

    def coin(self) -> bool:
        return bool(self.flags(0.5, 1))

    def pick(self, values: list[float], dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.tensor(values, dtype=dtype)[self.integers(0, len(values), self.num_reqs)]

    def table(self, rows: Tensor, slots: Tensor | None = None) -> DenseRows:
        rows[0] = 0
        return DenseRows(rows, self.integers(0, len(rows), self.num_reqs) if slots is None else slots)

    def wide(self) -> tuple[int, int]:
        return self.num_reqs + 1, self.vocab_size

    def bias(self) -> DenseRows:
        values = torch.where(self.flags(0.5, *self.wide()), -torch.inf, 3.0)
        rows = torch.where(self.flags(0.2, *self.wide()), values, 0.0)
        rows[1] = -torch.inf
        return self.table(rows)

    def penalties(self) -> Penalties:
        slots = self.integers(0, self.num_reqs + 1, self.num_reqs)
        counted = slots > 0
        counts = torch.where(self.flags(0.3, *self.wide()), self.integers(1, 4, *self.wide()).float(), 0.0)
        seen_slots = torch.where(counted, self.integers(0, self.num_reqs + 1, self.num_reqs), 0)
        return Penalties(
            self.table(counts, slots),
            self.table(self.flags(0.3, *self.wide()), seen_slots),
            torch.where(counted, self.pick([1.0, 0.5, 1.3]), 1.0),
            torch.where(counted, self.pick([0.0, 0.75, -0.5]), 0.0),
            torch.where(counted, self.pick([0.0, 0.5, -0.25]), 0.0),
        )

    def rules(self) -> LogitRules:
        vocab_size = self.vocab_size
        top_k = self.pick([1, 2, 5, max(1, vocab_size // 2), vocab_size], torch.int64).clamp(max=vocab_size)
        top_p = self.pick([1e-300, 0.05, 0.3, 0.6, 0.9, 0.999999, 1.0], torch.float64)
        stop_ids = self.table(self.flags(0.2, *self.wide()))
        return LogitRules(
            bias=self.bias() if self.coin() else None,
            min_tokens=MinTokens(stop_ids, self.integers(0, 6, self.num_reqs)) if self.coin() else None,
            penalties=self.penalties() if self.coin() else None,
            temperatures=self.pick([0.0, 0.3, 1.0, 1.7, 1e-38, 1e-6]) if self.flags(0.8, 1) else None,
            top_k=top_k if self.coin() else None,
            top_p=top_p if self.coin() else None,
            log_min_p=self.pick([-math.inf, math.log(0.1), 0.0, math.log(0.5)]) if self.coin() else None,
        )

    def logits(self, num_rows: int, num_columns: int) -> Tensor:
        logits = torch.randn(num_rows, num_columns, generator=self.generator) * (1.0, 4.0, 10.0)[self.integers(0, 3, 1)]
        return (logits * 2).round() / 2 if self.coin() else logits  # rounded: with many ties

    def requests(self) -> SamplingRequests:
        return SamplingRequests(
            self.rules(),
            self.integers(0, 2**62, self.num_reqs),
            self.integers(0, 3, self.num_reqs),
            self.integers(1, 9, self.num_reqs),
        )

    def masks(self, num_rows: int) -> TokenMasks | None:
        """Masks of a step; some allow everything, a few tokens, whole words, or nothing."""
        if self.coin():
            return None
        num_words = -(-self.vocab_size // 32)
        words = self.integers(-(2**31), 2**31, 5, num_words).to(torch.int32)
        words[0] = -1
        words[1] = 0
        words[2] = torch.where(self.flags(0.5, num_words), -1, 0)
        words[3] = torch.where(self.flags(0.1, num_words), words[3], 0)
        return TokenMasks(words, self.integers(-1, 5, num_rows))

    def paths(self, num_rows: int) -> Tensor | None:
        depth = int(self.integers(0, 4, 1))
        if not depth:
            return None
        lengths = self.integers(0, depth + 1, num_rows, 1)
        return torch.where(torch.arange(depth) < lengths, self.integers(0, self.vocab_size, num_rows, depth), -1)


def drawing_case(seed: int, vocab_size: int, num_reqs: int, num_rows: int) -> DrawingCase:
    make = CaseMaker(seed, vocab_size, num_reqs)
    rows = LogitRows(
        logits=make.logits(num_rows, vocab_size),
        row_to_request=make.integers(0, num_reqs, num_rows),
        node_rows=torch.zeros(num_reqs, 1, dtype=torch.int64),
        positions=make.integers(0, 2**31, num_rows),
        output_lengths=make.integers(0, 8, num_rows),
        path_tokens=make.paths(num_rows),
        masks=make.masks(num_rows),
    )
    return DrawingCase(make.requests(), rows)


def rows_of(rows: LogitRows, part: slice) -> LogitRows:
    """Some rows of a step."""
    return LogitRows(
        rows.logits[part].clone(),
        rows.row_to_request[part],
        rows.node_rows,
        rows.positions[part],
        rows.output_lengths[part],
        None if rows.path_tokens is None else rows.path_tokens[part],
        None if rows.masks is None else TokenMasks(rows.masks.bits, rows.masks.rows[part]),
    )
