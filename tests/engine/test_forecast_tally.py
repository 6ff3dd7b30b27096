"""Forecasts beside what came of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aquiline.engine.cost_model import CostModel, StepSeconds, StepSize
from aquiline.engine.forecast import Forecast
from aquiline.engine.forecast_tally import ForecastTally
from aquiline.engine.plan import StepLoad, StepReport, TreeOutcome
from aquiline.engine.planner import AutoPlanner
from aquiline.engine.planner_candidates import PLAIN
from aquiline.engine.planner_decisions import PlannerSettings
from aquiline.engine.tree_families import TreeBounds
from aquiline.llm import LLM
from aquiline.request import SamplingParams
from aquiline.speculation import NO_TREE, StaticTree, parse_speculation
from tests.engine.synthetic_costs import load_of, request
from tests.server.serving import toy_llm, write_toy

SECONDS = StepSeconds(verify=0.006, draft=0.002, sample=0.001, host=0.001)
CHAIN = StaticTree((-1, 0, 1, 2), (0, 0, 0, 0))
TREE = Forecast(PLAIN, num_draft_tokens=6, expected=3.5, seconds=0.008, wait=0.0, score=0.0)
GROWN = StepReport(CHAIN, StepSize(9, 9, 3), SECONDS, [TreeOutcome("a", 3, (1, 2)), TreeOutcome("b", 3, ())])
NO_NODES = replace(TREE, num_draft_tokens=0, expected=3.0)
PLAIN_STEP = replace(GROWN, shape=NO_TREE, outcomes=())


def test_sums_become_means_of_a_step() -> None:
    tally = ForecastTally()
    tally.add(TREE, GROWN)
    tally.add(NO_NODES, PLAIN_STEP)
    assert tally.figures() == {
        "num_steps": 2,
        "expected_step_ms": pytest.approx(8.0),
        "measured_step_ms": pytest.approx(10.0),
        "expected_tokens": pytest.approx((3.5 + 3.0) / 2),
        "committed_tokens": pytest.approx((5 + 3) / 2),
        "num_steps_by_shape": {"chain:3": 1, "off": 1},
    }


@pytest.mark.parametrize(
    ("forecast", "report"),
    [
        pytest.param(None, GROWN, id="nothing-forecast"),
        pytest.param(TREE, replace(GROWN, seconds=None), id="prefill"),
        pytest.param(replace(TREE, num_draft_tokens=5), GROWN, id="another-tree"),
        pytest.param(NO_NODES, GROWN, id="probe"),
    ],
)
def test_steps_that_ran_otherwise_are_left_out(forecast: Forecast | None, report: StepReport) -> None:
    tally = ForecastTally()
    tally.add(forecast, report)
    assert tally.figures() is None


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return toy_llm(write_toy(tmp_path_factory.mktemp("toy")), "auto")


def test_an_engine_compares_when_it_is_asked_to(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
    tally = llm.engine.compare_forecasts()
    llm.generate([[1, 2, 3], [4, 5, 6]], params)
    found = tally.figures()
    assert found is not None and 1 <= found["num_steps"] <= 16
    assert found["measured_step_ms"] > 0.0 and found["committed_tokens"] >= 1.0
    again = llm.engine.compare_forecasts()
    assert again is not tally and again.figures() is None


def test_a_fixed_tree_is_not_forecast(llm: LLM) -> None:
    mode = parse_speculation("chain:1")
    fixed = llm.reconfigured(replace(llm.config, speculative=replace(llm.config.speculative, mode=mode)))
    tally = fixed.engine.compare_forecasts()
    fixed.generate([[1, 2, 3]], SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True))
    assert tally.figures() is None


def test_steps_in_which_nothing_may_grow_are_forecast_as_plain_ones() -> None:
    planner = AutoPlanner(CostModel(learns=False), PlannerSettings(TreeBounds(8)))
    planner.plan(StepLoad(3, (), (), context=300))
    forecast = planner.last
    assert forecast is not None and (forecast.num_draft_tokens, forecast.expected) == (0, 3.0)
    plain = planner.forecasts(load_of([request(index) for index in range(3)]))[0]
    assert forecast.seconds == pytest.approx(plain.seconds, rel=0.2)
