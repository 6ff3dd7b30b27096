"""Accepted paths from ranks: the worked example, hand-counted rates, and what holds for any text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aquiline.speculation import StaticTree, chain, parse_speculation
from aquiline.training.walk import RankedText, conditional_accuracy, hit_rates, tally
from tests.training.ranked_texts import MAX_DEPTH, ranked_texts

EXAMPLE = RankedText("any", ((0, 3), (1, 0), (0, 0), (0, 0), (5,)))


def shape_of(text: str) -> StaticTree:
    shape = parse_speculation(text).shape
    assert isinstance(shape, StaticTree)
    return shape


def test_the_worked_example() -> None:
    counts = tally([EXAMPLE], chain(2))
    assert (counts.num_steps, counts.num_accepted_draft_tokens, counts.reached) == (2, 3, [2, 1])


def test_a_tree_follows_the_text_through_any_rank() -> None:
    # From a: b at rank 0, c at rank 3; the tree has 0 alone. From c: d, e. Rank 5 below e is in no tree here.
    assert tally([EXAMPLE], shape_of("paths:0,1,00,10")).reached == [2, 1]
    # With the path 03 the first step reaches c and draws d; d accepts e and f. Only then the answer is at its end.
    assert tally([EXAMPLE], shape_of("paths:0,00,01,02,03")).reached == [2, 2]


def test_hit_rates_by_hand() -> None:
    # Roots of a chain of 2 are a and c. Depth 1: ranks 0, 0. Depth 2: ranks 3 and 0.
    assert hit_rates([EXAMPLE], 2, 4) == ((1.0, 0.0, 0.0, 0.0), (0.5, 0.0, 0.0, 0.5))
    # A rank out of the table ends the path: it is offered, and hits nothing.
    assert hit_rates([EXAMPLE], 2, 2) == ((1.0, 0.0), (0.5, 0.0))


def test_accuracy_by_position_counts_every_root() -> None:
    # First choices at depth 1: a, c, d of five roots; below them at depth 2: c and d of three.
    assert conditional_accuracy([EXAMPLE], 2) == (3 / 5, 2 / 3)


def test_nothing_comes_of_nothing() -> None:
    assert hit_rates([], 3, 2) == ()
    assert tally([RankedText("any", ())], chain(3)).num_steps == 0


@given(ranked_texts())
def test_every_output_token_is_committed_once(texts: list[RankedText]) -> None:
    """Steps and accepted tokens together are all tokens behind the first, but those of the last, cut step."""
    for shape in (chain(MAX_DEPTH), shape_of("tree:3x2x1"), chain(1)):
        for text in texts:
            counts = tally([text], shape)
            committed = counts.num_steps + counts.num_accepted_draft_tokens
            assert len(text.ranks) <= committed <= len(text.ranks) + 1


@given(ranked_texts(), st.integers(1, MAX_DEPTH))
def test_below_one_root_a_tree_accepts_no_less_than_one_inside_it(texts: list[RankedText], depth: int) -> None:
    pairs = ((chain(depth), shape_of("tree:4x3x2x1")), (shape_of("paths:0,1,00"), shape_of("paths:0,1,2,00,10,000")))
    roots = [RankedText("any", (ranks,)) for text in texts for ranks in text.ranks]
    for root in roots:
        accepted = [[tally([root], shape).num_accepted_draft_tokens for shape in pair] for pair in pairs]
        assert all(smaller <= larger for smaller, larger in accepted)


@given(ranked_texts())
def test_rates_are_probabilities(texts: list[RankedText]) -> None:
    rates = hit_rates(texts, MAX_DEPTH, 5)
    assert all(0.0 <= rate <= 1.0 for row in rates for rate in row)
    assert all(sum(row) <= 1.0 + 1e-9 for row in rates)
