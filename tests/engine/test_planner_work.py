"""Planning is cheap because it seldom has anything to reckon: counted, not timed."""

from __future__ import annotations

import random
import time

import pytest

from aquiline.engine.cost_model import GENERIC_PROFILE, CostModel, StepSeconds, StepSize
from aquiline.engine.plan import StepReport
from aquiline.engine.planner import REPORTS_READ_AT_ONCE, AutoPlanner
from aquiline.engine.planner_decisions import PlannerSettings
from aquiline.engine.tree_families import TreeBounds
from aquiline.request import Request
from aquiline.speculation import NO_TREE
from tests.engine.synthetic_costs import RATES, FormulaCosts, Machine, load_of, request, step_size

VERIFY = GENERIC_PROFILE.verify


def machine_of(noise: float, rates_name: str = "fair", batch: int = 1) -> tuple[Machine, list[Request]]:
    """A machine that is as the generic profile says, with a planner that learns; it has run for a while."""
    costs = FormulaCosts(VERIFY.at, noise=noise, context_cost=0.0)
    machine = Machine(AutoPlanner(CostModel(), PlannerSettings(TreeBounds(32))), costs, random.Random(1))
    requests = [request(index) for index in range(batch)]
    machine.steps(300, requests, lambda _: RATES[rates_name])
    return machine, requests


def work_of(machine: Machine) -> tuple[int, int, int]:
    decider = machine.planner.decider
    return decider.num_outlooks, decider.knowledge.num_refreshes, decider.knowledge.num_grown


@pytest.mark.parametrize("batch", [1, 4, 32])
@pytest.mark.parametrize("rates_name", ["fair", "good", "useless"])
def test_steps_that_are_like_others_reckon_nothing_anew(batch: int, rates_name: str) -> None:
    machine, requests = machine_of(0.05, rates_name, batch)
    before = work_of(machine)
    machine.steps(300, requests, lambda _: RATES[rates_name])
    after = work_of(machine)
    outlooks, refreshes, grown = (late - early for late, early in zip(after, before, strict=True))
    assert outlooks <= 60
    assert refreshes <= 300 // 16 + 1
    assert grown <= 6


def test_reports_are_read_several_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, requests = machine_of(0.05)
    seen: list[int] = []
    costs = machine.planner.costs
    observe = costs.observe

    def count(size: StepSize, seconds: StepSeconds, num_steps: int = 1) -> None:
        seen.append(num_steps)
        observe(size, seconds, num_steps)

    monkeypatch.setattr(costs, "observe", count)
    machine.steps(40 * REPORTS_READ_AT_ONCE, requests, lambda _: RATES["fair"])
    # Where trees rest, every eighth step is a lesson; several lessons of steps that were alike count as one.
    assert 20 * REPORTS_READ_AT_ONCE // 8 <= sum(seen) <= 40 * REPORTS_READ_AT_ONCE
    assert len(seen) < sum(seen)


def test_a_request_that_ends_leaves_nothing() -> None:
    machine, requests = machine_of(0.0, batch=4)
    for each in requests:
        machine.planner.forget(each.request_id)
    assert machine.planner.estimator.num_requests == 0


@pytest.mark.parametrize(("batch", "most_seconds"), [(1, 4e-4), (32, 6e-4)])
def test_planning_and_learning_take_little_processor_time(batch: int, most_seconds: float) -> None:
    """A generous bound, some ten times what it takes on an idle core: refreshes and everything included."""
    machine, requests = machine_of(0.05, batch=batch)
    planner, load = machine.planner, load_of(requests)
    seconds = CostModel(learns=False).predict(step_size(load, NO_TREE, [0] * batch, 0))
    spent = []
    for _ in range(5):
        started = time.thread_time()
        for _ in range(64):
            planner.plan(load)
            planner.observe(StepReport(NO_TREE, step_size(load, NO_TREE, [0] * batch, 0), seconds))
        spent.append((time.thread_time() - started) / 64)
    assert min(spent) < most_seconds
