"""The planner's table and its fixed shapes."""

from __future__ import annotations

import pytest

from aquiline.config import SpeculativeConfig
from aquiline.engine.planner import Planner
from aquiline.speculation import NO_TREE, parse_speculation


def planner(text: str) -> Planner:
    return Planner(SpeculativeConfig(parse_speculation(text)))


@pytest.mark.parametrize("num_decode_requests", [0, 1, 7, 500])
@pytest.mark.parametrize("text", ["chain:4", "tree:3x2", "dynamic:steps=3,topk=2,nodes=6"])
def test_fixed_shape_is_used_at_every_load(text: str, num_decode_requests: int) -> None:
    assert planner(text).choose(num_decode_requests) == parse_speculation(text).shape


@pytest.mark.parametrize("num_decode_requests", [0, 1, 500])
def test_off_never_grows_a_tree(num_decode_requests: int) -> None:
    assert planner("off").choose(num_decode_requests) == NO_TREE


@pytest.mark.parametrize(
    ("num_decode_requests", "num_draft_tokens", "depth"),
    [(0, 1, 1), (1, 1, 1), (2, 1, 1), (3, 0, 0), (500, 0, 0)],
)
def test_auto_shrinks_with_the_load(num_decode_requests: int, num_draft_tokens: int, depth: int) -> None:
    shape = planner("auto").choose(num_decode_requests)
    assert (shape.num_draft_tokens, shape.depth) == (num_draft_tokens, depth)


@pytest.mark.parametrize("text", ["auto", "off", "chain:4", "dynamic:steps=3,topk=2,nodes=6"])
def test_shapes_lists_exactly_what_may_be_chosen(text: str) -> None:
    assert set(planner(text).shapes) == {planner(text).choose(load) for load in range(40)}
