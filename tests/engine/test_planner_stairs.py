"""P9 where costs have stairs, and on a machine whose memory and arithmetic have moods of their own."""

from __future__ import annotations

import random

import pytest

from aquiline.engine.acceptance_prior import AcceptancePrior, AcceptancePriors
from aquiline.engine.cost_model import CostModel
from aquiline.engine.forecast import Forecast
from aquiline.engine.planner import AutoPlanner
from aquiline.engine.planner_decisions import PlannerSettings
from aquiline.engine.tree_families import TreeBounds
from aquiline.speculation import StaticTree, chain
from tests.engine.synthetic_costs import (
    RATES,
    FormulaCosts,
    Machine,
    best_rate,
    exact_profile,
    load_of,
    request,
    true_rate,
)

STAIRS = (16, 32, 48, 64)
ROWS = (1, 2, 4, 8, 16, 17, 24, 32, 33, 48, 49, 64, 65, 96)


def stepped(rows: int) -> float:
    """Panels of 16 rows; a row within a panel costs little."""
    return 1.0 + 0.01 * rows + 0.5 * ((rows - 1) // 16)


def planned(batch: int, rates_name: str) -> tuple[Forecast, list[int], FormulaCosts]:
    """The choice of a planner that knows the draft, and how many nodes each request holds."""
    costs = FormulaCosts(stepped, stairs=STAIRS, context_cost=0.0)
    priors = AcceptancePriors(AcceptancePrior(tuple(map(tuple, RATES[rates_name]))))
    planner = AutoPlanner(costs, PlannerSettings(TreeBounds(32), priors=priors))
    requests = [request(index) for index in range(batch)]
    held = planner.plan(load_of(requests)).num_draft_tokens or {}
    assert planner.last is not None
    return planner.last, [held.get(each.request_id, 0) for each in requests], costs


@pytest.mark.parametrize("rates_name", ["fair", "good"])
@pytest.mark.parametrize("batch", [1, 2, 3, 5, 7, 9, 11, 13, 14, 20, 27])
def test_trees_end_below_stairs(batch: int, rates_name: str) -> None:
    choice, sizes, costs = planned(batch, rates_name)
    load = load_of([request(index) for index in range(batch)])
    rates = RATES[rates_name]
    shape = choice.candidate.shape
    assert isinstance(shape, StaticTree)
    own = true_rate(costs, load, shape, sizes, rates)
    assert own >= 0.96 * best_rate(costs, load, rates, 32)
    # Someone who lets as many requests as fit below the stair hold one node or two does not do better either.
    for size in (1, 2):
        for stair in STAIRS:
            num_holding = min(batch, (stair - batch) // size)
            if num_holding > 0:
                partly = [size] * num_holding + [0] * (batch - num_holding)
                assert own >= 0.96 * true_rate(costs, load, chain(size), partly, rates)


def test_some_requests_go_without_where_one_row_more_costs_a_stair() -> None:
    choice, sizes, _ = planned(13, "good")
    assert choice.room and 13 + sum(sizes) in STAIRS
    assert 0 < sum(size > 0 for size in sizes) < 13
    assert choice.num_draft_tokens == sum(sizes)


class Moody(FormulaCosts):
    """The part of one row and that of further rows by factors of their own."""

    def __init__(self, first: float, more: float) -> None:
        super().__init__(
            lambda rows: self.first * stepped(1) + self.more * (stepped(rows) - stepped(1)),
            noise=0.05,
            context_cost=0.0,
        )
        self.first, self.more = first, more


@pytest.mark.parametrize("batch", [1, 4, 12])
def test_a_profile_of_one_mood_serves_in_all_others(batch: int) -> None:
    """Moods change every 250 steps; 50 steps behind a change the choice is near the best again."""
    costs = Moody(1.0, 1.0)
    planner = AutoPlanner(CostModel(exact_profile(stepped, ROWS)), PlannerSettings(TreeBounds(32)))
    machine = Machine(planner, costs, random.Random(5))
    requests = [request(index) for index in range(batch)]
    machine.steps(200, requests, lambda _: RATES["fair"])
    for first, more in ((1.4, 0.8), (0.7, 1.4), (1.4, 1.4), (0.7, 0.7), (1.0, 1.4), (1.3, 0.7)):
        costs.first, costs.more = first, more
        start = len(machine.run.seconds)
        machine.steps(250, requests, lambda _: RATES["fair"])
        best = best_rate(costs, load_of(requests), RATES["fair"], 32)
        # What 200 steps of one request commit is a matter of luck by some per cent.
        assert machine.run.rate(start + 50) >= 0.86 * best, (first, more)
