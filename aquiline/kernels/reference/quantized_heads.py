"""Keys and values as 8-bit integers with one scale per head."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Heads smaller than this become zero: 127 / magnitude would overflow.
SMALLEST_HEAD = 2.0**-100


@dataclass(frozen=True)
class QuantizedHeads:
    """Heads of which each number is about its integer times the scale of its head."""

    numbers: Tensor  # [..., num_heads, head_dim] int8, -127..127
    scales: Tensor  # [..., num_heads] float32


def quantize_heads(heads: Tensor) -> QuantizedHeads:
    """Round heads [..., num_heads, head_dim] to 8-bit integers, ties to even; scale = largest magnitude / 127.

    A head with a number that is not finite gets a scale that is not finite either.
    """
    heads = heads.float()
    largest = heads.abs().amax(dim=-1)
    is_empty = largest < SMALLEST_HEAD
    # A plain number is divided as a product with the reciprocal, which is rounded twice.
    inverse = torch.where(is_empty, 0.0, torch.full_like(largest, 127.0) / largest)
    numbers = torch.round(heads * inverse.unsqueeze(-1)).nan_to_num(0.0).to(torch.int8)
    return QuantizedHeads(numbers, torch.where(is_empty, 0.0, largest / 127.0))


def read_heads(numbers: Tensor, scales: Tensor | None, slots: Tensor) -> Tensor:
    """The heads of some slots in float32: [*slots.shape, num_heads, head_dim].

    Args:
        numbers: [num_slots, num_heads, head_dim].
        scales: [num_slots, num_heads] of int8 numbers; None: the numbers are the heads.
    """
    heads = numbers[slots].float()
    return heads if scales is None else heads * scales[slots].unsqueeze(-1)
