"""Costs of steps: how parts follow from whole steps, and that a measured model gives sensible ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aquiline.errors import InvalidParameterError
from aquiline.speculation import NO_TREE, StaticTree, chain, parse_speculation
from aquiline.training.costs import StepCosts, StepTimes, costs_of, interpolated, measure_costs
from tests.training.toy_models import open_toy, write_toys

TIMES = {
    "off": StepTimes(0.0, 3.0),
    "chain:1": StepTimes(0.4, 3.2),
    "chain:2": StepTimes(0.5, 9.9),
    "tree:4": StepTimes(0.4, 4.0),
    "tree:2": StepTimes(0.4, 3.1),
    "tree:4x1": StepTimes(0.8, 9.9),
}


@pytest.mark.parametrize(("count", "expected"), [(2, 1.0), (3, 2.0), (4, 3.0), (6, 5.0), (1, 1.0)])
def test_lines_between_points(count: int, expected: float) -> None:
    assert interpolated(((2, 1.0), (4, 3.0)), count) == expected


def test_parts_follow_from_whole_steps() -> None:
    costs = costs_of(TIMES, context=64)
    # 3 rows were faster than 2: noise, so they count as much.
    assert costs.rows_ms == ((1, 3.0), (2, 3.2), (3, 3.2), (5, 4.0))
    assert costs.extend_ms == 0.4 and costs.plain_ms == 3.0
    assert costs.levels_ms == ((1, 0.1), (4, 0.4))


def test_a_step_is_the_sum_of_its_parts() -> None:
    costs = costs_of(TIMES, context=64)
    assert costs.step_ms(NO_TREE) == 3.0
    assert costs.step_ms(chain(1)) == pytest.approx(3.2 + 0.4)
    assert costs.step_ms(chain(3)) == pytest.approx(3.6 + 0.4 + 2 * 0.1)  # 4 rows, between 3 and 5
    shape = parse_speculation("tree:2x1").shape
    assert isinstance(shape, StaticTree)
    assert costs.step_ms(shape) == pytest.approx(4.0 + 0.4 + 0.2)  # 5 rows, one level of 2


def test_costs_survive_a_file() -> None:
    costs = costs_of(TIMES, context=64)
    assert StepCosts.from_json(json.loads(json.dumps(costs.as_json()))) == costs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toys(tmp_path_factory.mktemp("toys"))


def test_a_model_is_measured(folder: Path) -> None:
    rounds: list[int] = []
    llm = open_toy(folder)
    costs = measure_costs(llm, llm.tokenizer.encode("The eagle"), num_rounds=2, on_round=rounds.append)
    assert rounds == [1, 2] and costs.context == 96
    assert [count for count, _ in costs.rows_ms] == [1, 2, 3, 4, 5, 7, 9, 13, 17, 25]
    assert all(before[1] <= after[1] for before, after in zip(costs.rows_ms, costs.rows_ms[1:], strict=False))
    assert costs.plain_ms > 0.0 and costs.extend_ms > 0.0
    assert not llm.engine.has_unfinished


def test_without_a_draft_there_is_nothing_to_measure(folder: Path) -> None:
    with pytest.raises(InvalidParameterError, match="no draft model was loaded"):
        measure_costs(open_toy(folder, "off", None), [1, 2], num_rounds=1)
