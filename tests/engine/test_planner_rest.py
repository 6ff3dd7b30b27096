"""Steps under the planner need no thought, as long as nothing changes."""

from __future__ import annotations

import random

import pytest

from aquiline.engine.cost_model import GENERIC_PROFILE, CostModel
from aquiline.engine.plan import StepPlan
from aquiline.engine.planner import AutoPlanner
from aquiline.engine.planner_attention import Attention
from aquiline.engine.planner_decisions import PlannerSettings
from aquiline.engine.planner_rest import IDLE_PLAN, Rests, most_rest, rests_of_a_lesson, steps_per_lesson
from aquiline.engine.tree_families import TreeBounds
from aquiline.request import SamplingParams
from aquiline.speculation import chain
from tests.engine.random_planner import RandomPlanner, put_planner
from tests.engine.synthetic_costs import MACHINES, RATES, FormulaCosts, Machine, load_of, request
from tests.engine.workloads import make_engine
from tests.tiny import TinySettings, finish_all


def test_rests_grow_as_in_the_worked_example() -> None:
    rests = Rests()
    lengths = []
    for _ in range(9):
        rests.count(IDLE_PLAN, 7)
        while rests.take():
            pass
        lengths.append(rests.num_rested)
    assert lengths == [0, 2, 4, 7, 7, 7, 7, 7, 7]


@pytest.mark.parametrize(
    "plan",
    [
        StepPlan(chain(1), {"a": 1}, {}),
        StepPlan(num_draft_tokens={}, num_new_draft_rows={"a": 3}),
        StepPlan(num_draft_tokens={}, num_new_draft_rows={}, gives_up=[request(0)]),
    ],
)
def test_a_plan_that_asks_for_something_ends_the_rest(plan: StepPlan) -> None:
    rests = Rests()
    for _ in range(20):
        rests.count(IDLE_PLAN, 3)
    rests.count(plan, 3)
    assert not rests.take()
    rests.count(IDLE_PLAN, 3)
    assert not rests.take()
    rests.count(IDLE_PLAN, 3)
    assert rests.take() and rests.take() and not rests.take()


def test_where_much_is_known_other_trees_and_requests_leave_the_length_of_rests() -> None:
    rests = Rests()
    for _ in range(20):
        rests.count(IDLE_PLAN, 7)
    rests.count(StepPlan(num_draft_tokens={}, num_new_draft_rows={"a": 3}), 7)
    # What is asked for is not asked for twice.
    assert not rests.take()
    for plan in (StepPlan(chain(1), {"a": 1}, {}), StepPlan(chain(2), {"a": 2}, {})):
        rests.count(plan, 7)
        assert [rests.take() for _ in range(8)] == [True] * 7 + [False]
        assert rests.plan == plan


def counted(planner: AutoPlanner, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one for every plan that is made."""
    plans: list[int] = []
    plan = planner.plan

    def count(load):  # type: ignore[no-untyped-def]
        plans.append(load.num_roots)
        return plan(load)

    monkeypatch.setattr(planner, "plan", count)
    return plans


@pytest.mark.parametrize(("rates_name", "most_plans"), [("useless", 170), ("good", 300)])
def test_few_steps_are_planned(rates_name: str, most_plans: int, monkeypatch: pytest.MonkeyPatch) -> None:
    costs = FormulaCosts(GENERIC_PROFILE.verify.at, context_cost=0.0)
    machine = Machine(AutoPlanner(CostModel(), PlannerSettings(TreeBounds(8))), costs, random.Random(1))
    requests = [request(index) for index in range(2)]
    machine.steps(150, requests, lambda _: RATES[rates_name])
    plans = counted(machine.planner, monkeypatch)
    run = machine.steps(300, requests, lambda _: RATES[rates_name])
    assert 300 // 16 <= len(plans) <= most_plans
    if rates_name == "useless":
        assert len(plans) >= 300 // 16
        assert sum(run.choices[-300:]) <= 8
    else:
        # But for one burst that learns what plain steps take.
        assert sum(map(bool, run.choices[-100:])) >= 100 - 8 - 2


def test_the_more_is_known_the_fewer_steps_teach() -> None:
    tree = StepPlan(chain(1), {"a": 1}, {})
    known = [(47, 1000), (127, 1000), (1000, 95), (128, 96), (512, 255), (512, 256), (1024, 511), (1024, 512)]
    assert [steps_per_lesson(*each) for each in known] == [1, 2, 2, 4, 4, 8, 8, 16]
    settled = [(0, 0, 47), (0, 0, 48), (127, 1000, 48), (512, 256, 48)]
    assert [steps_per_lesson(*each) for each in settled] == [1, 4, 4, 8]
    assert [most_rest(each) for each in (1, 2, 4, 8, 16)] == [3, 3, 7, 15, 31]
    assert [rests_of_a_lesson(tree, each) for each in (1, 2, 16)] == [1, 2, 2]
    assert [rests_of_a_lesson(IDLE_PLAN, each) for each in (1, 2, 16)] == [0, 0, 0]


def test_while_steps_are_not_what_was_foretold_rests_are_short_and_all_of_them_teach() -> None:
    for plan in (StepPlan(chain(1), {"a": 1}, {}), IDLE_PLAN):
        assert {most_rest(each, True) for each in (1, 4, 16)} == {3}
        assert {rests_of_a_lesson(plan, each, True) for each in (1, 4, 16)} == {1}


@pytest.mark.parametrize(("per_lesson", "expected"), [(0, []), (1, [1, 2, 3, 4, 5, 6, 7]), (2, [2, 4, 6])])
def test_one_of_so_many_resting_steps_teaches(per_lesson: int, expected: list[int]) -> None:
    rests = Rests()
    taught: list[int] = []
    for _ in range(8):
        taught.clear()
        rests.count(IDLE_PLAN, 7, per_lesson)
        while rests.take():
            if rests.teaches:
                taught.append(rests.num_rested)
    assert taught == expected


def test_plans_with_trees_rest_longer_and_only_where_they_may() -> None:
    rests, plan = Rests(), StepPlan(chain(1), {"a": 1}, {})
    for _ in range(20):
        rests.count(plan, 0)
        assert not rests.take()
    for most in (15, 3):
        for _ in range(20):
            rests.count(StepPlan(chain(1), {"a": 1}, {}), most)
            while rests.take():
                assert rests.plan == plan
        assert rests.num_rested == most


def test_steps_that_take_far_longer_than_they_should_end_a_rest() -> None:
    rests = Rests()
    for _ in range(20):
        rests.count(IDLE_PLAN, 31)
    for seconds in (2.0, 2.0, 1.0, 2.0, 2.0):
        assert rests.take() and not rests.is_surprised
        rests.see(seconds, 1.0)
    assert rests.take()
    rests.see(2.0, 1.0)
    assert rests.is_surprised and not rests.take()
    rests.count(IDLE_PLAN, 31)
    rests.see(1.0, 1.0)
    assert rests.take() and not rests.is_surprised


def test_a_step_that_learns_leaves_the_plans_around_it_alike() -> None:
    rests = Rests()
    for _ in range(6):
        rests.count(IDLE_PLAN, 7)
    rests.pause()
    assert not rests.take()
    rests.count(IDLE_PLAN, 7)
    assert rests.take()


def test_a_request_that_comes_or_goes_ends_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(TinySettings("auto"))
    planner = AutoPlanner(CostModel(learns=False), PlannerSettings(TreeBounds(4)))
    put_planner(engine, planner)
    monkeypatch.setattr(planner, "_new_plan", lambda load: IDLE_PLAN)
    plans = counted(planner, monkeypatch)
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    engine.add_request("first", (1, 2, 3), params)
    for _ in range(30):
        engine.step()
    assert len(plans) < 18
    before = len(plans)
    engine.add_request("second", (4, 5, 6), params)
    for _ in range(2):
        engine.step()
    assert plans[before:][-1] == 2
    engine.abort("first")
    before = len(plans)
    engine.step()
    assert plans[before:] == [1]


def test_attention_comes_after_six_steps_that_take_half_as_long_again_and_goes_when_that_is_usual() -> None:
    attention, alerts = Attention(), []
    for _ in range(1000):
        attention.see(1.5, 1.0)
        alerts.append(attention.is_alert)
    assert alerts.index(True) == 5
    assert not any(alerts[600:])


def test_planning_is_no_part_of_the_time_of_a_step_that_is_only_glanced_at() -> None:
    class Glanced(RandomPlanner):
        def glance(self, seconds: float, num_accepted: int) -> None:
            seen.append(seconds)

    seen: list[float] = []
    engine, planner = make_engine(TinySettings("auto")), Glanced(0)
    planner.learns, planner.planning_seconds = False, -1000.0
    put_planner(engine, planner)
    engine.add_request("first", (1, 2, 3), SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))
    for _ in range(8):
        engine.step()
    assert seen and min(seen) > 1000.0


def test_a_step_that_repeats_a_plan_was_not_planned() -> None:
    planner = AutoPlanner(FormulaCosts(MACHINES["steep"]), PlannerSettings(TreeBounds(4)))
    took = []
    for _ in range(12):
        if planner.rest() is None:
            planner.plan(load_of([request(0)]))
        took.append(planner.planning_seconds)
    assert took[0] > 0.0 and 0.0 in took


def test_a_request_without_a_tree_fades_for_every_step_that_rested(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = AutoPlanner(FormulaCosts(MACHINES["steep"]), PlannerSettings(TreeBounds(4)))
    faded: list[int] = []
    monkeypatch.setattr(planner.estimator, "fade", lambda name, num_steps: faded.append(num_steps))
    requests, num_steps = [request(index) for index in range(2)], 0
    with_tree = StepPlan(chain(1), {"r0": 1}, {})
    monkeypatch.setattr("aquiline.engine.planner.plan_of", lambda best, growing, kinds: with_tree)
    monkeypatch.setattr("aquiline.engine.planner.most_rest", lambda per_lesson, is_alert: 7)
    for _ in range(20):
        if planner.rest() is None:
            planner.plan(load_of(requests))
        num_steps += 1
    planner.forget("r0")
    assert sum(faded) == num_steps


@pytest.mark.parametrize("seconds", [0.0, 1e3])
def test_no_choice_depends_on_a_clock_where_costs_are_not_learnt(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps that take no time, or minutes, under costs that say otherwise."""

    def choices(factor: float) -> list[StepPlan | None]:
        engine = make_engine(TinySettings(speculate="auto", max_num_seqs=3, lookup="off"))
        planner, chosen = engine.planner, list[StepPlan | None]()
        assert isinstance(planner, AutoPlanner) and not planner.costs.learns
        plan, rest, glance = planner.plan, planner.rest, planner.glance

        def noted(choice: StepPlan | None) -> StepPlan | None:
            chosen.append(choice)
            return choice

        monkeypatch.setattr(planner, "plan", lambda load: noted(plan(load)))
        monkeypatch.setattr(planner, "rest", lambda: noted(rest()))
        monkeypatch.setattr(planner, "glance", lambda _, num_accepted: glance(factor, num_accepted))
        for index in range(3):
            params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
            engine.add_request(str(index), [index + 1, 2, 3], params)
        finish_all(engine)
        return chosen

    assert choices(seconds) == choices(1.0)
