"""Row-wise operations of a transformer layer.

Row independence: the bits of a row of any result depend on that row's inputs alone, not on how many other rows there
are or what they hold. Matrix products keep that promise because rows are padded to a multiple of ROW_TILE: below it a
matrix library switches to other inner loops, which sum in another order. For the same reason a matrix with few
outputs is padded to MIN_OUTPUTS.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

ROW_TILE = 8
MIN_OUTPUTS = 16


def pad_rows(rows: Tensor) -> Tensor:
    """Append zero rows to dimension -2 until it is a multiple of ROW_TILE.

    Args:
        rows: [..., num_rows, width].
    """
    missing = -rows.shape[-2] % ROW_TILE
    return functional.pad(rows, (0, 0, 0, missing)) if missing else rows


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """rows @ weight.T + bias.

    Args:
        rows: [num_rows, in_features].
        weight: [out_features, in_features].
        bias: [out_features] or None.
    """
    num_outputs = weight.shape[0]
    if num_outputs < MIN_OUTPUTS:
        weight = functional.pad(weight, (0, 0, 0, MIN_OUTPUTS - num_outputs))
    product = torch.mm(pad_rows(rows), weight.t())[: rows.shape[0], :num_outputs]
    return product if bias is None else product + bias


def rms_norm(rows: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Divide each row by its root mean square, computed in float32, then scale by `weight`.

    Args:
        rows: [num_rows, width].
        weight: [width].
    """
    wide = rows.float()
    scale = torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + eps)
    return weight * (wide * scale).to(rows.dtype)


def silu_multiply(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up, the activation of a Llama MLP; silu in float32, rounded before the product."""
    wide = gate.float()
    return (wide / (1.0 + torch.exp(-wide))).to(gate.dtype) * up


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding, halves convention: dimension i pairs with i + head_dim / 2.

    Args:
        heads: [num_rows, num_heads, head_dim].
        cos, sin: float32 [num_rows, head_dim / 2].
    """
    first, second = heads.float().chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(heads.dtype)
