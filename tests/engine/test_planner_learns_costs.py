"""A profile that is wrong does not last: steps correct it while they run."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest

from aquiline.engine.cost_model import CostModel, StepSeconds, StepSize
from aquiline.engine.planner import AutoPlanner
from aquiline.engine.planner_decisions import PlannerSettings
from aquiline.engine.tree_families import TreeBounds
from aquiline.speculation import NO_TREE
from tests.engine.synthetic_costs import (
    MACHINES,
    RATES,
    FormulaCosts,
    Machine,
    best_rate,
    exact_profile,
    load_of,
    request,
    true_rate,
)

KNOTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


@dataclass
class TwoMinds:
    """The planner believes a profile; the machine is another."""

    machine: Machine
    costs: FormulaCosts

    @classmethod
    def of(cls, believed: str, true: str, noise: float, seed: int = 3) -> TwoMinds:
        costs = FormulaCosts(MACHINES[true], noise=noise, context_cost=0.0)
        planner = AutoPlanner(CostModel(exact_profile(MACHINES[believed], KNOTS)), PlannerSettings(TreeBounds(32)))
        return cls(Machine(planner, costs, random.Random(seed)), costs)


@pytest.mark.parametrize(
    ("believed", "true"), [("flat", "steep"), ("flat", "knee"), ("steep", "flat"), ("knee", "flat")]
)
@pytest.mark.parametrize("batch", [1, 6])
def test_a_foreign_profile_does_not_make_speculation_slower_than_plain(believed: str, true: str, batch: int) -> None:
    """One that is too hopeful is found out within some hundred steps; one that is too gloomy costs what it forgoes."""
    shares = []
    for seed in range(16):
        minds = TwoMinds.of(believed, true, noise=0.1, seed=seed)
        requests = [request(index) for index in range(batch)]
        run = minds.machine.steps(2400, requests, lambda _: RATES["fair"])
        load = load_of(requests)
        plain = true_rate(minds.costs, load, NO_TREE, [0] * batch, RATES["fair"])
        assert run.rate(1200) >= 0.95 * plain
        shares.append(run.rate(1200) / best_rate(minds.costs, load, RATES["fair"], 32))
    if believed == "flat":
        # Sizes that were never tried are found by chance, sooner or later.
        assert sum(shares) / len(shares) >= 0.88


def test_a_machine_that_changes_its_mood_is_followed() -> None:
    """Rows become dear while the engine runs, as beside another program."""
    costs = FormulaCosts(MACHINES["flat"], noise=0.05, context_cost=0.0)
    planner = AutoPlanner(CostModel(exact_profile(MACHINES["flat"], KNOTS)), PlannerSettings(TreeBounds(32)))
    machine = Machine(planner, costs, random.Random(4))
    requests = [request(index) for index in range(8)]
    machine.steps(300, requests, lambda _: RATES["fair"])
    assert sum(machine.run.choices[-50:]) > 50 * 8
    costs.verify = MACHINES["steep"]
    machine.steps(600, requests, lambda _: RATES["fair"])
    assert sum(size > 0 for size in machine.run.choices[-100:]) <= 10
    assert machine.run.rate(-100) >= 0.95 * true_rate(costs, load_of(requests), NO_TREE, [0] * 8, RATES["fair"])


def test_predictions_come_within_a_tenth_of_what_steps_take() -> None:
    truth = FormulaCosts(MACHINES["convex"], noise=0.05, context_cost=0.0)
    model = CostModel(exact_profile(MACHINES["flat"], KNOTS))
    dice = random.Random(5)
    sizes = [StepSize(rows, rows, max(1, rows // 3)) for rows in (1, 3, 6, 12, 24, 48)]
    for _ in range(1500):
        size = dice.choice(sizes)
        right = truth.predict(size)
        factor = 1.0 + dice.gauss(0.0, 0.05)
        model.observe(size, StepSeconds(*(factor * getattr(right, name) for name in StepSeconds.__slots__)))
    for size in sizes:
        assert model.predict(size).verify == pytest.approx(truth.predict(size).verify, rel=0.1)
    between = replace(sizes[3], num_rows=18)
    assert model.predict(between).verify == pytest.approx(truth.predict(between).verify, rel=0.15)
