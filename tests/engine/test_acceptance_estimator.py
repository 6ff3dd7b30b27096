"""What is learnt of a draft: rates by depth and rank, skills of requests, and the trees that follow."""

from __future__ import annotations

import random

import pytest

from aquiline.engine.acceptance import (
    MAX_LEARNT_DEPTH,
    SKILLS,
    USUAL_SKILL,
    AcceptanceEstimator,
    AcceptancePrior,
    with_skill,
)
from aquiline.engine.tree_families import TreeBounds, TreeFamily, candidates_of, grow_families
from aquiline.errors import InvalidParameterError
from aquiline.speculation import NO_TREE, StaticTree, chain, parse_speculation, spelt, tree_from_branching
from tests.engine.synthetic_costs import RATES, survivals, walk


def static(text: str) -> StaticTree:
    shape = parse_speculation(text).shape or NO_TREE
    assert isinstance(shape, StaticTree)
    return shape


def learnt(rates: list[list[float]], num_paths: int, shape_text: str = "tree:4x2x2") -> AcceptanceEstimator:
    shape, dice, estimator = static(shape_text), random.Random(1), AcceptanceEstimator()
    for _ in range(num_paths):
        estimator.observe("r", shape, shape.num_draft_tokens, walk(shape, shape.num_draft_tokens, rates, dice))
    estimator.refresh()
    return estimator


@pytest.mark.parametrize("name", sorted(RATES))
def test_rates_are_learnt(name: str) -> None:
    estimator = learnt(RATES[name], 3000)
    for rank in range(4):
        assert estimator.rate(1, rank) == pytest.approx(RATES[name][0][rank], abs=0.07)
    assert estimator.rate(2, 0) == pytest.approx(RATES[name][1][0], abs=0.12)
    for row in estimator.rates:
        assert sum(row) <= 1.0 + 1e-9 and min(row) >= 0.0


def test_depths_that_were_never_tried_lean_on_those_that_were() -> None:
    good, bad = learnt(RATES["good"], 300, "chain:1"), learnt(RATES["useless"], 300, "chain:1")
    assert good.rate(3, 0) > 0.6
    assert bad.rate(3, 0) < 0.1
    assert bad.rate(1, 1) < 0.03


def test_a_prior_is_where_learning_begins() -> None:
    prior = AcceptancePrior(((0.3, 0.2), (0.1,)))
    estimator = AcceptanceEstimator(prior)
    assert estimator.rates[0][:3] == pytest.approx([0.3, 0.2, 0.0])
    assert estimator.rates[1][0] == pytest.approx(0.1)
    assert estimator.rates[2][0] == pytest.approx(0.095)
    assert len(estimator.rates) == MAX_LEARNT_DEPTH


@pytest.mark.parametrize("rates", [(), ((),), ((1.2,),), ((0.5, -0.1),), ((0.7, 0.5),)])
def test_impossible_priors_are_refused(rates: tuple[tuple[float, ...], ...]) -> None:
    with pytest.raises(InvalidParameterError, match="acceptance prior"):
        AcceptancePrior(rates)


def test_requests_that_rules_bind_do_not_change_the_shared_rates() -> None:
    estimator = AcceptanceEstimator()
    before = [list(row) for row in estimator.rates]
    for _ in range(200):
        estimator.observe("bound", chain(3), 3, (), is_usual=False)
    estimator.refresh()
    assert estimator.rates == before
    assert estimator.num_observed == 0
    assert SKILLS[estimator.skill("bound")] < 1.0
    assert estimator.skill("another") == USUAL_SKILL


def test_skills_tell_requests_apart_and_are_forgotten() -> None:
    estimator = AcceptanceEstimator()
    for _ in range(40):
        estimator.observe("good", chain(2), 2, (1, 2))
        estimator.observe("bad", chain(2), 2, ())
    assert estimator.skill("good") > USUAL_SKILL > estimator.skill("bad")
    for _ in range(500):
        estimator.fade("bad")
    assert estimator.skill("bad") == USUAL_SKILL
    estimator.forget("good")
    assert estimator.skill("good") == USUAL_SKILL
    assert not set(estimator._own) - {"bad"}


def test_a_skill_bends_the_odds_of_all_children_together() -> None:
    assert with_skill([0.4, 0.1], 2.0) == pytest.approx([0.8 * 2 / 3, 0.2 * 2 / 3])
    assert with_skill([0.4, 0.1], 1.0) == [0.4, 0.1]
    assert sum(with_skill([0.9, 0.1], 5.0)) <= 1.0
    assert with_skill([0.0, 0.0], 3.0) == [0.0, 0.0]


def test_only_nodes_that_a_request_holds_teach_anything() -> None:
    estimator = AcceptanceEstimator()
    for _ in range(300):
        estimator.observe("r", tree_from_branching([3]), 1, ())
    assert estimator._trials[0][0] > 100.0
    assert estimator._trials[0][1] == 0.0


def test_families_grow_the_most_promising_node_first() -> None:
    estimator = AcceptanceEstimator(AcceptancePrior(((0.6, 0.2), (0.5, 0.1), (0.1,))))
    family = TreeFamily(estimator, 10, 8, 5)
    assert (family.shape.parents, family.shape.ranks) == ((-1, 0, 1, 0, 3, 1), (0, 0, 0, 1, 0, 1))
    chances = survivals(family.shape, estimator.rates)
    assert chances == sorted(chances, reverse=True)


def test_candidates_foresee_what_they_bring() -> None:
    estimator = AcceptanceEstimator(AcceptancePrior(tuple(map(tuple, RATES["fair"]))))
    for candidate in candidates_of(grow_families(estimator, TreeBounds(24))):
        size = candidate.num_draft_tokens[USUAL_SKILL]
        chances = survivals(candidate.shape, estimator.rates)
        assert candidate.expected[USUAL_SKILL] == pytest.approx(sum(chances[: size + 1]))
        assert list(candidate.num_draft_tokens) == sorted(candidate.num_draft_tokens)
        assert candidate.shape.num_draft_tokens == max(candidate.num_draft_tokens) <= 24


def test_widths_stay_within_the_bounds() -> None:
    for family in grow_families(AcceptanceEstimator(), TreeBounds(20, 3)):
        assert max(family.shape.ranks) <= 2


@pytest.mark.parametrize("text", ["off", "chain:3", "tree:3x2", "paths:0,1,00,000"])
def test_shapes_are_spelt_as_they_are_typed(text: str) -> None:
    assert static(spelt(static(text))) == static(text)
