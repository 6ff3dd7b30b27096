from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aquiline.config import CacheConfig, EngineConfig, SchedulerConfig, SpeculativeConfig
from aquiline.errors import InvalidParameterError
from aquiline.speculation import parse_speculation

WHOLE_NUMBERS = [
    (CacheConfig, "block_size", 1),
    (CacheConfig, "num_blocks", 1),
    (SchedulerConfig, "max_num_seqs", 1),
    (SchedulerConfig, "max_num_batched_tokens", 1),
    (SchedulerConfig, "max_model_len", 2),
]
NOT_WHOLE = st.one_of(st.floats(), st.booleans(), st.text(), st.lists(st.integers(), max_size=2))


def test_defaults_are_valid_and_speculate() -> None:
    config = EngineConfig()
    assert config.speculative.mode.is_auto
    assert config.cache.enable_prefix_cache
    assert not config.check_consistency


@pytest.mark.parametrize(("record", "name", "lowest"), WHOLE_NUMBERS, ids=[name for _, name, _ in WHOLE_NUMBERS])
def test_whole_numbers_have_a_lowest_value(record: Callable[..., object], name: str, lowest: int) -> None:
    room = {"max_num_seqs": 1} if record is SchedulerConfig else {}
    assert getattr(record(**room | {name: lowest}), name) == lowest
    for value in (lowest - 1, -(10**30)):
        with pytest.raises(InvalidParameterError, match=rf"^{name} is {value}; .* at least {lowest}$"):
            record(**{name: value})


@pytest.mark.parametrize(("record", "name", "lowest"), WHOLE_NUMBERS, ids=[name for _, name, _ in WHOLE_NUMBERS])
@given(value=NOT_WHOLE)
def test_whole_numbers_are_nothing_else(record: Callable[..., object], name: str, lowest: int, value: object) -> None:
    with pytest.raises(InvalidParameterError, match=f"^{name} is "):
        record(**{name: value})


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), float("-inf"), 1e308, 10**400, True, "1"])
def test_the_cache_size_is_a_positive_number(value: Any) -> None:
    with pytest.raises(InvalidParameterError, match=r"kv_cache_gb is .* positive number of GiB"):
        CacheConfig(kv_cache_gb=value)


def test_the_cache_size_is_given_once() -> None:
    with pytest.raises(InvalidParameterError, match="set only one of them"):
        CacheConfig(num_blocks=8, kv_cache_gb=1.0)


def test_a_step_holds_a_token_of_every_request() -> None:
    assert SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=8).max_num_seqs == 8
    with pytest.raises(InvalidParameterError, match="max_num_batched_tokens is 7 and max_num_seqs 8"):
        SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=7)


@pytest.mark.parametrize("text", ["off", "auto", "chain:3", "tree:2x2", "paths:0,1"])
def test_multi_round_takes_any_fixed_shape(text: str) -> None:
    assert SpeculativeConfig(parse_speculation(text), "multi_round").acceptance == "multi_round"


def test_multi_round_refuses_a_shape_that_depends_on_the_draws() -> None:
    with pytest.raises(InvalidParameterError, match="use chain:, tree: or paths:"):
        SpeculativeConfig(parse_speculation("dynamic:steps=2"), "multi_round")


def test_unknown_words_are_refused() -> None:
    with pytest.raises(InvalidParameterError, match="acceptance is 'typical'; it must be keyed or multi_round"):
        SpeculativeConfig(acceptance="typical")  # type: ignore[arg-type]
    with pytest.raises(InvalidParameterError, match="dtype is 'float16'; it must be float32 or bfloat16"):
        EngineConfig(dtype="float16")  # type: ignore[arg-type]
    with pytest.raises(InvalidParameterError, match="draft_quantization is 'q4'; it must be auto, none, int8 or int4"):
        EngineConfig(draft_quantization="q4")  # type: ignore[arg-type]
    with pytest.raises(InvalidParameterError, match="quantization is 'q8'; it must be auto, none, int8 or int4"):
        EngineConfig(quantization="q8")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [None, {}, EngineConfig()], ids=["None", "dict", "another"])
@pytest.mark.parametrize("name", ["cache", "scheduler", "speculative", "grammars"])
def test_parts_are_what_they_are_called(name: str, value: object) -> None:
    kind = name.removesuffix("s").capitalize()
    with pytest.raises(InvalidParameterError, match=f"^{name} is .*; it must be a {kind}Config$"):
        EngineConfig(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [None, 4, b"off", ["chain:4"]])
def test_a_shape_is_parsed_from_text(value: Any) -> None:
    with pytest.raises(InvalidParameterError, match=r"--speculate is .*; it must be off, auto"):
        parse_speculation(value)


def test_a_shape_is_parsed_before_it_becomes_a_setting() -> None:
    with pytest.raises(InvalidParameterError, match="mode is 'chain:4'; use parse_speculation"):
        SpeculativeConfig(mode="chain:4")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("record", "name"),
    [(CacheConfig, "enable_prefix_cache"), (EngineConfig, "check_consistency"), (EngineConfig, "poison_memory")],
    ids=["enable_prefix_cache", "check_consistency", "poison_memory"],
)
@pytest.mark.parametrize("value", [0, 1, None, "no"])
def test_switches_are_true_or_false(record: Callable[..., object], name: str, value: object) -> None:
    with pytest.raises(InvalidParameterError, match=f"^{name} is {value!r}; it must be true or false$"):
        record(**{name: value})


def test_settings_cannot_change_afterwards() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        EngineConfig().dtype = "float32"  # type: ignore[misc]
