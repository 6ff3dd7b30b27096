"""How much is looked up in a step: by what rows cost, for all requests together, and beside a draft model."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aquiline.config import LookupMode, SpeculativeConfig
from aquiline.engine.acceptance_prior import AcceptancePrior, AcceptancePriors
from aquiline.engine.cost_curve import Curve
from aquiline.engine.cost_model import GENERIC_PROFILE, CostModel, CostProfile, StepSeconds, StepSize
from aquiline.engine.host_tree import HostTree
from aquiline.engine.lookup import Lookup
from aquiline.engine.lookup_costs import (
    MOST_STEPS_TO_REST,
    STEPS_OF_A_REST,
    STEPS_TO_PROBE,
    LookupPlanner,
    scaled,
    unmeasured_costs,
)
from aquiline.engine.lookup_draft import DraftOutlook, DraftWorth, even_survivals
from aquiline.engine.lookup_policy import LookupPolicy, StepOutline
from aquiline.engine.plan import StepLoad, StepReport
from aquiline.engine.planner import AutoPlanner
from aquiline.engine.planner_decisions import PlannerSettings
from aquiline.engine.row_worth import CAUTION, RowCosts, RowWorth, StepBase
from aquiline.engine.tree_families import TreeBounds
from aquiline.request import Request, SamplingParams
from aquiline.speculation import NO_TREE, parse_speculation


def make_request(prompt: Sequence[int], name: str = "it") -> Request:
    request = Request(name, tuple(prompt), SamplingParams(temperature=0), seed=0)
    request.num_computed_tokens = len(prompt) - 1
    return request


# A step with one row takes 1.0 + 0.3 + 0.2 and one with two rows 2.5 + 0.5 + 0.2.
SIMPLE_PROFILE = replace(
    GENERIC_PROFILE,
    verify=Curve((1, 2), (1.0, 2.5)),
    seconds_per_context_token=0.0,
    seconds_per_row_context=0.0,
    sample_base=0.1,
    sample_per_row=0.2,
    host_base=0.1,
    host_per_request=0.1,
)


def test_rows_cost_what_was_measured_and_follow_what_is_learnt() -> None:
    model = CostModel(SIMPLE_PROFILE)
    costs = RowCosts.of(model, 1, 0)
    caution = 1.5 + CAUTION * 1.7
    assert (costs.time(1), costs.time(2)) == pytest.approx((1.5, caution))
    for _ in range(200):
        for rows, verify in ((1, 1.0), (2, 1.1)):
            model.observe(StepSize(rows, rows, 1), StepSeconds(verify, 0.0, 0.1 + 0.2 * rows, 0.2))
    assert costs.time(2) == pytest.approx(caution)
    costs.refresh()
    assert costs.time(2) / costs.time(1) < 1.8


def policy(mode: str, has_draft: bool = False, lookup: LookupMode = "auto") -> LookupPolicy:
    return LookupPolicy(SpeculativeConfig(parse_speculation(mode), lookup=lookup), has_draft)


@pytest.mark.parametrize(
    ("mode", "lookup", "has_draft", "num_nodes", "depth"),
    [
        ("auto", "on", False, 16, 16),
        ("auto", "on", True, 16, 16),
        ("chain:3", "auto", False, 3, 3),
        ("chain:3", "on", True, 3, 3),
        ("tree:3x2", "on", False, 9, 2),
        ("chain:3", "auto", True, 0, 0),
        ("off", "auto", False, 0, 0),
        ("auto", "off", False, 0, 0),
    ],
)
def test_a_shape_bounds_what_is_looked_up(
    mode: str, lookup: LookupMode, has_draft: bool, num_nodes: int, depth: int
) -> None:
    looks_up = policy(mode, has_draft, lookup)
    assert looks_up.max_draft_tokens == num_nodes
    request = make_request([1, 2, 3, 4, 5, 6, 7] * 9)
    trees = looks_up.propose(StepOutline([request], [100], 1, num_free_rows=100))
    if num_nodes:
        assert trees["it"].num_draft_tokens <= num_nodes and trees["it"].depth == depth
    else:
        assert not trees


def test_requests_share_the_rows_of_a_step() -> None:
    requests = [make_request([1, 2, 3, 4, 5, 6, 7] * 9, name=name) for name in "abc"]
    trees = policy("auto").propose(StepOutline(requests, [100] * 3, 3, num_free_rows=10))
    assert [tree.num_draft_tokens for tree in trees.values()] == [3, 3, 3]


REPEATING = [1, 2, 3, 4, 5, 6, 7] * 9


def repeating(num_requests: int) -> list[Request]:
    return [make_request(REPEATING, name=str(number)) for number in range(num_requests)]


def test_rows_that_pay_only_together_are_taken_together() -> None:
    """Four rows, and a stair behind them: one request's node does not repay it, those of four requests do."""
    stairs = RowCosts(lambda num_rows: 1.0 + 0.6 * ((num_rows - 1) // 4))
    for num_asked, expected in ((1, 0), (4, 4)):
        worth = RowWorth(StepBase(4, 4.0), stairs)
        trees = Lookup().propose(repeating(num_asked), [1] * num_asked, 1, worth)
        assert sum(tree.num_draft_tokens for tree in trees) == expected


@pytest.mark.parametrize(("survival", "num_kept"), [(0.55, 0), (0.75, 0), (0.95, 16)])
def test_a_full_batch_climbs_the_stair_behind_it_only_for_many_good_nodes(survival: float, num_kept: int) -> None:
    """Sixteen requests on a machine whose seventeenth row costs a fifth more than sixteen, in milliseconds."""
    curve = Curve((1, 4, 8, 16, 17, 32, 33, 64), (2.6, 3.1, 3.7, 5.6, 6.7, 9.9, 10.4, 19.0))
    worth = RowWorth(StepBase(16, 16.0), RowCosts(curve.at))
    for _ in range(16):
        if survival >= worth.least_survival:
            worth.take(survival)
    assert worth.settle() == num_kept


@given(st.integers(1, 5), st.integers(0, 40), st.floats(0.0, 2.0), st.sampled_from([1, 3, 16]), st.floats(0.0, 1.0))
def test_what_is_kept_commits_fastest_of_all_beginnings(
    num_requests: int, num_other_rows: int, other_time: float, size: int, tree_time: float
) -> None:
    """Rows of prefill and of the draft model move the stairs; no other number of nodes is better."""
    costs = RowCosts(lambda num_rows: 3.0 + num_rows // 8 + 0.02 * num_rows)
    base = StepBase(num_requests + num_other_rows, float(num_requests), other_time)
    worth = RowWorth(base, costs, tree_time=tree_time)
    trees = Lookup().propose(repeating(num_requests), [8] * num_requests, size, worth)
    everything = RowWorth(base, costs, always_pays=True)
    full = Lookup().propose(repeating(num_requests), [8] * num_requests, size, everything)
    survivals = sorted((survival for tree in full for survival in tree.survivals), reverse=True)
    rates = [
        (base.expected_tokens + gained)
        / (costs.time(base.num_rows + count) + other_time + (tree_time if count else 0.0))
        for count, gained in enumerate(itertools.accumulate(survivals, initial=0.0))
    ]
    kept = sum(tree.num_draft_tokens for tree in trees)
    assert rates[kept] == pytest.approx(max(rates))
    assert worth.base.expected_tokens == pytest.approx(base.expected_tokens + sum(survivals[:kept]))


def test_prefill_that_is_due_anyhow_makes_no_node_worth_more() -> None:
    """With straight costs, what a row must bring is the same beside any prefill."""
    straight = replace(SIMPLE_PROFILE, verify=Curve((1, 1000), (1.0, 100.9)), sample_per_row=0.0)
    found = []
    for num_prefill_rows in (0, 300):
        planner = auto_planner(straight)
        looks_up = LookupPolicy(SpeculativeConfig(), True, planner)
        trees = looks_up.propose(StepOutline(repeating(1), [20], 1, num_prefill_rows=num_prefill_rows))
        found.append(sum(tree.num_draft_tokens for tree in trees.values()))
    assert found[0] == found[1] > 0


def auto_planner(profile: CostProfile) -> AutoPlanner:
    prior = AcceptancePrior(((0.8, 0.1),))
    settings = PlannerSettings(TreeBounds(16, 8, 16), priors=AcceptancePriors(prior))
    return AutoPlanner(CostModel(profile, learns=False), settings)


STEEP = replace(SIMPLE_PROFILE, verify=Curve((1, 2), (1.0, 9.0)))


def test_where_no_row_pays_a_few_are_tried_now_and_then() -> None:
    looks_up = LookupPolicy(SpeculativeConfig(), True, auto_planner(STEEP))
    found = [len(looks_up.propose(StepOutline(repeating(2), [9, 9], 2))) for _ in range(1200)]
    tried = [step for step, count in enumerate(found) if count]
    assert len(tried) == 2 and tried[1] - tried[0] >= STEPS_TO_PROBE
    assert {found[step] for step in tried} == {2}


def test_where_nodes_always_pay_some_steps_go_without_ever_more_rarely() -> None:
    looks_up = LookupPolicy(SpeculativeConfig(), True, auto_planner(GENERIC_PROFILE))
    found = [len(looks_up.propose(StepOutline(repeating(1), [9], 1))) for _ in range(2200)]
    runs = [(count, len(list(steps))) for count, steps in itertools.groupby(found)]
    assert {length for count, length in runs if not count} == {STEPS_OF_A_REST}
    busy = [length for count, length in runs[:-1] if count]
    assert len(busy) >= 7 and busy == sorted(busy) and busy[-1] >= MOST_STEPS_TO_REST


def test_costs_that_nobody_learns_call_for_no_trial() -> None:
    looks_up = policy("auto")
    found = [len(looks_up.propose(StepOutline(repeating(1), [9], 1))) for _ in range(600)]
    assert found == [1] * 600


def with_plan(num_requests: int, profile: CostProfile = GENERIC_PROFILE) -> AutoPlanner:
    """A planner that has just let the draft model serve so many requests."""
    planner = auto_planner(profile)
    growing = repeating(num_requests)
    planner.plan(StepLoad(num_requests, growing, growing, context=100 * num_requests))
    assert planner.last is not None and planner.last.num_draft_tokens > 0
    return planner


@given(st.floats(0.0, 4.0), st.integers(1, 8))
def test_even_survivals_add_up_and_fall(gain: float, depth: int) -> None:
    survivals = even_survivals(gain, depth)
    assert sum(survivals) == pytest.approx(min(gain, depth), abs=1e-3)
    assert list(survivals) == sorted(survivals, reverse=True) and len(survivals) == depth


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=4), st.integers(0, 2))
def test_the_draft_model_serves_whom_it_pays_to_serve(survivals: list[float], num_others: int) -> None:
    """No other choice of requests is expected to commit tokens faster."""
    known = {str(number): HostTree((5,), (0,), (survival,)) for number, survival in enumerate(survivals)}
    growing = repeating(len(survivals) + num_others)
    planner, costs = with_plan(len(growing)), RowCosts()
    base = StepBase(len(growing), float(len(growing)))
    chosen = DraftWorth(planner).sufficient(known, growing, base, costs)
    assert planner.last is not None
    outlook = DraftOutlook.of(planner.last.candidate, planner.estimator.kind(growing[0]))

    def rate(idle: Collection[str]) -> float:
        served = [request.request_id for request in growing if request.request_id not in idle]
        gains = [outlook.gain_beside(known[name]) if name in known else outlook.gain for name in served]
        rows = base.num_rows + len(known) + round(len(served) * outlook.num_draft_tokens)
        widths = [round(width * len(served)) for width in outlook.level_widths]
        seconds = costs.time(rows) + (planner.costs.draft_seconds(len(served), widths) if served else 0.0)
        return (base.expected_tokens + sum(survivals) + sum(gains)) / seconds

    assert chosen <= known.keys()
    choices = [c for size in range(len(known) + 1) for c in itertools.combinations(known, size)]
    assert rate(chosen) == pytest.approx(max(map(rate, choices)))


def test_a_sure_continuation_needs_no_draft_model_and_a_poor_one_does() -> None:
    draft, growing = DraftWorth(with_plan(1)), repeating(1)
    base, costs = StepBase(1, 1.0), RowCosts()
    chain = (1, 2, 3, 4), (0, 1, 2, 3)
    assert draft.sufficient({"0": HostTree(*chain, (0.97, 0.95, 0.93, 0.9))}, growing, base, costs) == {"0"}
    assert not draft.sufficient({"0": HostTree((1,), (0,), (0.1,))}, growing, base, costs)


def test_nobody_does_without_a_draft_model_that_is_not_asked() -> None:
    """A planner that decodes plainly has to see all requests: it may find that trees have become worth while."""
    draft = DraftWorth(auto_planner(GENERIC_PROFILE))
    assert not draft.sufficient({"0": HostTree((1,), (0,), (0.99,))}, repeating(1), StepBase(1, 1.0), RowCosts())


def test_what_suffices_is_said_of_the_last_step_alone() -> None:
    planner = with_plan(1)
    looks_up = LookupPolicy(SpeculativeConfig(), True, planner)
    (request,) = repeating(1)
    looks_up.propose(StepOutline([request], [9], 1, growing=[request]))
    assert looks_up.suffices("0")
    looks_up.propose(StepOutline([], [], 0))
    assert not looks_up.suffices("0")


@pytest.mark.parametrize(("share_of_first", "should_propose"), [(0.02, True), (1.5, False)])
@pytest.mark.parametrize("first_row", [0.0005, 0.02, 3.0])
def test_without_a_draft_model_the_steps_that_run_teach_what_rows_cost(
    first_row: float, share_of_first: float, should_propose: bool
) -> None:
    """Rows that each take longer than a whole step of one row are soon left alone, cheap ones are not."""
    each = first_row * share_of_first
    planner = LookupPlanner(unmeasured_costs())
    looks_up = LookupPolicy(SpeculativeConfig(), False, planner)
    requests, sizes = repeating(2), []
    for _ in range(400):
        trees = looks_up.propose(StepOutline(requests, [6, 6], 2, context=120))
        num_nodes = sum(tree.num_draft_tokens for tree in trees.values())
        planner.plan(StepLoad(2, (), (), num_other_rows=num_nodes))
        seconds = StepSeconds(first_row + each * (1 + num_nodes), 0.0, 1e-5, 1e-5)
        if planner.learns:
            planner.observe(StepReport(NO_TREE, StepSize(2 + num_nodes, 2 + num_nodes, 2, 120, 200), seconds))
        sizes.append(num_nodes)
    assert sum(sizes[-100:]) >= 200 if should_propose else sum(sizes[-100:]) == 0, sum(sizes[-100:])


def test_a_machine_scaled_takes_that_much_longer() -> None:
    twice = CostModel(scaled(GENERIC_PROFILE, 2.0), learns=False)
    once = CostModel(learns=False)
    for rows in (1, 7, 40):
        assert twice.verify_seconds(rows, 9, 9 * rows) == pytest.approx(2.0 * once.verify_seconds(rows, 9, 9 * rows))
        assert twice.other_seconds(rows, 2) == pytest.approx(2.0 * once.other_seconds(rows, 2))
