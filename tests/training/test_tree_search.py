"""The best static trees: against every tree there is, and in the form that --speculate takes."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aquiline.errors import InvalidParameterError
from aquiline.speculation import StaticTree, chain, parse_speculation, tree_from_paths
from aquiline.training.tree_search import best_trees, expected_acceptance_length, likeliest_paths, spell_shape

EXAMPLE = ((0.5, 0.3), (0.4, 0.1))
SMALL = [(0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)]


def all_trees(size: int) -> list[StaticTree]:
    trees = []
    for paths in combinations(SMALL, size):
        try:
            trees.append(tree_from_paths(list(paths)))
        except InvalidParameterError:
            continue
    return trees


@st.composite
def falling_rates(draw: st.DrawFn) -> tuple[tuple[float, ...], ...]:
    """Two depths of two ranks, later ranks less likely."""
    rows = []
    for _ in range(2):
        first = draw(st.floats(0.01, 0.9))
        rows.append((first, draw(st.floats(0.005, 1.0)) * min(first, 1.0 - first)))
    return tuple(rows)


def test_the_worked_example() -> None:
    assert likeliest_paths(EXAMPLE, 9) == [(0,), (1,), (0, 0), (1, 0), (0, 1), (1, 1)]


@given(falling_rates())
def test_no_tree_of_the_same_size_promises_more(rates: tuple[tuple[float, ...], ...]) -> None:
    for size, tree in best_trees(rates, range(1, len(SMALL) + 1)).items():
        best = max(expected_acceptance_length(other, rates) for other in all_trees(size))
        assert expected_acceptance_length(tree, rates) == pytest.approx(best)


def test_the_promise_of_a_chain_is_a_sum_of_products() -> None:
    assert expected_acceptance_length(chain(2), EXAMPLE) == pytest.approx(1 + 0.5 + 0.5 * 0.4)
    assert expected_acceptance_length(chain(4), EXAMPLE) == pytest.approx(1 + 0.5 + 0.5 * 0.4)


def test_paths_that_were_never_right_are_left_out() -> None:
    assert likeliest_paths(((0.5, 0.0), (0.0, 0.0)), 9) == [(0,)]
    assert best_trees(((0.0, 0.0),), (1, 2)) == {}


@pytest.mark.parametrize("text", ["chain:1", "chain:4", "paths:0,1", "paths:0,1,2,00,01,10,000"])
def test_shapes_are_spelt_as_they_are_parsed(text: str) -> None:
    shape = parse_speculation(text).shape
    assert isinstance(shape, StaticTree)
    assert spell_shape(shape) == text
