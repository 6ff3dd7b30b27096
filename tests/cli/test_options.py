"""The options and the records they fill stay in step."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import pytest

from aquiline.cli.app import build_parser
from aquiline.cli.options import (
    ENGINE_OPTIONS,
    ENGINE_RECORDS,
    SAMPLING_OPTIONS,
    SAMPLING_RECORDS,
    engine_config,
    sampling_params,
)
from aquiline.cli.parser import Option
from aquiline.config import CacheConfig, EngineConfig, SchedulerConfig, SpeculativeConfig
from aquiline.errors import InvalidParameterError
from aquiline.request import SamplingParams
from aquiline.speculation import parse_speculation

NESTED = {"cache", "scheduler", "speculative", "guided", "grammars"}
# What one request may ask for apart from others; the command line has --speculate for all of them.
OF_ONE_REQUEST = {"speculation"}


def parse(*argv: str) -> argparse.Namespace:
    return build_parser().parse_args(["generate", "--prompt", "x", *argv])


@pytest.mark.parametrize(
    ("options", "records"),
    [(SAMPLING_OPTIONS, SAMPLING_RECORDS), (ENGINE_OPTIONS, ENGINE_RECORDS)],
    ids=["sampling", "engine"],
)
def test_every_field_has_exactly_one_option(options: tuple[Option, ...], records: tuple[type, ...]) -> None:
    fields = [field.name for record in records for field in dataclasses.fields(record)]
    assert sorted(option.field for option in options) == sorted(set(fields) - NESTED - OF_ONE_REQUEST)


def test_nothing_typed_gives_the_records_defaults_except_for_greedy_decoding() -> None:
    assert sampling_params(parse()) == SamplingParams(temperature=0.0)
    assert engine_config(parse()) == EngineConfig()


def test_every_sampling_option_arrives() -> None:
    argv = (
        "--max-tokens 9 --min-tokens 2 --temperature 0.8 --top-p 0.9 --top-k 40 --min-p 0.05 --seed 3 --n 2 "
        "--repetition-penalty 1.1 --presence-penalty -0.5 --frequency-penalty 0.25 --logit-bias 5=-1.5 "
        "--logit-bias 6=2 --allowed-token-id 7 --allowed-token-id 8 --banned-token-id 8 --stop a --stop b "
        "--include-stop-str-in-output --stop-token-id 4 --ignore-eos --keep-special-tokens --logprobs 1 "
        "--prompt-logprobs 0"
    )
    assert sampling_params(parse(*argv.split())) == SamplingParams(
        max_tokens=9,
        min_tokens=2,
        temperature=0.8,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        seed=3,
        n=2,
        repetition_penalty=1.1,
        presence_penalty=-0.5,
        frequency_penalty=0.25,
        logit_bias={5: -1.5, 6: 2.0},
        allowed_token_ids=[7, 8],
        banned_token_ids=[8],
        stop=["a", "b"],
        include_stop_str_in_output=True,
        stop_token_ids=[4],
        ignore_eos=True,
        skip_special_tokens=False,
        logprobs=1,
        prompt_logprobs=0,
    )


def test_max_tokens_may_be_unlimited() -> None:
    assert sampling_params(parse("--max-tokens", "none")).max_tokens is None


def test_every_engine_option_arrives() -> None:
    argv = (
        "--speculate tree:4x2x1 --acceptance multi_round --dtype float32 --batch-size 3 --max-num-batched-tokens 64 "
        "--max-model-len 512 --block-size 8 --kv-cache-gb 0.5 --no-prefix-cache --check-consistency --poison-memory "
        "--quantization int8"
    )
    assert engine_config(parse(*argv.split())) == EngineConfig(
        dtype="float32",
        quantization="int8",
        cache=CacheConfig(block_size=8, kv_cache_gb=0.5, enable_prefix_cache=False),
        scheduler=SchedulerConfig(max_num_seqs=3, max_num_batched_tokens=64, max_model_len=512),
        speculative=SpeculativeConfig(mode=parse_speculation("tree:4x2x1"), acceptance="multi_round"),
        check_consistency=True,
        poison_memory=True,
    )
    assert engine_config(parse("--num-blocks", "12")).cache.num_blocks == 12


@pytest.mark.parametrize(
    ("flag", "what_it_takes"), [("--guided-json", "JSON object"), ("--guided-grammar", "EBNF with ::= in it")]
)
def test_a_file_of_a_guide_that_cannot_be_read_is_named_with_the_reason(
    flag: str, what_it_takes: str, tmp_path: Path
) -> None:
    missing = str(tmp_path / "missing")
    with pytest.raises(InvalidParameterError) as caught:
        sampling_params(parse(flag, missing))
    told = f"{flag} is {missing!r}, which is no {what_it_takes} and cannot be read as a file: No such file or directory"
    assert str(caught.value) == told
    with pytest.raises(InvalidParameterError, match="cannot be read as a file: Is a directory"):
        sampling_params(parse(flag, str(tmp_path)))
    (tmp_path / "latin").write_bytes(b"\xe9")
    with pytest.raises(InvalidParameterError, match="does not name a file of UTF-8 text"):
        sampling_params(parse(flag, str(tmp_path / "latin")))
