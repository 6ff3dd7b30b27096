"""Pearson's goodness-of-fit test."""

from __future__ import annotations

import torch
from torch import Tensor

REJECTION_LEVEL = 1e-4


def p_value(counts: Tensor, probs: Tensor) -> float:
    """How likely counts at least this far from `probs` are, when `probs` is the true law.

    Cells of probability 0 must be empty; otherwise the answer is 0.
    """
    counts, probs = counts.flatten().double(), probs.flatten().double()
    possible = probs > 0
    if counts[~possible].sum() > 0:
        return 0.0
    expected = probs[possible] / probs.sum() * counts.sum()
    statistic = ((counts[possible] - expected) ** 2 / expected).sum()
    freedom = torch.tensor(float(possible.sum()) - 1.0, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom / 2, statistic / 2))


def histogram(values: Tensor, num_cells: int) -> Tensor:
    return torch.bincount(values.flatten(), minlength=num_cells)
