"""Sizes that the engine settles once, and settings that do not fit together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aquiline.config import CacheConfig, EngineConfig, KVCacheDtype, SchedulerConfig, SpeculativeConfig
from aquiline.engine.planner_choice import MOST_AUTO_NODES, bounds_of
from aquiline.engine.sizing import EngineSizes
from aquiline.errors import InvalidParameterError
from aquiline.speculation import parse_speculation
from tests.tiny import tiny_eagle_config, tiny_llama_config

TARGET = tiny_llama_config()
DRAFT = tiny_eagle_config(TARGET)
# K and V of 2 heads of 16 float32 numbers, in 4 target layers and 1 draft layer.
TARGET_TOKEN_BYTES = 4 * 2 * 2 * 16 * 4
DRAFT_TOKEN_BYTES = 1 * 2 * 2 * 16 * 4


def sizes(config: EngineConfig, mode: str = "off") -> EngineSizes:
    config = replace(config, dtype="float32", speculative=SpeculativeConfig(parse_speculation(mode)))
    draft = None if mode == "off" else DRAFT
    return EngineSizes.derive(
        config, TARGET, draft, bounds_of(config.speculative, draft.draft_vocab_size if draft else 0)
    )


def test_the_context_is_the_models_unless_a_smaller_one_is_asked_for() -> None:
    assert sizes(EngineConfig()).max_model_len == 256
    assert sizes(EngineConfig(scheduler=SchedulerConfig(max_model_len=40))).max_model_len == 40
    assert sizes(EngineConfig(scheduler=SchedulerConfig(max_model_len=256))).max_model_len == 256
    with pytest.raises(InvalidParameterError, match=r"max_model_len is 257; .* at most 256 tokens"):
        sizes(EngineConfig(scheduler=SchedulerConfig(max_model_len=257)))


@pytest.mark.parametrize("block_size", [1, 4, 16, 100])
def test_by_default_every_request_may_reach_its_full_length(block_size: int) -> None:
    config = EngineConfig(cache=CacheConfig(block_size=block_size), scheduler=SchedulerConfig(max_num_seqs=3))
    layout = sizes(config).layout
    assert layout.num_blocks == 3 * -(-256 // block_size)


def test_the_default_cache_stays_under_a_gibibyte() -> None:
    config = EngineConfig(
        cache=CacheConfig(block_size=256), scheduler=SchedulerConfig(max_num_seqs=9000, max_num_batched_tokens=9000)
    )
    assert sizes(config).layout.num_blocks == 2**30 // (256 * TARGET_TOKEN_BYTES)


def test_asked_sizes_are_kept_to_the_block() -> None:
    assert sizes(EngineConfig(cache=CacheConfig(num_blocks=17))).layout.num_blocks == 17
    for mode, token_bytes in (("off", TARGET_TOKEN_BYTES), ("chain:2", TARGET_TOKEN_BYTES + DRAFT_TOKEN_BYTES)):
        config = EngineConfig(cache=CacheConfig(block_size=4, kv_cache_gb=0.001))
        assert sizes(config, mode).layout.num_blocks == int(0.001 * 2**30 / (4 * token_bytes))


@pytest.mark.parametrize(("kv_cache_dtype", "head_bytes"), [("float32", 64), ("bfloat16", 32), ("int8", 16 + 4)])
def test_narrow_heads_make_room_for_more_blocks(kv_cache_dtype: KVCacheDtype, head_bytes: int) -> None:
    """Heads of 16 numbers; int8 has a float32 scale beside each."""
    config = EngineConfig(cache=CacheConfig(block_size=4, kv_cache_gb=0.001, kv_cache_dtype=kv_cache_dtype))
    assert sizes(config, "chain:2").layout.num_blocks == int(0.001 * 2**30 / (4 * 5 * 2 * 2 * head_bytes))


def test_a_cache_smaller_than_a_block_is_refused_with_the_least_size() -> None:
    with pytest.raises(InvalidParameterError, match=r"kv_cache_gb is 1e-06; it must be at least 1\.53e-05"):
        sizes(EngineConfig(cache=CacheConfig(kv_cache_gb=0.000001)))


def test_a_cache_larger_than_the_memory_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match=r"the cache would take .* GiB; this machine has .* GiB of memory"):
        sizes(EngineConfig(cache=CacheConfig(num_blocks=10**10)))


@pytest.mark.parametrize(
    ("mode", "scratch"),
    [
        ("off", 0),
        ("chain:5", 5),
        ("tree:3x2x1", 15),
        ("dynamic:steps=5,topk=4,nodes=16", 20),
        ("dynamic:steps=2,topk=4,nodes=20", 20),
        ("auto", MOST_AUTO_NODES),
    ],
)
def test_scratch_holds_the_largest_tree(mode: str, scratch: int) -> None:
    layout = sizes(EngineConfig(cache=CacheConfig(num_blocks=10)), mode).layout
    assert layout.scratch_per_row == scratch
    assert layout.num_slots == 10 * 16 + 32 * scratch + 1


@pytest.mark.parametrize("mode", ["tree:41", "dynamic:steps=1,topk=30,nodes=9"])
def test_more_children_than_the_draft_knows_tokens_are_refused(mode: str) -> None:
    config = EngineConfig(speculative=SpeculativeConfig(parse_speculation(mode)))
    draft = replace(DRAFT, draft_vocab_size=29)
    with pytest.raises(InvalidParameterError, match="children at one node; the draft knows only 29 tokens"):
        EngineSizes.derive(config, TARGET, draft, bounds_of(config.speculative, draft.draft_vocab_size if draft else 0))
