"""Planners that need no thought: off, one shape, and a table of shapes."""

from __future__ import annotations

import numpy as np
import pytest

from aquiline.config import Objective, SpeculateTable, SpeculativeConfig
from aquiline.engine.forecast import scores
from aquiline.engine.planner_choice import MOST_AUTO_NODES, bounds_of, planner_for
from aquiline.errors import InvalidParameterError
from aquiline.speculation import NO_TREE, TreeShape, parse_speculation
from tests.engine.synthetic_costs import load_of, request

TABLE = SpeculateTable(((2, parse_speculation("tree:2x1")), (4, parse_speculation("chain:1"))))


def chosen(config: SpeculativeConfig, num_requests: int) -> TreeShape:
    planner = planner_for(config, bounds_of(config, 100))
    plan = planner.plan(load_of([request(index) for index in range(num_requests)]))
    assert plan.num_draft_tokens is None and plan.num_new_draft_rows is None
    return plan.shape


@pytest.mark.parametrize("num_requests", [0, 1, 7, 500])
@pytest.mark.parametrize("text", ["chain:4", "tree:3x2", "dynamic:steps=3,topk=2,nodes=6"])
def test_fixed_shape_is_used_at_every_load(text: str, num_requests: int) -> None:
    mode = parse_speculation(text)
    assert chosen(SpeculativeConfig(mode), num_requests) == mode.shape


@pytest.mark.parametrize("num_requests", [0, 1, 500])
def test_off_never_grows_a_tree(num_requests: int) -> None:
    assert chosen(SpeculativeConfig(parse_speculation("off")), num_requests) == NO_TREE


@pytest.mark.parametrize(("num_requests", "num_draft_tokens"), [(0, 4), (2, 4), (3, 1), (4, 1), (5, 0), (99, 0)])
def test_a_table_is_looked_up_by_load(num_requests: int, num_draft_tokens: int) -> None:
    assert chosen(SpeculativeConfig(table=TABLE), num_requests).num_draft_tokens == num_draft_tokens


@pytest.mark.parametrize(
    ("text", "most", "children", "places"),
    [
        ("off", 0, 0, 0),
        ("tree:3x2", 9, 3, 9),
        ("dynamic:steps=3,topk=4,nodes=6", 6, 4, 12),
        ("auto", MOST_AUTO_NODES, 8, MOST_AUTO_NODES),
    ],
)
def test_bounds_hold_every_shape(text: str, most: int, children: int, places: int) -> None:
    bounds = bounds_of(SpeculativeConfig(parse_speculation(text)), 100)
    assert (bounds.max_draft_tokens, bounds.max_children, bounds.num_scratch_places) == (most, children, places)


def test_auto_gives_no_node_more_children_than_the_draft_has_tokens() -> None:
    assert bounds_of(SpeculativeConfig(), 3).max_children == 3


@pytest.mark.parametrize("entries", [(), ((0, "off"),), ((2, "off"), (2, "chain:1")), ((3, "off"), (2, "chain:1"))])
def test_a_table_needs_ascending_numbers(entries: tuple[tuple[int, str], ...]) -> None:
    with pytest.raises(InvalidParameterError, match="it needs ascending numbers"):
        SpeculateTable(tuple((most, parse_speculation(text)) for most, text in entries))


def test_a_table_does_not_hold_auto_nor_stand_beside_a_shape() -> None:
    with pytest.raises(InvalidParameterError, match="the table holds auto"):
        SpeculateTable(((1, parse_speculation("auto")),))
    with pytest.raises(InvalidParameterError, match="give only one of them"):
        SpeculativeConfig(parse_speculation("chain:1"), table=TABLE)


@pytest.mark.parametrize("text", ["fast", "slo", "slo:", "slo:0", "slo:-3", "slo:x", "latency:3", ""])
def test_other_objectives_are_refused(text: str) -> None:
    with pytest.raises(InvalidParameterError, match="objective is"):
        Objective(text)


def test_objectives_score_as_they_say() -> None:
    assert Objective("slo:12.5").limit_seconds == 0.0125
    rates, waits = np.array([100.0, 100.0]), np.array([0.0125, 0.013])
    good, bad = scores(Objective("slo:12.5"), rates, waits)
    assert good == 100.0 and bad < 0.0
    rates, waits = np.array([100.0, 900.0]), np.array([0.01, 0.02])
    assert scores(Objective("latency"), rates, waits).argmax() == 0
    assert scores(Objective(), rates, waits).argmax() == 1
