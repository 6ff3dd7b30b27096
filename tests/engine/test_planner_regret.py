"""P9: on costs that are known, the planner is within a few per cent of the best anyone could choose, plain included."""

from __future__ import annotations

import random
import time
from itertools import pairwise

import pytest

from aquiline.config import Objective
from aquiline.engine.acceptance import AcceptanceEstimator
from aquiline.engine.planner import AutoPlanner
from aquiline.engine.planner_decisions import PlannerSettings
from aquiline.engine.tree_families import TreeBounds
from aquiline.speculation import NO_TREE, StaticTree
from tests.engine.synthetic_costs import MACHINES, RATES, FormulaCosts, Machine, best_rate, load_of, request, true_rate

BATCHES = (1, 2, 4, 8, 16, 32, 100, 512)


def planner_for(
    costs: FormulaCosts,
    max_nodes: int = 64,
    objective: str = "throughput",
    estimator: AcceptanceEstimator | None = None,
) -> AutoPlanner:
    return AutoPlanner(costs, PlannerSettings(TreeBounds(max_nodes), Objective(objective)), estimator)


def taught(costs: FormulaCosts, rates_name: str, num_paths: int = 2400, max_nodes: int = 64) -> AutoPlanner:
    """A planner that has seen many trees of the draft at a load where they cost nothing."""
    free = FormulaCosts(lambda rows: 1.0, 0.0, 0.0)
    planner = planner_for(free, max_nodes)
    Machine(planner, free, random.Random(1)).steps(
        num_paths // 4, [request(index) for index in range(4)], lambda _: RATES[rates_name]
    )
    for index in range(4):
        planner.forget(f"r{index}")
    return planner_for(costs, max_nodes, estimator=planner.estimator)


@pytest.mark.parametrize("rates_name", sorted(RATES))
@pytest.mark.parametrize("machine", sorted(MACHINES))
def test_the_choice_is_near_the_best_at_every_batch_size(machine: str, rates_name: str) -> None:
    costs, rates = FormulaCosts(MACHINES[machine]), RATES[rates_name]
    planner = taught(costs, rates_name)
    for batch in BATCHES:
        load = load_of([request(index) for index in range(batch)])
        plan = planner.plan(load)
        assert isinstance(plan.shape, StaticTree)
        held = plan.num_draft_tokens or {}
        sizes = [held.get(each.request_id, 0) for each in load.growing]
        chosen = true_rate(costs, load, plan.shape, sizes, rates)
        best = best_rate(costs, load, rates)
        plain = true_rate(costs, load, plan.shape, [0] * batch, rates)
        assert chosen >= 0.95 * best, (batch, plan.shape.num_draft_tokens, chosen / best)
        assert chosen >= 0.98 * plain, batch


def test_requests_that_draft_badly_leave_their_nodes_to_others() -> None:
    costs = FormulaCosts(lambda rows: 1.0 + 0.03 * rows)
    planner = taught(costs, "fair")
    requests = [request(index) for index in range(12)]
    machine = Machine(planner, costs, random.Random(2))
    machine.steps(80, requests, lambda each: RATES["good" if int(each.request_id[1:]) < 4 else "useless"])
    planner.plan(load_of(requests))
    assert planner.last is not None
    held = planner.last.candidate.num_draft_tokens
    sizes = [held[planner.estimator.skill(each.request_id)] for each in requests]
    assert min(sizes[:4]) >= 1
    assert sum(sizes[4:]) <= 2


@pytest.mark.parametrize("machine", sorted(MACHINES))
def test_noise_in_the_measured_times_does_not_make_the_choice_restless(machine: str) -> None:
    costs = FormulaCosts(MACHINES[machine], noise=0.15, context_cost=0.0)
    run = Machine(planner_for(costs), costs, random.Random(3)).steps(
        600, [request(index) for index in range(6)], lambda _: RATES["fair"]
    )
    assert sum(low != high for low, high in pairwise(run.keys[200:])) <= 12
    best = best_rate(costs, load_of([request(index) for index in range(6)]), RATES["fair"])
    assert run.rate(200) >= 0.93 * best


def test_a_useless_draft_is_left_within_50_steps_and_hardly_costs_anything_after() -> None:
    costs = FormulaCosts(MACHINES["convex"], context_cost=0.0)
    for batch in (1, 4, 16):
        requests = [request(index) for index in range(batch)]
        plain = true_rate(costs, load_of(requests), NO_TREE, [0] * batch, [])
        run = Machine(planner_for(costs), costs, random.Random(4)).steps(400, requests, lambda _: RATES["useless"])
        assert sum(size > 0 for size in run.choices[50:]) <= 0.1 * 350
        assert run.rate(50) >= 0.98 * plain


def test_a_draft_that_becomes_useful_is_taken_up_again() -> None:
    costs = FormulaCosts(MACHINES["flat"])
    machine = Machine(planner_for(costs), costs, random.Random(5))
    requests = [request(index) for index in range(4)]
    machine.steps(300, requests, lambda _: RATES["useless"])
    run = machine.steps(3000, requests, lambda _: RATES["good"])
    assert sum(size > 0 for size in run.choices[-200:]) >= 180


def test_load_that_swings_across_break_even_never_makes_a_step_stand_out() -> None:
    costs = FormulaCosts(lambda rows: max(1.0, 0.2 * rows))
    planner = taught(costs, "fair")
    machine = Machine(planner, costs, random.Random(6))
    requests = [request(index) for index in range(16)]
    medians = {}
    for phase in range(12):
        size = (1, 16)[phase % 2]
        run = machine.steps(50, requests[:size], lambda _: RATES["fair"])
        medians[size] = sorted(run.seconds[-40:])[20]
    assert sum(size > 0 for size in run.choices[60:100]) <= 4
    assert all(run.choices[120:140])
    for seconds in run.seconds[50:]:
        assert seconds <= 1.15 * max(medians.values())
        assert seconds <= 1.15 * medians[1] or seconds >= 0.8 * medians[16]


def test_a_debt_is_bounded_and_paid_in_parts() -> None:
    costs = FormulaCosts(lambda rows: 1.0 + 0.5 * rows)
    planner = taught(costs, "fair")
    requests = [request(index) for index in range(8)]
    machine = Machine(planner, costs, random.Random(7))
    most = 0
    for _ in range(900):
        machine.steps(1, requests, lambda _: RATES["fair"])
        most = max(most, max(each.num_computed_tokens - each.num_draft_rows for each in requests))
    assert 256 < most <= 600


def test_objectives_differ_where_the_costs_say_so() -> None:
    costs = FormulaCosts(MACHINES["knee"])
    planners = {name: planner_for(costs, objective=name) for name in ("throughput", "latency")}
    requests = [request(index) for index in range(10)]
    for planner in planners.values():
        Machine(planner, costs, random.Random(8)).steps(
            60, requests, lambda each: RATES["good" if int(each.request_id[1:]) < 5 else "fair"]
        )
    load = load_of(requests, num_other_rows=64)
    plans = {name: planner.plan(load) for name, planner in planners.items()}
    forecasts = {name: planner.last for name, planner in planners.items()}
    throughput, latency = forecasts["throughput"], forecasts["latency"]
    assert throughput is not None and latency is not None
    assert plans["throughput"].num_draft_tokens != plans["latency"].num_draft_tokens
    assert latency.wait < throughput.wait


def test_slo_takes_the_most_throughput_that_is_fast_enough() -> None:
    costs = FormulaCosts(MACHINES["knee"])
    requests = [request(index) for index in range(24)]
    planner = taught(costs, "good")
    forecasts = planner.forecasts(load_of(requests))
    fastest = min(forecast.wait for forecast in forecasts)
    limit = 1.05 * fastest
    strict = planner_for(costs, objective=f"slo:{1000 * limit:.3f}", estimator=planner.estimator)
    strict.plan(load_of(requests))
    assert strict.last is not None and strict.last.wait <= limit
    impossible = planner_for(costs, objective=f"slo:{100 * fastest:.3f}", estimator=planner.estimator)
    impossible.plan(load_of(requests))
    assert impossible.last is not None and impossible.last.wait <= 1.02 * fastest


def test_trees_never_take_more_rows_than_the_step_has() -> None:
    costs = FormulaCosts(MACHINES["flat"])
    planner = taught(costs, "good")
    requests = [request(index) for index in range(8)]
    for most in (0, 3, 8, 20, 64):
        load = load_of(requests)
        limited = type(load)(load.num_roots, load.growing, load.speculating, load.context, 0, most)
        assert sum((planner.plan(limited).num_draft_tokens or {}).values()) <= most


def test_a_plan_for_32_requests_takes_less_than_100_microseconds() -> None:
    costs = FormulaCosts(MACHINES["knee"])
    planner = taught(costs, "fair", max_nodes=32)
    requests = [request(index) for index in range(32)]
    machine = Machine(planner, costs, random.Random(9))
    machine.steps(20, requests, lambda _: RATES["fair"])
    took = []
    for step in range(300):
        load = load_of([*requests[: 31 + step % 2]])
        started = time.perf_counter()
        planner.plan(load)
        took.append(time.perf_counter() - started)
    assert sorted(took)[100] < 1e-4


def test_after_long_plain_decoding_drafts_follow_few_new_requests() -> None:
    costs = FormulaCosts(lambda rows: max(1.0, 0.3 * rows))
    planner = taught(costs, "fair")
    assert planner.wants_draft(request(0))
    Machine(planner, costs, random.Random(10)).steps(
        300, [request(index) for index in range(8)], lambda _: RATES["fair"]
    )
    assert sum(planner.wants_draft(request(index)) for index in range(80)) == 10
    assert not planner.speculates
