"""Loops in outputs: found where there is one, not where there is none, and cut at the right place."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aquiline.training.self_written.loops import (
    MAX_PERIOD,
    MIN_LOOPING_TOKENS,
    goes_in_circles,
    is_repetitive,
    looping_period,
    without_loop,
)

DISTINCT = st.lists(st.integers(0, 10**6), unique=True, min_size=1, max_size=40)


@given(
    before=DISTINCT,
    loop=st.lists(st.integers(10**7, 10**8), unique=True, min_size=1, max_size=MAX_PERIOD),
    rest=st.integers(0, 63),
)
def test_a_loop_is_cut_behind_its_first_round(before: list[int], loop: list[int], rest: int) -> None:
    num_rounds = max(3, -(-MIN_LOOPING_TOKENS // len(loop)))
    text = before + loop * num_rounds + loop[: rest % len(loop)]
    assert looping_period(text) == len(loop)
    assert list(without_loop(text)) == before + loop


@given(token_ids=st.lists(st.integers(0, 10**9), unique=True, max_size=400))
def test_what_never_repeats_is_no_loop(token_ids: list[int]) -> None:
    assert looping_period(token_ids) is None and not goes_in_circles(token_ids)
    assert without_loop(token_ids) is token_ids


@pytest.mark.parametrize(
    "token_ids",
    [[1] * 31, [7, *range(20), *range(20)], [*range(65)] * 4, [1, 2] * 16 + [3]],
    ids=["too short", "twice only", "too long a period", "over already"],
)
def test_what_may_end_by_itself_is_no_loop(token_ids: list[int]) -> None:
    assert looping_period(token_ids) is None


def test_a_list_of_equal_points_goes_in_circles() -> None:
    point = list(range(100, 130))
    text = [token_id for number in range(8) for token_id in (number, *point)]
    assert looping_period(text) is None
    assert goes_in_circles(text) and not goes_in_circles(text[: 3 * 31])


def test_varied_text_does_not_go_in_circles() -> None:
    rng = random.Random(0)
    assert not goes_in_circles([rng.randrange(5) for _ in range(110)])


def test_repetitive_words() -> None:
    assert is_repetitive(("the cat sat on the mat and " * 4).split())
    assert not is_repetitive(list("the cat sat on the mat and then it went"))
    assert not is_repetitive(["ha"] * 4)
