"""Rows of a measured request are those that an engine would build."""

from __future__ import annotations

import pytest
import torch

from aquiline.benchmark.step_rows import OneRequest
from aquiline.kernels import CONTEXT_CHUNK


def test_the_tree_of_the_worked_example() -> None:
    rows = OneRequest(context=4, vocab_size=61).tree(6)
    assert rows.positions.tolist() == [3, 4, 4, 5, 5, 5]
    assert rows.slots.tolist() == [3, 4, 5, 6, 7, 8]
    (group,) = rows.attention.groups
    assert group.path_slots is not None and group.path_lens is not None
    assert group.visible_lens.tolist() == [[4] * 6]
    lengths = group.path_lens[0].tolist()
    paths = [path[:length] for path, length in zip(group.path_slots[0].tolist(), lengths, strict=True)]
    assert paths == [[], [4], [5], [4, 6], [4, 7], [5, 8]]
    assert group.key_slots.shape[1] % CONTEXT_CHUNK == 0
    assert group.key_slots[0, :4].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("first_position", [0, 1])
def test_a_prompt_fills_its_positions(first_position: int) -> None:
    rows = OneRequest(context=9, vocab_size=61, first_position=first_position).prompt(8)
    assert rows.positions.tolist() == rows.slots.tolist() == list(range(first_position, first_position + 8))
    (group,) = rows.attention.groups
    assert group.visible_lens.tolist() == [list(range(first_position + 1, first_position + 9))]
    assert rows.attention.first_position == first_position
    assert torch.equal(rows.token_ids, OneRequest(1, 61).tokens(8))
    assert int(rows.token_ids.max()) < 61
