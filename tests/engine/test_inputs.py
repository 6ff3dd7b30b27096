"""Rows of the target's forward, written out in integers."""

from __future__ import annotations

import torch

from aquiline.engine.inputs import InputBuilder, StepLayout
from aquiline.engine.schedule import ScheduledBatch, ScheduledRequest
from aquiline.engine.slots import SlotLayout
from aquiline.engine.tree import DraftTree
from aquiline.kernels import CONTEXT_CHUNK
from aquiline.request import Request, SamplingParams
from aquiline.speculation import parse_speculation

# Pages are slots 0..39, scratch of row r begins at 40 + 3 r, padding is slot 46.
LAYOUT = SlotLayout(num_blocks=10, block_size=4, max_num_seqs=2, scratch_per_row=3)


def make_request(name: str, num_tokens: int, num_computed_tokens: int, block_ids: list[int], row: int = 0) -> Request:
    """Token i of a request is 10 + i."""
    request = Request(name, tuple(range(10, 10 + num_tokens)), SamplingParams(), seed=0, row=row)
    request.num_computed_tokens = num_computed_tokens
    request.block_ids = block_ids
    return request


def make_builder() -> InputBuilder:
    return InputBuilder(LAYOUT, torch.device("cpu"))


TREE_REQUEST = make_request("tree", 6, 5, [7, 2], row=1)
PLAIN_REQUEST = make_request("plain", 3, 2, [5])
CHUNK_REQUEST = make_request("chunk", 9, 3, [1, 0, 9])
LAST_CHUNK = make_request("last", 4, 2, [3])


def make_step() -> StepLayout:
    shape = parse_speculation("paths:0,1,00").shape
    assert shape is not None
    scheduled = (
        ScheduledRequest(PLAIN_REQUEST, 1, draws_token=True, max_draft_depth=0),
        ScheduledRequest(TREE_REQUEST, 1, draws_token=True, max_draft_depth=2),
        ScheduledRequest(CHUNK_REQUEST, 2, draws_token=False, max_draft_depth=0),
        ScheduledRequest(LAST_CHUNK, 2, draws_token=True, max_draft_depth=0),
    )
    return StepLayout.of(ScheduledBatch(scheduled, shape, ()), num_nodes=4)


def make_tree() -> DraftTree:
    """Root 15, its children 51 and 52, and 53 below 51."""
    return DraftTree(
        tokens=torch.tensor([[15, 51, 52, 53]]),
        parents=torch.tensor([[-1, 0, 0, 1]]),
        depths=torch.tensor([[0, 1, 1, 2]]),
        is_valid=torch.ones(1, 4, dtype=torch.bool),
        max_depth=2,
        max_children=2,
    )


def names(requests: tuple[ScheduledRequest, ...]) -> list[str]:
    return [scheduled.request.request_id for scheduled in requests]


def test_trees_come_first_then_plain_roots_then_chunks() -> None:
    step = make_step()
    assert names(step.ordered) == ["tree", "plain", "chunk", "last"]
    assert names(step.drawing) == ["tree", "plain", "last"]
    assert step.first_rows == {"tree": 0, "plain": 4, "chunk": 5, "last": 7}
    assert [step.num_rows(scheduled) for scheduled in step.ordered] == [4, 1, 2, 2]


def test_a_single_row_that_draws_nothing_is_a_chunk() -> None:
    scheduled = ScheduledRequest(CHUNK_REQUEST, 1, draws_token=False, max_draft_depth=0)
    shape = parse_speculation("chain:1").shape
    assert shape is not None
    step = StepLayout.of(ScheduledBatch((scheduled,), shape, ()), num_nodes=1)
    assert names(step.prefill_requests) == ["chunk"]
    assert step.drawing == ()


def test_tokens_positions_and_slots_of_every_row() -> None:
    rows = make_builder().target_rows(make_step(), make_tree())
    assert rows.token_ids.tolist() == [15, 51, 52, 53, 12, 13, 14, 12, 13]
    assert rows.positions.tolist() == [5, 6, 6, 7, 2, 3, 4, 2, 3]
    # Root at position 5: block 2, offset 1. Nodes: scratch of row 1. Position 3 of the chunk: block 1, then block 0.
    assert rows.slots.tolist() == [9, 43, 44, 45, 22, 7, 0, 14, 15]


def test_tree_rows_see_the_pages_up_to_the_root_and_their_own_path() -> None:
    group = make_builder().target_rows(make_step(), make_tree()).attention.groups[0]
    assert group.first_row == 0
    assert group.visible_lens.tolist() == [[6, 6, 6, 6]]
    assert group.path_lens is not None
    assert group.path_slots is not None
    assert group.path_lens.tolist() == [[0, 1, 1, 2]]
    assert group.path_slots[0, 1, 0] == 43
    assert group.path_slots[0, 2, 0] == 44
    assert group.path_slots[0, 3].tolist() == [43, 45]
    assert group.key_slots[0, :6].tolist() == [28, 29, 30, 31, 8, 9]


def test_other_rows_see_the_pages_up_to_themselves() -> None:
    groups = make_builder().target_rows(make_step(), make_tree()).attention.groups
    assert [group.first_row for group in groups] == [0, 4, 5, 7]
    assert [group.visible_lens.tolist() for group in groups[1:]] == [[[3]], [[4, 5]], [[3, 4]]]
    assert groups[2].key_slots[0, :5].tolist() == [4, 5, 6, 7, 0]
    assert all(group.path_slots is None for group in groups[1:])


def test_a_node_beyond_its_requests_limit_has_no_path() -> None:
    tree = make_tree()
    cut = DraftTree(
        tree.tokens,
        torch.tensor([[-1, 0, 0, -1]]),
        tree.depths,
        torch.tensor([[True, True, True, False]]),
        tree.max_depth,
        tree.max_children,
    )
    group = make_builder().target_rows(make_step(), cut).attention.groups[0]
    assert group.path_lens is not None
    assert group.path_lens.tolist() == [[0, 1, 1, 0]]


def test_key_slots_are_whole_chunks_and_padded_with_block_0() -> None:
    builder = make_builder()
    slots = builder.key_slots([[2], [4, 6]], num_positions=7)
    assert slots.shape == (2, CONTEXT_CHUNK)
    assert slots[0, :8].tolist() == [8, 9, 10, 11, 0, 1, 2, 3]
    assert slots[1, :8].tolist() == [16, 17, 18, 19, 24, 25, 26, 27]
    assert builder.key_slots([[2]], CONTEXT_CHUNK + 1).shape == (1, 2 * CONTEXT_CHUNK)
    assert builder.key_slots([[2]], 0).shape == (1, CONTEXT_CHUNK)


def test_accepted_rows_go_behind_the_root_and_nowhere_beyond_the_table() -> None:
    scheduled = ScheduledRequest(TREE_REQUEST, 1, draws_token=True, max_draft_depth=2)
    # Six tokens: the first accepted one is at position 6 (block 2, offset 2); position 8 has no block.
    assert make_builder().path_target_slots([scheduled], 4).tolist() == [[10, 11, 46, 46]]


def test_scratch_belongs_to_a_row() -> None:
    assert make_builder().scratch_slots([1, 0], 3).tolist() == [[43, 44, 45], [40, 41, 42]]
