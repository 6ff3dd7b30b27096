"""Block tables, reference counts and the prefix cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from aquiline.engine.cache import BlockCache
from aquiline.errors import ConsistencyError
from aquiline.request import Request, SamplingParams

A_TO_I = tuple(range(9))


def make_request(name: str, tokens: Sequence[int] = A_TO_I, *, speculate: bool = False) -> Request:
    return Request(name, tuple(tokens), SamplingParams(), seed=0, speculate=speculate)


def compute(cache: BlockCache, request: Request, num_draft_rows: int = 0) -> Request:
    """Admit a request, compute all but its last token, and publish."""
    assert cache.admit(request, request.num_tokens)
    request.num_computed_tokens = request.num_tokens - 1
    request.num_draft_rows = max(request.num_draft_rows, num_draft_rows)
    cache.publish(request)
    return request


def leave(cache: BlockCache, name: str, tokens: Sequence[int] = A_TO_I, num_draft_rows: int | None = None) -> None:
    """Let a request compute its tokens and go; it speculates when it has draft rows."""
    request = make_request(name, tokens, speculate=num_draft_rows is not None)
    cache.free(compute(cache, request, num_draft_rows or 0))
    cache.check_integrity([])


def num_found(cache: BlockCache, tokens: Sequence[int] = A_TO_I, *, speculate: bool = False) -> int:
    """How many tokens a new request would find."""
    request = make_request("probe", tokens, speculate=speculate)
    found = cache.acquire_prefix(request)
    cache.free(request)
    return found


@pytest.mark.parametrize("block_size", [1, 2, 4, 16])
@pytest.mark.parametrize("num_tokens", [1, 2, 4, 5, 8, 9, 17, 33])
def test_a_repeated_prompt_leaves_its_last_token_to_compute(block_size: int, num_tokens: int) -> None:
    cache = BlockCache(64, block_size, True)
    leave(cache, "first", [*range(num_tokens), 99])
    assert num_found(cache, range(num_tokens)) == (num_tokens - 1) // block_size * block_size


@pytest.mark.parametrize(
    ("num_draft_rows", "plain", "speculating"),
    [(0, 8, 0), (2, 8, 0), (3, 8, 4), (6, 8, 4), (7, 8, 8), (8, 8, 8)],
)
def test_a_speculating_request_finds_only_blocks_with_draft_rows(
    num_draft_rows: int, plain: int, speculating: int
) -> None:
    cache = BlockCache(16, 4, True)
    leave(cache, "first", A_TO_I, num_draft_rows)
    assert num_found(cache, speculate=False) == plain
    assert num_found(cache, speculate=True) == speculating


def test_a_speculating_request_publishes_blocks_once_they_carry_draft_rows() -> None:
    cache = BlockCache(16, 4, True)
    request = compute(cache, make_request("first", speculate=True), num_draft_rows=6)
    assert cache.num_cached_blocks == 1
    assert num_found(cache, speculate=False) == 4
    request.num_draft_rows = 8
    cache.publish(request)
    assert num_found(cache, speculate=True) == 8
    cache.check_integrity([request])


@pytest.mark.parametrize("block_size", [1, 2, 4])
def test_counts_after_a_hit(block_size: int) -> None:
    cache = BlockCache(32, block_size, True)
    leave(cache, "first", A_TO_I, num_draft_rows=8)
    request = make_request("second", speculate=True)
    assert cache.admit(request, 9)
    assert (request.num_computed_tokens, request.num_draft_rows, request.num_cached_tokens) == (8, 7, 8)


def test_draft_rows_of_a_hit_end_where_plain_blocks_begin() -> None:
    cache = BlockCache(16, 4, True)
    leave(cache, "first", A_TO_I, num_draft_rows=5)
    request = make_request("second")
    assert cache.acquire_prefix(request) == 8
    assert request.num_draft_rows == 3


def test_a_plain_request_never_claims_draft_rows_in_a_block_of_one_slot() -> None:
    cache = BlockCache(16, 1, True)
    leave(cache, "first", A_TO_I)
    assert num_found(cache, speculate=True) == 0


def test_equal_tokens_after_another_beginning_are_not_found() -> None:
    cache = BlockCache(16, 2, True)
    leave(cache, "first", [1, 1, 5, 5, 9])
    assert num_found(cache, [2, 2, 5, 5, 9]) == 0
    assert num_found(cache, [5, 5, 9]) == 0


def test_equal_hashes_are_not_enough() -> None:
    same_hash = 2**61 - 1
    assert hash((0, 7)) == hash((same_hash, 7))
    cache = BlockCache(16, 2, True)
    leave(cache, "first", [0, 7, 3])
    assert num_found(cache, [same_hash, 7, 3]) == 0


def test_a_prompt_whose_logprobs_are_wanted_is_not_looked_up() -> None:
    cache = BlockCache(16, 4, True)
    leave(cache, "first")
    queried = cache.num_query_tokens
    request = Request("second", A_TO_I, SamplingParams(prompt_logprobs=0), seed=0)
    assert cache.acquire_prefix(request) == 0
    assert cache.num_query_tokens == queried


def test_nothing_is_found_when_the_prefix_cache_is_off() -> None:
    cache = BlockCache(16, 4, False)
    leave(cache, "first")
    assert num_found(cache) == 0
    assert cache.num_cached_blocks == 0


def test_the_same_content_is_kept_once() -> None:
    cache = BlockCache(16, 4, True)
    first, second = make_request("first"), make_request("second")
    assert cache.admit(first, 9) and cache.admit(second, 9)
    for request in (first, second):
        request.num_computed_tokens = 8
        cache.publish(request)
    assert cache.num_cached_blocks == 2
    cache.check_integrity([first, second])
    cache.free(first)
    cache.free(second)
    cache.check_integrity([])
    assert cache.num_cached_blocks == 2
    assert cache.num_free_blocks == 16


@pytest.mark.parametrize("plain_request_runs", [True, False], ids=["in-use", "idle"])
def test_blocks_with_draft_rows_replace_those_without(plain_request_runs: bool) -> None:
    cache = BlockCache(16, 4, True)
    plain = compute(cache, make_request("plain"))
    running = [plain] if plain_request_runs else []
    if not plain_request_runs:
        cache.free(plain)
    drafting = compute(cache, make_request("drafting", speculate=True), num_draft_rows=8)
    cache.check_integrity([*running, drafting])
    assert cache.num_cached_blocks == 2
    assert num_found(cache, speculate=True) == 8
    for request in (*running, drafting):
        cache.free(request)
    cache.check_integrity([])
    assert num_found(cache, speculate=True) == 8


def test_plain_blocks_do_not_replace_those_with_draft_rows() -> None:
    cache = BlockCache(16, 4, True)
    drafting, plain = make_request("drafting", speculate=True), make_request("plain")
    assert cache.admit(drafting, 9) and cache.admit(plain, 9)
    drafting.num_computed_tokens = drafting.num_draft_rows = plain.num_computed_tokens = 8
    cache.publish(drafting)
    cache.publish(plain)
    cache.free(drafting)
    cache.free(plain)
    assert num_found(cache, speculate=True) == 8


def test_the_end_of_a_sequence_is_evicted_before_its_beginning() -> None:
    cache = BlockCache(5, 2, True)
    leave(cache, "first", range(9))
    other = make_request("other", [50])
    assert cache.grow(other, 6)
    cache.check_integrity([other])
    assert num_found(cache, range(9)) == 4


def test_what_was_used_longest_ago_is_evicted_first() -> None:
    cache = BlockCache(4, 2, True)
    leave(cache, "old", [1, 2, 3])
    leave(cache, "new", [4, 5, 6])
    assert num_found(cache, [1, 2, 3]) == 2
    assert cache.grow(make_request("other", [50, 51, 52]), 6)
    assert num_found(cache, [4, 5, 6]) == 0
    assert num_found(cache, [1, 2, 3]) == 2


def test_a_running_request_publishes_again_after_the_copy_it_continued_was_evicted() -> None:
    cache = BlockCache(6, 2, True)
    first, second = make_request("first", range(5)), make_request("second", range(5))
    assert cache.admit(first, 5) and cache.admit(second, 5)
    for request in (first, second):
        request.num_computed_tokens = 4
        cache.publish(request)
    cache.free(first)
    other = make_request("other", [50])
    assert cache.grow(other, 6)
    assert cache.num_cached_blocks == 0
    cache.publish(second)
    cache.check_integrity([second, other])
    assert num_found(cache, range(5)) == 4


def test_growing_is_all_or_nothing() -> None:
    cache = BlockCache(3, 4, True)
    request = make_request("first")
    assert not cache.grow(request, 13)
    assert request.block_ids == [] and cache.num_free_blocks == 3
    assert cache.grow(request, 12)
    assert cache.grow(request, 5)
    assert len(request.block_ids) == 3


@pytest.mark.parametrize(("num_spare_blocks", "admitted"), [(0, True), (1, True), (2, False)])
def test_admission_is_all_or_nothing_and_does_not_count_found_blocks_as_free(
    num_spare_blocks: int, admitted: bool
) -> None:
    cache = BlockCache(4, 4, True)
    leave(cache, "first")
    request = make_request("second")
    assert cache.admit(request, 9, num_spare_blocks) is admitted
    cache.check_integrity([request])
    assert len(request.block_ids) == (3 if admitted else 0)
    assert cache.num_free_blocks == (1 if admitted else 4)
    assert request.num_computed_tokens == (8 if admitted else 0)


def test_hits_are_counted_at_the_first_admission_only() -> None:
    cache = BlockCache(16, 4, True)
    leave(cache, "first")
    request = make_request("second")
    cache.acquire_prefix(request)
    assert (cache.num_query_tokens, cache.num_hit_tokens) == (18, 8)
    cache.free(request)
    request.num_preemptions = 1
    request.token_ids.append(0)
    cache.acquire_prefix(request)
    assert (cache.num_query_tokens, cache.num_hit_tokens) == (18, 8)
    assert request.num_cached_tokens == 8


def test_freeing_twice_and_publishing_afterwards_do_nothing() -> None:
    cache = BlockCache(16, 4, True)
    request = compute(cache, make_request("first"))
    cache.free(request)
    cache.free(request)
    cache.publish(request)
    cache.check_integrity([])
    assert cache.num_free_blocks == 16


@pytest.mark.parametrize(
    ("first_slot", "last_slot", "writable"),
    [(8, 8, True), (8, 11, True), (7, 8, False), (0, 0, False), (12, 12, False), (8, 12, False)],
)
def test_only_private_slots_of_the_table_are_writable(first_slot: int, last_slot: int, writable: bool) -> None:
    cache = BlockCache(16, 4, True)
    request = compute(cache, make_request("first"))
    if writable:
        cache.assert_writable(request, first_slot, last_slot)
    else:
        with pytest.raises(ConsistencyError):
            cache.assert_writable(request, first_slot, last_slot)


def test_a_shared_block_is_not_writable_even_when_it_cannot_be_found() -> None:
    cache = BlockCache(16, 4, False)
    request = make_request("first")
    assert cache.grow(request, 4)
    cache._ref_counts[request.block_ids[0]] += 1
    with pytest.raises(ConsistencyError):
        cache.assert_writable(request, 0, 0)


def lose_a_block(cache: BlockCache, request: Request) -> None:
    cache._blank_blocks.pop()


def free_a_used_block(cache: BlockCache, request: Request) -> None:
    cache._blank_blocks.append(request.block_ids[-1])


def forget_a_table_entry(cache: BlockCache, request: Request) -> None:
    request.block_ids.pop()


def repeat_a_table_entry(cache: BlockCache, request: Request) -> None:
    cache._ref_counts[request.block_ids[0]] += 1
    request.block_ids.append(request.block_ids[0])


def change_a_published_token(cache: BlockCache, request: Request) -> None:
    request.token_ids[1] = 77


def unregister_a_block(cache: BlockCache, request: Request) -> None:
    del cache._known[request.block_ids[0]]


def cut_off_a_block(cache: BlockCache, request: Request) -> None:
    cache._root.children.clear()


def claim_draft_rows(cache: BlockCache, request: Request) -> None:
    cache._known[request.block_ids[1]].has_draft_rows = True


def remember_a_stranger(cache: BlockCache, request: Request) -> None:
    cache._published["stranger"] = cache._root


@pytest.mark.parametrize(
    "sabotage",
    [
        lose_a_block,
        free_a_used_block,
        forget_a_table_entry,
        repeat_a_table_entry,
        change_a_published_token,
        unregister_a_block,
        cut_off_a_block,
        claim_draft_rows,
        remember_a_stranger,
    ],
)
def test_integrity_check_notices(sabotage: Callable[[BlockCache, Request], None]) -> None:
    cache = BlockCache(16, 4, True)
    request = compute(cache, make_request("first"))
    cache.check_integrity([request])
    sabotage(cache, request)
    with pytest.raises(ConsistencyError):
        cache.check_integrity([request])
