"""What is learnt of a draft: rates by depth and rank, skills of requests, and the trees that follow."""

from __future__ import annotations

import random

import pytest

from aquiline.engine.acceptance import NUM_KINDS, SKILLS, USUAL_SKILL, AcceptanceEstimator, RateTable, with_skill
from aquiline.engine.acceptance_prior import (
    MAX_LEARNT_DEPTH,
    AcceptancePrior,
    AcceptancePriors,
    RequestClass,
    class_of,
    has_hidden_rules,
)
from aquiline.engine.planner_candidates import CandidateTable
from aquiline.engine.tree_families import TreeBounds, TreeFamilies, bent_rates, best_first
from aquiline.errors import InvalidParameterError
from aquiline.guided import GuidedParams
from aquiline.request import SamplingParams
from aquiline.speculation import NO_TREE, StaticTree, chain, parse_speculation, spelt, tree_from_branching
from tests.engine.synthetic_costs import RATES, request, survivals, walk


def static(text: str) -> StaticTree:
    shape = parse_speculation(text).shape or NO_TREE
    assert isinstance(shape, StaticTree)
    return shape


def learnt(rates: list[list[float]], num_paths: int, shape_text: str = "tree:4x2x2") -> RateTable:
    shape, dice, estimator = static(shape_text), random.Random(1), AcceptanceEstimator()
    table = estimator.tables[RequestClass.GREEDY]
    for number in range(num_paths):
        estimator.observe("r", shape, shape.num_draft_tokens, walk(shape, shape.num_draft_tokens, rates, dice))
        if number % 7 == 0:
            table.refresh()
    table.refresh()
    return table


@pytest.mark.parametrize("name", sorted(RATES))
def test_rates_are_learnt(name: str) -> None:
    table = learnt(RATES[name], 3000)
    for rank in range(4):
        assert table.rates[0][rank] == pytest.approx(RATES[name][0][rank], abs=0.07)
    assert table.rates[1][0] == pytest.approx(RATES[name][1][0], abs=0.12)
    for row in table.rates:
        assert sum(row) <= 1.0 + 1e-9 and min(row) >= 0.0


def test_depths_that_were_never_tried_lean_on_those_that_were() -> None:
    good, bad = learnt(RATES["good"], 300, "chain:1"), learnt(RATES["useless"], 300, "chain:1")
    assert good.rates[2][0] > 0.6
    assert bad.rates[2][0] < 0.1
    assert bad.rates[0][1] < 0.03


def test_paths_count_as_often_as_they_were_seen_however_rarely_they_are_read() -> None:
    often, rarely = RateTable(AcceptancePrior()), RateTable(AcceptancePrior())
    shape = chain(3)
    for number in range(300):
        accepted = (1, 2) if number % 2 else ()
        for table in (often, rarely):
            table.path(shape, 3, accepted).count += 1
        often.refresh()
    rarely.refresh()
    for depth in range(3):
        assert rarely.rates[depth][0] == pytest.approx(often.rates[depth][0], abs=0.05)


def test_a_prior_is_where_learning_begins() -> None:
    table = RateTable(AcceptancePrior(((0.3, 0.2), (0.1,))))
    assert table.rates[0][:3] == pytest.approx([0.3, 0.2, 0.0])
    assert table.rates[1][0] == pytest.approx(0.1)
    assert table.rates[2][0] == pytest.approx(0.095)
    assert len(table.rates) == MAX_LEARNT_DEPTH


def test_classes_begin_with_priors_of_their_own() -> None:
    greedy = AcceptancePrior(((0.45, 0.17, 0.05, 0.04),))
    priors = AcceptancePriors(greedy)
    sampled = priors.of(RequestClass.SAMPLED).depth_rank[0]
    assert [sum(sampled[:width]) for width in (1, 2, 4)] == pytest.approx([0.34, 0.46, 0.57], abs=0.035)
    assert priors.of(RequestClass.GUIDED).depth_rank[0][0] == pytest.approx(0.495)
    given = AcceptancePrior(((0.2,),))
    assert AcceptancePriors(greedy, given).of(RequestClass.SAMPLED) is given
    assert sum(AcceptancePrior(((0.8, 0.15),)).times(1.1).depth_rank[0]) == pytest.approx(0.98)


def test_requests_are_classed_by_what_draft_and_target_see() -> None:
    guided = GuidedParams(choice=["yes", "no"])
    assert class_of(SamplingParams(temperature=0.0)) is RequestClass.GREEDY
    assert class_of(SamplingParams(temperature=0.3)) is RequestClass.SAMPLED
    assert class_of(SamplingParams(temperature=0.0, guided=guided)) is RequestClass.GUIDED
    assert class_of(SamplingParams(temperature=1.0, guided=guided)) is RequestClass.GUIDED
    assert not has_hidden_rules(SamplingParams(temperature=0.7, guided=guided))
    for rule in ({"logit_bias": {3: 2.0}}, {"presence_penalty": 0.5}, {"banned_token_ids": [1]}):
        assert has_hidden_rules(SamplingParams(**rule))


def test_requests_of_one_class_say_nothing_of_another() -> None:
    estimator = AcceptanceEstimator()
    params = {
        RequestClass.GREEDY: SamplingParams(temperature=0.0),
        RequestClass.SAMPLED: SamplingParams(temperature=1.0),
        RequestClass.GUIDED: SamplingParams(guided=GuidedParams(choice=["a"])),
    }
    before = [[list(row) for row in table.rates] for table in estimator.tables]
    for taught in RequestClass:
        name = taught.name
        estimator.kind(request(0, params=params[taught], name=name))
        for _ in range(100):
            estimator.observe(name, chain(2), 2, ())
        for table in estimator.tables:
            table.refresh()
        for other in RequestClass:
            has_learnt = other <= taught
            assert (estimator.tables[other].rates != before[other]) == has_learnt
    kinds = {estimator.kind(request(0, params=params[each], name=each.name)) for each in RequestClass}
    assert len(kinds) == 3 and max(kinds) < NUM_KINDS


def test_an_engine_that_follows_another_knows_what_that_one_learnt_but_none_of_its_requests() -> None:
    estimator = AcceptanceEstimator()
    estimator.kind(request(0, name="r"))
    for _ in range(40):
        estimator.observe("r", chain(2), 2, ())
    follower = estimator.successor()
    assert follower.tables is estimator.tables
    assert follower.skill("r") == USUAL_SKILL != estimator.skill("r")
    assert follower.num_requests == 0


@pytest.mark.parametrize("rates", [(), ((),), ((1.2,),), ((0.5, -0.1),), ((0.7, 0.5),)])
def test_impossible_priors_are_refused(rates: tuple[tuple[float, ...], ...]) -> None:
    with pytest.raises(InvalidParameterError, match="acceptance prior"):
        AcceptancePrior(rates)


def test_requests_that_rules_bind_do_not_change_the_shared_rates() -> None:
    estimator = AcceptanceEstimator()
    table = estimator.tables[RequestClass.GREEDY]
    before = [list(row) for row in table.rates]
    estimator.kind(request(0, name="bound"))
    for _ in range(200):
        estimator.observe("bound", chain(3), 3, (), is_usual=False)
    table.refresh()
    assert table.rates == before
    assert estimator.num_observed == 0
    assert SKILLS[estimator.skill("bound")] < 1.0
    assert estimator.skill("another") == USUAL_SKILL


def test_skills_tell_requests_apart_and_are_forgotten() -> None:
    estimator = AcceptanceEstimator()
    for name in ("good", "bad"):
        estimator.kind(request(0, name=name))
    for _ in range(40):
        estimator.observe("good", chain(2), 2, (1, 2))
        estimator.observe("bad", chain(2), 2, ())
    assert estimator.skill("good") > USUAL_SKILL > estimator.skill("bad")
    for _ in range(500):
        estimator.fade("bad")
    assert estimator.skill("bad") == USUAL_SKILL
    estimator.forget("good")
    assert estimator.skill("good") == USUAL_SKILL
    assert estimator.num_requests == 1


def test_a_skill_bends_the_odds_of_all_children_together() -> None:
    assert with_skill([0.4, 0.1], 2.0) == pytest.approx([0.8 * 2 / 3, 0.2 * 2 / 3])
    assert with_skill([0.4, 0.1], 1.0) == [0.4, 0.1]
    assert sum(with_skill([0.9, 0.1], 5.0)) <= 1.0
    assert with_skill([0.0, 0.0], 3.0) == [0.0, 0.0]


def test_only_nodes_that_a_request_holds_teach_anything() -> None:
    estimator = AcceptanceEstimator()
    table = estimator.tables[RequestClass.GREEDY]
    before = table.rates[0]
    for _ in range(300):
        estimator.observe("r", tree_from_branching([3]), 1, ())
    table.refresh()
    assert table.num_trials > 100.0
    lowered = [now / then for now, then in zip(table.rates[0], before, strict=True)]
    assert lowered[0] < 0.1
    # The others were never tried: they only follow the first, in one step.
    assert lowered[1] == pytest.approx(lowered[0], rel=0.01)


def test_rates_bend_as_those_of_single_nodes_do() -> None:
    bent = bent_rates(RATES["fair"])
    for number, skill in enumerate(SKILLS):
        assert bent[number, 1].tolist() == pytest.approx(with_skill(RATES["fair"][1], skill))


def test_trees_grow_the_most_promising_node_first() -> None:
    rates = AcceptancePrior(((0.6, 0.2), (0.5, 0.1), (0.1,))).rows()
    shape = best_first(rates, 10, 8, 5)
    assert (shape.parents, shape.ranks) == ((-1, 0, 1, 0, 3, 1), (0, 0, 0, 1, 0, 1))
    chances = survivals(shape, rates)
    assert chances == sorted(chances, reverse=True)


def candidates(name: str, max_nodes: int) -> CandidateTable:
    rates = AcceptancePrior(tuple(map(tuple, RATES[name]))).rows()
    families = TreeFamilies.grown(rates, TreeBounds(max_nodes))
    return CandidateTable.of(families, [rates, None, None], RequestClass.GREEDY)


@pytest.mark.parametrize("name", sorted(RATES))
def test_candidates_foresee_what_they_bring(name: str) -> None:
    table = candidates(name, 24)
    rates = AcceptancePrior(tuple(map(tuple, RATES[name]))).rows()
    for place in range(len(table.family)):
        candidate = table.candidate(place)
        assert isinstance(candidate.shape, StaticTree)
        for number, skill in enumerate(SKILLS):
            size = candidate.num_draft_tokens[number]
            chances = survivals(candidate.shape, [with_skill(row, skill) for row in rates])
            assert candidate.expected[number] == pytest.approx(sum(chances[: size + 1]))
        sizes = candidate.num_draft_tokens[: len(SKILLS)]
        assert list(sizes) == sorted(sizes)
        assert candidate.shape.num_draft_tokens == max(sizes) <= 24
        family, size = candidate.key
        if size:
            widths = table.families.level_widths[family, candidate.shape.num_draft_tokens]
            assert [round(width) for width in widths if width] == list(candidate.shape.level_widths)


def test_a_class_whose_nodes_cost_more_holds_fewer() -> None:
    rates = AcceptancePrior(tuple(map(tuple, RATES["fair"]))).rows()
    families = TreeFamilies.grown(rates, TreeBounds(24))
    cheap = CandidateTable.of(families, [rates, None, rates], RequestClass.GREEDY)
    dear = CandidateTable.of(families, [rates, None, rates], RequestClass.GREEDY, (1.0, 1.0, 2.0))
    guided = RequestClass.GUIDED * len(SKILLS) + USUAL_SKILL
    assert (cheap.sizes[:, guided] == cheap.sizes[:, USUAL_SKILL]).all()
    assert (dear.sizes[:, guided] <= dear.sizes[:, USUAL_SKILL]).all()
    assert dear.sizes[:, guided].sum() < 0.8 * cheap.sizes[:, guided].sum()


def test_widths_stay_within_the_bounds() -> None:
    for shape in TreeFamilies.grown(AcceptancePrior().rows(), TreeBounds(20, 3)).shapes:
        assert max(shape.ranks) <= 2


@pytest.mark.parametrize("text", ["off", "chain:3", "tree:3x2", "paths:0,1,00,000"])
def test_shapes_are_spelt_as_they_are_typed(text: str) -> None:
    assert static(spelt(static(text))) == static(text)
