"""Pending features by row, and the one that a cached block keeps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from aquiline.engine.feature_store import FeatureStore, RowCount
from aquiline.engine.kv_pool import MemoryKind
from aquiline.request import Request, SamplingParams


def make_store(num_blocks: int = 5, block_size: int = 4) -> FeatureStore:
    return FeatureStore(num_blocks, block_size, 2, MemoryKind(torch.float32, torch.device("cpu"), poison=True))


def make_request(row: int, num_computed_tokens: int = 0, block_ids: tuple[int, ...] = ()) -> Request:
    request = Request(f"row {row}", tuple(range(12)), SamplingParams(), seed=0, row=row)
    request.num_computed_tokens = num_computed_tokens
    request.block_ids = list(block_ids)
    return request


def features(*values: float) -> Tensor:
    return torch.tensor([[value, -value] for value in values])


def test_features_come_back_in_order_and_only_once() -> None:
    store = make_store()
    store.admit(make_request(0))
    store.admit(make_request(2))
    store.append(2, features(7.0))
    store.append(0, features(1.0, 2.0))
    store.append(0, features(3.0))
    assert store.pending(0).tolist() == features(1.0, 2.0, 3.0).tolist()
    assert store.take([RowCount(2, 1), RowCount(0, 3)]).tolist() == features(7.0, 1.0, 2.0, 3.0).tolist()
    assert store.pending(0).shape == (0, 2)
    store.append(0, features(4.0))
    assert store.take([RowCount(0, 1)]).tolist() == features(4.0).tolist()


def test_a_part_may_be_taken_and_the_rest_waits() -> None:
    store = make_store()
    store.admit(make_request(0))
    store.append(0, features(1.0, 2.0))
    store.append(0, features(3.0, 4.0))
    assert store.take([RowCount(0, 1)]).tolist() == features(1.0).tolist()
    assert store.take([RowCount(0, 2)]).tolist() == features(2.0, 3.0).tolist()
    assert store.pending(0).tolist() == features(4.0).tolist()


@pytest.mark.parametrize(("num_computed_tokens", "last_kept"), [(4, 3.0), (8, 7.0)])
def test_a_prefix_hit_starts_from_the_feature_of_its_last_token(num_computed_tokens: int, last_kept: float) -> None:
    """Blocks 3 and 1 hold tokens 0 to 7: block 3 keeps h3 and block 1 keeps h7."""
    store = make_store()
    store.keep_with_blocks([3, 1], features(3.0, 7.0))
    store.admit(make_request(0, num_computed_tokens, (3, 1, 4)))
    store.append(0, features(8.0))
    assert store.take([RowCount(0, 2)]).tolist() == features(last_kept, 8.0).tolist()


def test_blocks_of_one_token_keep_every_feature() -> None:
    store = make_store(block_size=1)
    store.keep_with_blocks([4, 2, 0], features(0.5, 1.5, 2.5))
    store.admit(make_request(0, 3, (4, 2, 0, 1)))
    assert store.take([RowCount(0, 1)]).tolist() == features(2.5).tolist()


def test_a_request_without_a_hit_has_nothing_pending() -> None:
    store = make_store()
    store.keep_with_blocks([0], features(1.0))
    store.admit(make_request(1, 0, (0,)))
    assert store.pending(1).shape == (0, 2)


def test_a_released_row_starts_empty_again() -> None:
    store = make_store()
    store.admit(make_request(0))
    store.append(0, features(1.0))
    store.release(0)
    store.release(0)
    store.admit(make_request(0))
    assert store.pending(0).shape == (0, 2)


def test_a_block_that_nobody_filled_shows() -> None:
    store = make_store()
    store.admit(make_request(0, 4, (2,)))
    assert store.take([RowCount(0, 1)]).isnan().all()
