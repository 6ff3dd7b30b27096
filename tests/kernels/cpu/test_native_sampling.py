"""Native noise: the integers exactly, Gumbel numbers to the last places."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from aquiline.kernels import cpu
from aquiline.kernels.reference import noise
from tests.kernels.cpu.levels import with_levels

if cpu.is_available():
    from aquiline.kernels.cpu import ops

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason=cpu.why_not())
WORDS = st.integers(0, 2**32 - 1)


def keys_of(num_rows: int, seed: int = 5) -> Tensor:
    rows = torch.arange(num_rows)
    return noise.mix_key(rows * 2**40 + seed, rows % 3, 100 + rows, noise.NoiseStream.TARGET)


@settings(max_examples=50, deadline=None)
@given(key=st.tuples(WORDS, WORDS), first_id=st.integers(0, 2**31), count=st.integers(1, 70))
def test_bits_are_those_of_the_reference(key: tuple[int, int], first_id: int, count: int) -> None:
    expected = noise.random_bits(torch.tensor([key]), torch.arange(first_id, first_id + count))[0]
    assert torch.equal(ops.random_bits(key, first_id, count), expected)


@with_levels
def test_bits_and_gumbel_numbers_at_every_level(level: str) -> None:
    keys, ids = keys_of(1), torch.arange(50_000)
    key = (int(keys[0, 0]), int(keys[0, 1]))
    assert torch.equal(ops.random_bits(key, 0, len(ids)), noise.random_bits(keys, ids.clone())[0])
    uniform = noise.uniform(keys, ids)[0].double()
    exact = -torch.log(-torch.log1p(-uniform))
    assert (ops.gumbel(key, 0, len(ids)).double() - exact).abs().max() < 2e-6
