"""Forecasts that are off, of what hardly runs and of what always runs, are set right by what came of them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from aquiline.engine.acceptance import USUAL_SKILL
from aquiline.engine.cut_candidates import CUTS
from aquiline.engine.planner import AutoPlanner
from aquiline.engine.planner_bursts import BURST_STEPS, Burst
from aquiline.engine.planner_decisions import PlannerSettings
from aquiline.engine.planner_hindsight import AS_FORETOLD, STEPS_TO_WARM_UP, Foretold, Hindsight
from aquiline.engine.planner_rest import IDLE_PLAN
from tests.engine.confident_drafts import ConfidentDraft, CutMachine, rate_of, step_size
from tests.engine.synthetic_costs import FormulaCosts, load_of, request
from tests.engine.test_planner_confidence import BOUNDS, fresh_load, straight

FloatArray = NDArray[np.float64]
DRAFT = ConfidentDraft((1.0, 2.0))


@dataclass
class MisjudgedCosts(FormulaCosts):
    """Forwards with trees are foretold to take so many times what they take."""

    trees_foretold: float = 1.0

    def verify_seconds_of(self, num_rows: FloatArray, context: int, row_context: FloatArray) -> FloatArray:
        seconds = super().verify_seconds_of(num_rows, context, row_context)
        return np.where(row_context > context, seconds * self.trees_foretold, seconds)


def test_times_are_corrected_by_what_steps_took_and_gains_by_what_they_brought() -> None:
    hindsight = Hindsight()
    for _ in range(STEPS_TO_WARM_UP + 12):
        hindsight.see(Foretold(4, True, 0.005, 6.0), 0.0055, 6)
    hindsight.refresh()
    correction = hindsight.of(4)
    assert correction.tree_seconds == pytest.approx(1.05, abs=0.003)
    assert correction.plain_seconds == 1.0 and correction.tree_gain == 1.0
    assert hindsight.of(5) == correction and hindsight.of(8) is AS_FORETOLD


def test_tokens_that_do_not_come_are_expected_less() -> None:
    hindsight = Hindsight()
    for _ in range(400):
        known = hindsight.of(2)
        hindsight.see(Foretold(2, True, 0.005, 2.0 + 2.0 * known.tree_gain, known), 0.005, 3)
        hindsight.refresh()
    assert 0.6 <= hindsight.of(2).tree_gain < 0.7
    assert hindsight.version < 60


def test_what_is_corrected_already_is_not_corrected_again() -> None:
    hindsight = Hindsight()
    for _ in range(1000):
        known = hindsight.of(1)
        hindsight.see(Foretold(1, False, 0.002 * known.plain_seconds, 1.0, known), 0.0022, 1)
        hindsight.refresh()
    assert hindsight.of(1).plain_seconds == pytest.approx(1.1, abs=0.015)


def test_first_steps_of_a_sort_say_nothing_of_times() -> None:
    hindsight = Hindsight()
    for _ in range(50):
        for _ in range(STEPS_TO_WARM_UP):
            hindsight.see(Foretold(1, True, 0.002, 1.5), 0.004, 1)
        hindsight.see(Foretold(1, False, 0.002, 1.0), 0.002, 1)
    hindsight.refresh()
    assert hindsight.of(1).tree_seconds == 1.0


def test_what_has_changed_is_learnt_anew() -> None:
    hindsight = Hindsight()
    for _ in range(40):
        hindsight.see(Foretold(2, True, 0.002, 4.0), 0.003, 2)
    hindsight.refresh()
    assert hindsight.of(2).tree_seconds > 1.2 and hindsight.of(2).tree_gain < 0.8
    assert hindsight.has_seen(3, True) and not hindsight.has_seen(2, False) and not hindsight.has_seen(4, True)
    hindsight.forget_times()
    hindsight.refresh()
    assert hindsight.of(2).tree_seconds == 1.0 and hindsight.of(2).tree_gain < 0.8
    assert hindsight.has_seen(2, True)
    hindsight.forget_gains()
    hindsight.refresh()
    assert hindsight.of(2) == AS_FORETOLD


def test_an_accident_counts_within_bounds() -> None:
    hindsight = Hindsight()
    for step in range(20):
        hindsight.see(Foretold(1, False, 0.002, 1.0), 2.0 if step == 10 else 0.002, 1)
    hindsight.refresh()
    assert hindsight.of(1).plain_seconds < 1.05


@pytest.mark.parametrize(
    ("trees_foretold", "num_requests", "row_seconds"), [(1.15, 1, 0.4), (1.15, 4, 0.07), (0.87, 1, 0.7), (0.87, 4, 0.2)]
)
def test_the_better_way_is_found_though_trees_are_misjudged(
    trees_foretold: float, num_requests: int, row_seconds: float
) -> None:
    """By 15 % too dear, trees look worse than plain steps although they are better; too cheap, the other way round."""
    costs = MisjudgedCosts(partial(straight, row_seconds), trees_foretold=trees_foretold)
    requests = [request(index) for index in range(num_requests)]
    load = load_of(requests)
    plain = num_requests / costs.predict(step_size(load, (), 0)).total
    rates = []
    for seed in range(3):
        made = CutMachine(AutoPlanner(costs, PlannerSettings(BOUNDS)), costs, random.Random(seed))
        rates.append(made.steps(1500, lambda: fresh_load(requests), lambda _: DRAFT).rate(500))
    shapes = [cut.shape(BOUNDS) for cut in CUTS if cut.threshold > 3 and cut.width == 0]
    best = max(rate_of(costs, load, DRAFT, shape, 600 // num_requests) for shape in shapes)
    assert sum(rates) / len(rates) > 0.94 * max(best, plain)


def test_a_burst_begins_when_drafts_have_caught_up_and_then_runs_in_a_row() -> None:
    requests = [request(index) for index in range(2)]
    planner = AutoPlanner(FormulaCosts(partial(straight, 0.01)), PlannerSettings(BOUNDS))
    best = max(planner.forecasts(load_of(requests))[1:], key=lambda each: each.score)
    burst = Burst.of(best, requests, [USUAL_SKILL] * 2)
    burst.follow(IDLE_PLAN)
    assert burst.goes_on(requests) and not burst.is_running and burst.repeated() is None
    burst.follow(burst.wanted)
    repeated = [burst.repeated() for _ in range(BURST_STEPS)]
    assert repeated == [burst.wanted] * (BURST_STEPS - 1) + [None]
    assert not burst.goes_on(requests)


def test_a_burst_ends_with_its_requests() -> None:
    requests = [request(index) for index in range(2)]
    planner = AutoPlanner(FormulaCosts(partial(straight, 0.01)), PlannerSettings(BOUNDS))
    burst = Burst.of(planner.forecasts(load_of(requests))[1], requests, [USUAL_SKILL] * 2)
    assert burst.goes_on(requests) and not burst.goes_on(requests[:1])
