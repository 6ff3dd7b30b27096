"""Which draft rows wait, and which requests may grow trees although theirs do."""

from __future__ import annotations

import pytest

from aquiline.engine.draft_debt import ROWS_AT_ONCE, DebtPolicy, DraftUse, debt_of
from aquiline.engine.plan import StepPlan
from aquiline.engine.planner import AutoPlanner
from aquiline.engine.planner_decisions import PlannerSettings
from aquiline.engine.tree_families import TreeBounds
from aquiline.request import Request
from aquiline.speculation import NO_TREE, chain
from tests.engine.synthetic_costs import FormulaCosts, load_of, request

PLAIN = StepPlan(NO_TREE, {}, {})
COSTS = FormulaCosts(lambda rows: 1.0 + 0.1 * rows)


def behind(index: int, num_rows: int, num_answered: int) -> Request:
    """A request with a prompt of 100 tokens whose draft lacks so many rows."""
    made = request(index)
    made.token_ids += [1] * num_answered
    made.num_computed_tokens += num_answered
    made.num_draft_rows = made.num_computed_tokens - num_rows
    return made


def planned(requests: list[Request], use: DraftUse, plan: StepPlan = PLAIN) -> StepPlan:
    load = load_of(requests)
    return DebtPolicy().plan(load, plan, debt_of(load), 1.0, COSTS, use)


@pytest.mark.parametrize("use", list(DraftUse))
def test_rows_of_prompts_wait_while_the_draft_rests(use: DraftUse) -> None:
    plan = planned([behind(0, 100, 0), behind(1, 60, 60)], use)
    assert bool(plan.num_new_draft_rows) == (use is DraftUse.GROWS)
    assert not plan.gives_up


def test_a_debt_beyond_its_bound_is_paid_in_parts_where_trees_grow_and_else_given_up() -> None:
    requests = [behind(0, 2100, 2200), behind(1, 20, 30)]
    rows = planned(requests, DraftUse.GROWS).num_new_draft_rows
    assert rows is not None and set(rows) == {"r0"} and 0 < rows["r0"] < 600
    for use in (DraftUse.RESTS, DraftUse.HOPELESS):
        plan = planned(requests, use)
        assert not plan.num_new_draft_rows and [each.request_id for each in plan.gives_up] == ["r0"]


def test_all_requests_together_are_behind_by_no_more_than_memory_allows() -> None:
    policy = DebtPolicy(max_rows=100, max_total_rows=300)
    for num_requests, most in ((1, 100), (3, 100), (4, 75), (600, 0)):
        load = load_of([request(index) for index in range(num_requests)])
        assert policy.most_pending(load) == most


def test_trees_wait_for_a_long_debt_but_not_for_a_prompt_that_was_just_computed() -> None:
    requests = [behind(0, ROWS_AT_ONCE, 40), behind(1, ROWS_AT_ONCE + 1, 40), behind(2, 99, 0)]
    plan = planned(requests, DraftUse.GROWS, StepPlan(chain(2), {"r0": 2, "r1": 2, "r2": 2}, {}))
    assert plan.num_draft_tokens == {"r0": 2, "r2": 2}
    assert plan.num_new_draft_rows is not None and plan.num_new_draft_rows["r1"] > 0
    assert debt_of(load_of(requests)).num_behind == ROWS_AT_ONCE + 1


@pytest.mark.parametrize(("row_seconds", "is_written"), [(0.01, True), (1.0, False)])
def test_prompts_are_drafted_at_once_only_where_trees_will_grow(row_seconds: float, is_written: bool) -> None:
    """While prompts are computed nothing decodes yet: what counts is the load that there will be."""
    planner = AutoPlanner(FormulaCosts(lambda rows: 1.0 + row_seconds * rows), PlannerSettings(TreeBounds(8)))
    requests = [behind(index, 64, 0) for index in range(4)]
    for each in requests:
        each.num_computed_tokens, each.num_draft_rows = 64, 0
    load = load_of(requests)
    plan = planner.plan(type(load)(0, [], requests, 0, 4 * 37))
    assert bool(plan.num_new_draft_rows) == is_written
