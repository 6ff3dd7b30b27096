"""Counter-based noise: every number is a pure function of who asks, where and for which token.

The integer algorithm, which every backend reproduces exactly (all words unsigned, 32 bits, products modulo 2**32):

    mix(h):        h ^= h >> 16;  h *= 0x21F0AAAD;  h ^= h >> 15;  h *= 0x735A2D97;  h ^= h >> 15
    key word w:    h = START[w];  for x in (seed low, seed high, sample index, position, stream): h = mix(h ^ x)
    bits(token):   mix(mix(token ^ key word 0) ^ key word 1)

Both multipliers are odd, so mix is a bijection, and below 2**31, so a product of two words fits into 63 bits. Two key
words carry 64 bits, so all 63 bits of a seed matter. From bits to numbers, in float32:

    uniform = min((float(bits) + 0.5) * 2**-32, 1 - 2**-24)
    gumbel  = -log(-log1p(-uniform))

Large Gumbel values come from uniforms near 0, where float32 keeps every bit of the hash.
"""

from __future__ import annotations

import enum

import torch
from torch import Tensor

WORD_MASK = 0xFFFFFFFF
KEY_STARTS = (0x243F6A88, 0x85A308D3)
FIRST_MULTIPLIER = 0x21F0AAAD
SECOND_MULTIPLIER = 0x735A2D97
LARGEST_UNIFORM = 1.0 - 2.0**-24


class NoiseStream(enum.IntEnum):
    """What a number is for. Different uses of one position must never share their noise."""

    TARGET = 0
    """Drawing a token; the keyed rule drafts with the same noise."""
    DRAFT = 1
    """Drawing the children of a node under the multi-round rule."""
    ACCEPT = 2
    """Accepting them, one number per sibling rank."""
    RESIDUAL = 3
    """The token after the last accepted one under the multi-round rule."""


def mix_key(seeds: Tensor, sample_indices: Tensor, positions: Tensor, stream: int) -> Tensor:
    """Key words of every row.

    Args:
        seeds: [num_rows] int64, in [0, 2**63).
        sample_indices: [num_rows] int64, in [0, 2**32).
        positions: [num_rows] int64, absolute position of the token to be drawn, in [0, 2**32).
        stream: a `NoiseStream`.

    Returns:
        [num_rows, 2] int64, each word in [0, 2**32).
    """
    words = (seeds & WORD_MASK, seeds >> 32, sample_indices, positions)
    columns = []
    for start in KEY_STARTS:
        state = torch.full_like(seeds, start)  # [num_rows]
        for word in words:
            state = _mix(state ^ word)
        columns.append(_mix(state ^ stream))
    return torch.stack(columns, dim=-1)  # [num_rows, 2]


def random_bits(keys: Tensor, token_ids: Tensor) -> Tensor:
    """32 random bits for every row and token.

    Args:
        keys: [num_rows, 2] int64 from `mix_key`.
        token_ids: [num_tokens] shared by all rows, or [num_rows, num_tokens]; int64 in [0, 2**32).

    Returns:
        [num_rows, num_tokens] int64 in [0, 2**32).
    """
    return _mix(_mix(token_ids ^ keys[:, :1]) ^ keys[:, 1:])  # [num_rows, num_tokens]


def uniform(keys: Tensor, token_ids: Tensor) -> Tensor:
    """Numbers in (0, 1), float32; arguments and shape as for `random_bits`."""
    bits = random_bits(keys, token_ids)
    return bits.to(torch.float32).add_(0.5).mul_(2.0**-32).clamp_(max=LARGEST_UNIFORM)  # [num_rows, num_tokens]


def gumbel(keys: Tensor, token_ids: Tensor) -> Tensor:
    """Standard Gumbel numbers between -2.9 and 22.9, float32; arguments and shape as for `random_bits`.

    The argmax of log-weights plus this noise is a draw in proportion to the weights (the Gumbel-max trick).
    """
    return uniform(keys, token_ids).neg_().log1p_().neg_().log_().neg_()  # [num_rows, num_tokens]


def _mix(words: Tensor) -> Tensor:
    """The bijection `mix` of the module's description; it may overwrite its argument, which callers just made."""
    words ^= words >> 16
    words *= FIRST_MULTIPLIER
    words &= WORD_MASK
    words ^= words >> 15
    words *= SECOND_MULTIPLIER
    words &= WORD_MASK
    words ^= words >> 15
    return words
