"""Rows of the draft's forwards, written out in integers."""

from __future__ import annotations

import pytest
import torch

from aquiline.engine.draft_inputs import WIDEST_SHARED_GROUP, DraftInputBuilder
from aquiline.engine.inputs import InputBuilder
from aquiline.engine.slots import SlotLayout
from aquiline.request import Request, SamplingParams

LAYOUT = SlotLayout(num_blocks=40, block_size=4, max_num_seqs=3, scratch_per_row=5)


def make_builder() -> DraftInputBuilder:
    return DraftInputBuilder(LAYOUT, InputBuilder(LAYOUT, torch.device("cpu")))


def make_request(name: str, num_draft_rows: int, num_computed_tokens: int, first_block: int = 0) -> Request:
    """Token i is 100 + i; one token, the root, is known beyond the computed ones; blocks follow one another."""
    request = Request(name, tuple(range(100, 101 + num_computed_tokens)), SamplingParams(), seed=0)
    request.num_computed_tokens, request.num_draft_rows = num_computed_tokens, num_draft_rows
    request.block_ids = list(range(first_block, first_block + 1 + num_computed_tokens // 4))
    return request


def test_the_worked_example() -> None:
    rows = make_builder().extend_rows([make_request("a", 4, 6)], [2])
    assert rows.forward.token_ids.tolist() == [105, 106]
    assert rows.forward.slots.tolist() == [5, 6]
    assert rows.forward.positions.tolist() == [4, 5]
    assert rows.feature_index.tolist() == [0, 1]
    assert rows.last_rows == {"a": 1}
    (group,) = rows.forward.attention.groups
    assert group.visible_lens.tolist() == [[6, 7]]
    assert rows.forward.attention.first_position == 1


def test_a_part_of_what_is_pending_ends_before_the_root() -> None:
    rows = make_builder().extend_rows([make_request("a", 4, 9)], [2])
    assert rows.forward.token_ids.tolist() == [105, 106]
    assert rows.forward.slots.tolist() == [5, 6]
    assert rows.last_rows == {"a": 1}


def test_shorter_requests_of_a_group_are_padded_behind_their_rows() -> None:
    requests = [make_request("a", 4, 6), make_request("b", 0, 3, first_block=10), make_request("c", 7, 8, 20)]
    rows = make_builder().extend_rows(requests, [2, 3, 1])
    padding = LAYOUT.padding_slot
    assert rows.forward.token_ids.tolist() == [105, 106, 0, 101, 102, 103, 108, 0, 0]
    assert rows.forward.slots.tolist() == [5, 6, padding, 41, 42, 43, 88, padding, padding]
    assert rows.forward.positions.tolist() == [4, 5, 0, 0, 1, 2, 7, 0, 0]
    # Six features are taken, in the order of the requests; padding rows read the one behind the last.
    assert rows.feature_index.tolist() == [0, 1, 6, 2, 3, 4, 5, 6, 6]
    assert rows.last_rows == {"a": 1, "b": 5, "c": 6}
    (group,) = rows.forward.attention.groups
    assert group.visible_lens.tolist() == [[6, 7, 0], [2, 3, 4], [9, 0, 0]]


@pytest.mark.parametrize("num_pending", [WIDEST_SHARED_GROUP, WIDEST_SHARED_GROUP + 1])
def test_a_long_prefill_gets_a_group_of_its_own(num_pending: int) -> None:
    requests = [make_request("long", 0, num_pending), make_request("a", 4, 6, 20), make_request("b", 2, 3, 30)]
    rows = make_builder().extend_rows(requests, [num_pending, 2, 1])
    groups = rows.forward.attention.groups
    is_alone = num_pending > WIDEST_SHARED_GROUP
    assert len(groups) == (2 if is_alone else 1)
    assert [group.first_row for group in groups] == ([0, 4] if is_alone else [0])
    # Whatever the order of rows, each reads the features in the order in which they were taken.
    first = {"long": 0, "a": num_pending, "b": num_pending + 2}
    for request in requests:
        last = rows.last_rows[request.request_id]
        count = request.num_computed_tokens - request.num_draft_rows
        own = rows.feature_index[last - count + 1 : last + 1].tolist()
        assert own == list(range(first[request.request_id], first[request.request_id] + count))
        assert rows.forward.token_ids[last] == request.token_ids[request.num_computed_tokens]
        assert rows.forward.positions[last] == request.num_computed_tokens - 1


def test_draft_nodes_see_the_pages_up_to_the_root_and_their_own_path() -> None:
    builder = make_builder()
    requests = [make_request("a", 6, 6), make_request("b", 3, 3, first_block=10)]
    requests[0].row, requests[1].row = 2, 0
    view = builder.prefix_view(requests, num_places=5)
    assert view.root_positions.tolist() == [6, 3]
    scratch = LAYOUT.num_page_slots
    assert view.scratch_slots.tolist() == [list(range(scratch + 10, scratch + 15)), list(range(scratch, scratch + 5))]
    tokens = torch.tensor([[7, 8], [9, 5]])
    paths = torch.tensor([[[0, 2], [1, 3]], [[0, 2], [0, 4]]])
    rows = builder.level_rows(view, tokens, paths, depth=2)
    assert rows.token_ids.tolist() == [7, 8, 9, 5]
    # A node at depth 2 below the root at 6 stands at position 8, and a draft row is rotated one position less.
    assert rows.positions.tolist() == [7, 7, 4, 4]
    assert rows.slots.tolist() == [scratch + 12, scratch + 13, scratch + 2, scratch + 4]
    (group,) = rows.attention.groups
    assert group.visible_lens.tolist() == [[7, 7], [4, 4]]
    assert group.path_lens is not None
    assert group.path_slots is not None
    assert group.path_lens.tolist() == [[2, 2], [2, 2]]
    assert group.path_slots[1, 1].tolist() == [scratch, scratch + 4]
    assert rows.attention.first_position == 1
