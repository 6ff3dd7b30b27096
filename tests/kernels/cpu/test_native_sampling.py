"""Native noise and drawing: the integers exactly, the tokens of the reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from aquiline.errors import InvalidParameterError
from aquiline.kernels import cpu
from aquiline.kernels.cpu import Threads
from aquiline.kernels.reference import noise, sampling
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


@with_levels
@pytest.mark.parametrize("num_columns", [1, 5, 16, 33, 1000, 8192, 8193, 40_001])
def test_tokens_are_those_of_the_reference(level: str, num_columns: int) -> None:
    scores = torch.randn(6, num_columns, generator=torch.Generator().manual_seed(num_columns))
    temperatures = torch.tensor([0.0, 1.0, 0.5, 0.0, 1.0, 2.0])
    expected = sampling.draw_tokens(scores, temperatures, keys_of(6))
    assert torch.equal(ops.draw_tokens(scores, temperatures, keys_of(6), Threads(2)), expected)
    assert torch.equal(ops.draw_tokens(scores, None, keys_of(6), Threads(2)), scores.argmax(dim=-1))


@with_levels
def test_ties_go_to_the_lowest_id(level: str) -> None:
    scores = torch.zeros(4, 20_000)
    scores[0, [17, 9000, 19_999]] = 1.0
    scores[1] = -torch.inf
    scores[2, 1:] = -0.0
    scores[3, 19_990:] = 2.0
    assert ops.draw_tokens(scores, None, keys_of(4), Threads(1)).tolist() == [17, 0, 0, 19_990]


@with_levels
def test_tokens_that_are_ruled_out_are_never_drawn(level: str) -> None:
    scores = torch.full((200, 300), -torch.inf)
    scores[:, [7, 299]] = 0.0
    drawn = ops.draw_tokens(scores, torch.ones(200), keys_of(200), Threads(1))
    assert set(drawn.tolist()) == {7, 299}


def test_a_row_does_not_depend_on_the_others_or_on_threads() -> None:
    scores = torch.randn(40, 10_000, generator=torch.Generator().manual_seed(0))
    keys, temperatures = keys_of(40), torch.ones(40)
    whole = ops.draw_tokens(scores, temperatures, keys, Threads(1))
    for count in range(1, 41):
        for num_threads in (1, 2, 3):
            threads = Threads(num_threads)
            assert torch.equal(
                ops.draw_tokens(scores[:count], temperatures[:count], keys[:count], threads), whole[:count]
            )


def test_scores_that_do_not_fit_are_refused() -> None:
    for scores, keys in ((torch.zeros(2, 3).half(), keys_of(2)), (torch.zeros(2, 3), keys_of(3))):
        with pytest.raises(InvalidParameterError):
            ops.draw_tokens(scores, torch.ones(2), keys, Threads(1))
    with pytest.raises(InvalidParameterError, match="no tokens"):
        ops.draw_tokens(torch.zeros(2, 0), None, keys_of(2), Threads(1))
