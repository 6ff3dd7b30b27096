"""Trees grown in one native call: those of the general path on the same draft, with the same K/V, bit for bit."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from aquiline.errors import InvalidParameterError
from aquiline.kernels import cpu
from aquiline.kernels.cpu.extension import native
from aquiline.models.native_eagle import NativeEagle
from aquiline.models.native_growth import NativeGrowth
from aquiline.request import SamplingParams
from aquiline.speculation import DynamicTree, StaticTree, TreeShape, parse_speculation
from tests.kernels.cpu.growth_case import LAYOUT, Grown, GrowthCase, Progress, native_draft
from tests.kernels.cpu.levels import with_levels
from tests.tiny import VOCAB

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason=cpu.why_not())

STATIC = ("chain:1", "chain:4", "tree:4x2x1", "paths:0,1,00,01,10,000,100")
DYNAMIC = ("dynamic:steps=1,topk=3,nodes=2", "dynamic:steps=4,topk=3,nodes=9", "dynamic:steps=3,topk=4,nodes=36")
SPARSE = (
    "dynamic:steps=4,topk=3,nodes=9,survival=0.0001",
    "dynamic:steps=4,topk=3,nodes=9,survival=0.03",
    "dynamic:steps=3,topk=4,nodes=36,survival=0.001",
)
GREEDY = SamplingParams(temperature=0)
PARAMS = {
    "greedy": [GREEDY] * 4,
    "random": [SamplingParams(temperature=1.0), SamplingParams(temperature=0.6, top_p=0.8), GREEDY, GREEDY],
    "penalties": [
        SamplingParams(temperature=0, repetition_penalty=1.4),
        SamplingParams(temperature=0.9, presence_penalty=0.8, frequency_penalty=0.4),
        GREEDY,
        GREEDY,
    ],
    "biases": [
        SamplingParams(temperature=0, logit_bias={5: 4.0, 11: -3.0}, banned_token_ids=(7, 9)),
        SamplingParams(temperature=0.8, allowed_token_ids=tuple(range(1, 40))),
        SamplingParams(temperature=0, min_tokens=50, stop_token_ids=(3, 5, 17, 21)),
        GREEDY,
    ],
}


def case(params: str = "random", dtype: torch.dtype = torch.bfloat16) -> GrowthCase:
    """Three trees and a request that only catches up: one row behind, a long prefill, nearly at its limit."""
    first, second, third, fourth = PARAMS[params]
    return GrowthCase(
        [
            Progress(38, 39, 9, first, 3),
            Progress(0, 70, 9, second, 60),
            Progress(3, 6, 2, third, 5),
            Progress(9, 11, 0, fourth, 1),
        ],
        dtype,
    )


def parsed(text: str) -> TreeShape:
    shape = parse_speculation(text).shape
    assert shape is not None
    return shape


def assert_equal(mine: Grown, expected: Grown, are_places_shared: bool = True) -> None:
    """Trees agree in every node that a request may have, K/V in every page and in all scratch that both wrote.

    Args:
        are_places_shared: both give the same scratch places to the same nodes.
    """
    assert mine.tree is not None and expected.tree is not None
    valid = expected.tree.is_valid
    assert mine.tree.is_valid.tolist() == valid.tolist()
    assert mine.tree.parents.tolist() == expected.tree.parents.tolist()
    assert mine.tree.depths[valid].tolist() == expected.tree.depths[valid].tolist()
    assert mine.tree.tokens[valid].tolist() == expected.tree.tokens[valid].tolist()
    assert (mine.tree.max_depth, mine.tree.max_children) == (expected.tree.max_depth, expected.tree.max_children)
    assert mine.tree.row_counts == expected.tree.row_counts or expected.tree.row_counts is None
    for own, other in ((mine.keys, expected.keys), (mine.values, expected.values)):
        own, other = own[:, : LAYOUT.padding_slot], other[:, : LAYOUT.padding_slot]
        if are_places_shared:
            assert torch.equal(own.nan_to_num(), other.nan_to_num())
        else:
            assert torch.equal(own[:, : LAYOUT.num_page_slots], other[:, : LAYOUT.num_page_slots])
        assert not own[:, : LAYOUT.num_page_slots].isnan().any()


@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize("speculate", STATIC + DYNAMIC)
def test_one_call_grows_what_the_levels_grow_one_by_one(speculate: str, params: str) -> None:
    draft, shape = native_draft(), parsed(speculate)
    assert_equal(case(params).grow(draft, shape, True), case(params).grow(draft, shape, False))


@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize("speculate", SPARSE)
def test_trees_without_unlikely_nodes_are_the_same(speculate: str, params: str) -> None:
    draft, shape = native_draft(), parsed(speculate)
    mine, expected = (case(params).grow(draft, shape, natively) for natively in (True, False))
    assert_equal(mine, expected, are_places_shared=False)
    assert_survivals_agree(mine, expected)


@settings(max_examples=40, deadline=None)
@given(
    steps=st.integers(1, 4),
    topk=st.integers(1, 4),
    least_survival=st.sampled_from((1e-9, 1e-4, 1e-3, 0.01, 0.03, 0.1, 0.6)),
    params=st.sampled_from(sorted(PARAMS)),
    limits=st.lists(st.integers(1, 6), min_size=3, max_size=3),
    data=st.data(),
)
def test_any_threshold_keeps_the_same_nodes(
    steps: int, topk: int, least_survival: float, params: str, limits: list[int], data: st.DataObject
) -> None:
    nodes = data.draw(st.integers(1, topk + (steps - 1) * topk**2))
    situation = case(params)
    situation = GrowthCase(
        [replace(own, max_depth=limit) for own, limit in zip(situation.progress, [*limits, 0], strict=True)]
    )
    shape = DynamicTree(steps, topk, nodes, least_survival)
    mine, expected = (situation.grow(native_draft_once(), shape, natively) for natively in (True, False))
    assert_equal(mine, expected, are_places_shared=False)
    assert_survivals_agree(mine, expected)
    tree = mine.tree
    assert tree is not None and tree.row_counts is not None and tree.level_rows is not None
    assert tree.is_valid.sum(dim=1).tolist() == list(tree.row_counts)
    assert tree.num_nodes == max(tree.row_counts)
    assert all(int(tree.depths[index].max()) <= max(1, limit) for index, limit in enumerate(limits))
    assert tree.level_rows[0] == 3 and all(0 < rows <= 3 * topk for rows in tree.level_rows[1:])
    assert len(tree.level_rows) <= min(steps, max(limits))


@functools.cache
def native_draft_once() -> NativeEagle:
    return native_draft()


def assert_survivals_agree(mine: Grown, expected: Grown) -> None:
    assert mine.tree is not None and expected.tree is not None
    assert mine.tree.survivals is not None and expected.tree.survivals is not None
    assert mine.tree.row_counts == tuple(map(len, mine.tree.survivals))
    for own, other in zip(mine.tree.survivals, expected.tree.survivals, strict=True):
        assert own == pytest.approx(other, rel=1e-4)


def test_where_nothing_is_likely_a_tree_is_its_root() -> None:
    mine = case().grow(native_draft(), DynamicTree(4, 3, 9, 0.99), True).tree
    assert mine is not None
    assert (mine.num_nodes, mine.max_depth, mine.row_counts) == (1, 0, (1, 1, 1))
    assert (mine.survivals, mine.level_rows) == (((1.0,),) * 3, (3,))


def test_full_trees_tell_what_their_nodes_are_worth() -> None:
    mine, expected = (case().grow(native_draft(), DynamicTree(3, 3, 9), natively) for natively in (True, False))
    assert mine.tree is not None and expected.tree is not None
    assert mine.tree.survivals is not None and expected.tree.survivals is not None
    assert mine.tree.level_rows == expected.tree.level_rows == (3, 9, 9)
    for own, other, count in zip(
        mine.tree.survivals, expected.tree.survivals, mine.tree.row_counts or [10] * 3, strict=True
    ):
        assert len(own) == count
        assert own == pytest.approx(other[:count], rel=1e-4)


@with_levels
@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_packed_drafts_on_every_instruction_set(level: str, quantization: str) -> None:
    draft = native_draft(quantization)
    for text in ("tree:4x2x1", "dynamic:steps=3,topk=3,nodes=9"):
        assert_equal(case().grow(draft, parsed(text), True), case().grow(draft, parsed(text), False))


@pytest.mark.parametrize("changes", [{"norm_output": True, "fc_norm": True}, {"norm_before_residual": True}])
def test_heads_of_other_kinds(changes: dict[str, Any]) -> None:
    draft = native_draft(**changes)
    assert_equal(case().grow(draft, parsed("chain:4"), True), case().grow(draft, parsed("chain:4"), False))


def test_a_head_of_the_first_kind() -> None:
    draft = native_draft(kind="eagle1")
    for text in ("tree:4x2x1", "dynamic:steps=3,topk=3,nodes=9"):
        assert_equal(case().grow(draft, parsed(text), True), case().grow(draft, parsed(text), False))


def test_memory_and_features_may_be_float32() -> None:
    draft, shape = native_draft(), parsed("tree:3x2")
    mine, expected = (case(dtype=torch.float32).grow(draft, shape, natively) for natively in (True, False))
    assert_equal(mine, expected)


def test_nodes_may_stand_in_any_order_behind_their_parents() -> None:
    """As where the likeliest come first: a grandchild before the root's second child."""
    shape = StaticTree((-1, 0, 1, 0, 2, 3), (0, 0, 0, 1, 0, 0))
    draft = native_draft()
    assert_equal(case().grow(draft, shape, True), case().grow(draft, shape, False))


def test_nodes_deeper_than_any_request_may_have_are_not_grown() -> None:
    short = GrowthCase([Progress(4, 6, 2, GREEDY), Progress(9, 10, 1, GREEDY)])
    draft, shape = native_draft(), parsed("chain:5")
    mine = short.grow(draft, shape, True)
    assert mine.tree is not None
    assert mine.tree.tokens[:, 3:].tolist() == [[0, 0, 0]] * 2
    assert mine.tree.is_valid.tolist() == [[True, True, True, False, False, False], [True, True] + [False] * 4]
    expected = short.grow(draft, shape, False)
    assert expected.tree is not None
    assert mine.tree.tokens[expected.tree.is_valid].tolist() == expected.tree.tokens[expected.tree.is_valid].tolist()
    assert torch.equal(mine.keys[:, : LAYOUT.num_page_slots], expected.keys[:, : LAYOUT.num_page_slots])


def test_without_trees_the_cache_is_brought_up_to_date() -> None:
    waiting = GrowthCase([Progress(4, 9, 0, GREEDY), Progress(0, 3, 0, GREEDY)])
    draft, shape = native_draft(), parsed("chain:2")
    mine, expected = (waiting.grow(draft, shape, natively) for natively in (True, False))
    assert mine.tree is None and expected.tree is None
    assert torch.equal(mine.keys[:, : LAYOUT.num_page_slots], expected.keys[:, : LAYOUT.num_page_slots])


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("speculate", ["tree:4x2x1", "dynamic:steps=4,topk=3,nodes=9"])
def test_a_request_depends_on_no_other_and_on_no_thread(num_threads: int, speculate: str) -> None:
    shape = parsed(speculate)
    together = case().grow(native_draft(), shape, True)
    draft = native_draft(num_threads=num_threads)
    for index in range(3):
        alone = case().grow(draft, shape, True, only=[index])
        assert alone.tree is not None and together.tree is not None
        valid = together.tree.is_valid[index]
        assert alone.tree.is_valid[0].tolist() == valid.tolist()
        assert torch.equal(alone.tree.tokens[0][valid], together.tree.tokens[index][valid])
        slots = _slots_of(case(), index)
        assert torch.equal(alone.keys[:, slots], together.keys[:, slots])
        assert torch.equal(alone.values[:, slots], together.values[:, slots])


def _slots_of(situation: GrowthCase, index: int) -> Tensor:
    request = situation.requests[index]
    return torch.tensor(
        [LAYOUT.page_slot(request.block_ids, slot) for slot in range(1, request.num_computed_tokens + 1)]
    )


def growth_of(draft: NativeEagle, num_blocks: int = 4) -> NativeGrowth:
    """Over four blocks of four slots, and two places of scratch."""
    regions = native().SlotRegions(num_blocks, 4, 1, 2)
    memory = GrowthCase([]).memory(draft, 19)
    return NativeGrowth(draft, regions, memory)


def grow_one(growth: NativeGrowth, num_features: int = 2, shape: StaticTree | None = None, **changes: object) -> Tensor:
    """A request with three final rows and two new ones; `changes` replace parts of it."""
    given: dict[str, Any] = {
        "block_ids": [0, 1],
        "num_draft_rows": 3,
        "token_ids": [5, 6],
        "row": 0,
        "max_depth": 2,
    } | changes
    features = torch.zeros(num_features, 3 * 96)
    batch = growth.new_batch(features)
    batch.add(*given.values())
    tree = shape or StaticTree((-1, 0, 1), (0, 0, 0))
    prepared = growth.prepared(GrowthCase([Progress(3, 5, 2, GREEDY)]).sampling())
    return growth.grow_static(batch, prepared, native().StaticTree(list(tree.parents), list(tree.ranks)))


REFUSALS: dict[str, dict[str, object]] = {
    "a table too short": {"block_ids": [0]},
    "a block that does not exist": {"block_ids": [0, 4]},
    "a negative block": {"block_ids": [0, -1]},
    "a device row that does not exist": {"row": 1},
    "no new row": {"token_ids": [], "num_features": 0},
    "a negative number of rows": {"num_draft_rows": -2},
    "features for other rows": {"num_features": 3},
    "a token that does not exist": {"token_ids": [5, VOCAB]},
    "a negative token": {"token_ids": [-1, 5]},
    "more places than scratch": {"shape": StaticTree((-1, 0, 1, 2, 3), (0, 0, 0, 0, 0)), "max_depth": 4},
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_does_not_exist_is_refused(name: str) -> None:
    growth = growth_of(native_draft())
    assert grow_one(growth).shape == (1, 3)
    with pytest.raises(IndexError):
        grow_one(growth, **REFUSALS[name])  # type: ignore[arg-type]


def test_memory_smaller_than_its_regions_is_refused() -> None:
    with pytest.raises(IndexError, match="19 slots; the regions need 23"):
        grow_one(growth_of(native_draft(), num_blocks=5))


def test_more_children_than_draft_tokens_are_refused() -> None:
    draft = native_draft()
    width = draft.config.draft_vocab_size + 1
    wide = StaticTree((-1, *[0] * width), (0, *range(width)))
    with pytest.raises(InvalidParameterError, match="more children"):
        grow_one(growth_of(draft), shape=wide)


@pytest.mark.parametrize("dtype", [torch.float16, torch.int64])
def test_features_of_another_kind_are_refused(dtype: torch.dtype) -> None:
    growth = growth_of(native_draft())
    with pytest.raises(InvalidParameterError, match="features"):
        growth.new_batch(torch.zeros(2, 3 * 96, dtype=dtype))
    with pytest.raises(InvalidParameterError, match="features"):
        growth.new_batch(torch.zeros(2, 96))


@pytest.mark.parametrize(
    ("parents", "ranks"),
    [([], []), ([0], [0]), ([-1, 0], [0]), ([-1, 1], [0, 0]), ([-1, 0], [0, 2])],
)
def test_shapes_that_are_no_trees_are_refused(parents: list[int], ranks: list[int]) -> None:
    with pytest.raises(ValueError, match="node"):
        native().StaticTree(parents, ranks)


def test_requests_with_trees_come_first() -> None:
    batch = growth_of(native_draft()).new_batch(torch.zeros(3, 3 * 96))
    batch.add([0, 1], 3, [5, 6], 0, 0)
    with pytest.raises(ValueError, match="first"):
        batch.add([2], 0, [5], 0, 2)
