"""Every sampling parameter and engine setting as a command-line option, and back to the records."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import Any

from aquiline.cli.guided_options import GUIDED_OPTIONS, guided_params
from aquiline.cli.parser import Option, integer, integer_or_none, number, token_bias, values_given
from aquiline.cli.speculate_table import read_table
from aquiline.config import CacheConfig, EngineConfig, GrammarConfig, Objective, SchedulerConfig, SpeculativeConfig
from aquiline.errors import InvalidParameterError
from aquiline.guided import GuidedParams
from aquiline.request import SamplingParams
from aquiline.speculation import FORMS, parse_speculation

SAMPLING_RECORDS = (SamplingParams, GuidedParams)
ENGINE_RECORDS = (EngineConfig, CacheConfig, SchedulerConfig, SpeculativeConfig, GrammarConfig)

SAMPLING_OPTIONS = (
    Option(
        "--max-tokens", "max_tokens", "most output tokens; none runs to the end of the context", integer_or_none, "N"
    ),
    Option("--min-tokens", "min_tokens", "do not stop before this many output tokens", integer, "N"),
    Option("--temperature", "temperature", "0 is greedy", number, "T", default=0.0),
    Option("--top-p", "top_p", "keep the most likely tokens up to this probability", number, "P"),
    Option("--top-k", "top_k", "keep the K most likely tokens; 0 keeps all", integer, "K"),
    Option("--min-p", "min_p", "drop tokens below this share of the most likely one", number, "M"),
    Option(
        "--seed", "seed", "makes the output repeatable; without it a random one is drawn and reported", integer, "S"
    ),
    Option("--n", "n", "independent answers per prompt", integer, "N"),
    Option("--repetition-penalty", "repetition_penalty", "weakens tokens already in prompt or output", number, "X"),
    Option("--presence-penalty", "presence_penalty", "subtracted for tokens already in the output", number, "X"),
    Option("--frequency-penalty", "frequency_penalty", "subtracted per earlier occurrence in the output", number, "X"),
    Option("--logit-bias", "logit_bias", "added to a token's logit", token_bias, "ID=VALUE", is_repeatable=True),
    Option("--allowed-token-id", "allowed_token_ids", "draw only tokens so named", integer, "ID", is_repeatable=True),
    Option("--banned-token-id", "banned_token_ids", "never draw this token", integer, "ID", is_repeatable=True),
    Option("--stop", "stop", "end the answer before this text", str, "TEXT", is_repeatable=True),
    Option("--include-stop-str-in-output", "include_stop_str_in_output", "keep the stop text at the end of the answer"),
    Option("--stop-token-id", "stop_token_ids", "end the answer at this token", integer, "ID", is_repeatable=True),
    Option("--ignore-eos", "ignore_eos", "go on past the model's end-of-sequence tokens"),
    Option("--keep-special-tokens", "skip_special_tokens", "show special tokens in the text", switch_value=False),
    Option(
        "--logprobs", "logprobs", "report log-probabilities, and of this many likely tokens (with --json)", integer, "N"
    ),
    Option("--prompt-logprobs", "prompt_logprobs", "the same for the prompt's tokens (with --json)", integer, "N"),
    *GUIDED_OPTIONS,
)

ENGINE_OPTIONS = (
    Option("--speculate", "mode", f"draft tree: {FORMS}", parse_speculation, "SHAPE"),
    Option("--objective", "objective", "what auto aims at: throughput, latency or slo:MS", Objective, "AIM"),
    Option(
        "--speculate-table", "table", "shapes by load, from a file, instead of what auto chooses", read_table, "FILE"
    ),
    Option("--acceptance", "acceptance", "acceptance rule: keyed or multi_round", str, "RULE"),
    Option("--draft-check", "draft_check", "a draft no better than chance: off, warn or refuse", str, "ACTION"),
    Option("--lookup", "lookup", "look draft tokens up in the request's own text: auto, on or off", str, "WHEN"),
    Option("--lookup-tokens", "lookup_tokens", "most looked-up draft tokens of a request and step", integer, "N"),
    Option("--lookup-history", "lookup_history", "tokens of ended answers to look up as well", integer, "N"),
    Option("--dtype", "dtype", "of KV, and on PyTorch of the model: float32 or bfloat16", str, "DTYPE"),
    Option("--backend", "backend", "kernels: auto, cpu or pytorch", str, "NAME"),
    Option("--quantization", "quantization", "of weights on native kernels: auto, none, int8 or int4", str, "KIND"),
    Option("--draft-quantization", "draft_quantization", "the same of the draft's weights", str, "KIND"),
    Option("--batch-size", "max_num_seqs", "most requests that run together", integer, "N"),
    Option("--max-num-batched-tokens", "max_num_batched_tokens", "most target rows in one step", integer, "N"),
    Option("--max-model-len", "max_model_len", "most tokens of a request; else the target's context", integer, "N"),
    Option("--block-size", "block_size", "tokens per KV block", integer, "N"),
    Option("--num-blocks", "num_blocks", "blocks in the KV pool, instead of --kv-cache-gb", integer, "N"),
    Option("--kv-cache-gb", "kv_cache_gb", "size of the KV pool in GiB; else as needed, at most 1", number, "GIB"),
    Option("--kv-cache-dtype", "kv_cache_dtype", "of keys and values: auto, bfloat16, float32 or int8", str, "DTYPE"),
    Option("--no-prefix-cache", "enable_prefix_cache", "do not share KV between equal beginnings", switch_value=False),
    Option("--grammar-compile-seconds", "max_compile_seconds", "most time to compile a guide", number, "S"),
    Option("--grammar-compile-mb", "max_compile_mb", "most memory to compile a guide", integer, "MIB"),
    Option("--grammar-mask-ms", "max_mask_ms", "most time of a request's masks in a step", number, "MS"),
    Option("--grammar-mask-mean-ms", "max_mask_mean_ms", "most time of them step after step", number, "MS"),
    Option("--check-consistency", "check_consistency", "recompute and compare all states after every step (slow)"),
    Option("--poison-memory", "poison_memory", "fill unwritten memory with NaN, so that a leak shows (for tests)"),
)


def sampling_params(args: argparse.Namespace) -> SamplingParams:
    """The sampling parameters that were typed.

    Raises:
        InvalidParameterError: a value outside its range, two biases for one token, or a guide that cannot be used.
    """
    values = values_given(args, SAMPLING_OPTIONS)
    if "logit_bias" in values:
        pairs = values["logit_bias"]
        values["logit_bias"] = dict(pairs)
        for token_id in values["logit_bias"]:
            if sum(other == token_id for other, _ in pairs) > 1:
                raise InvalidParameterError(f"--logit-bias names token id {token_id} more than once; give it one value")
    return SamplingParams(**_for_record(SamplingParams, values), guided=guided_params(args))


def engine_config(args: argparse.Namespace, options: Sequence[Option] = ENGINE_OPTIONS) -> EngineConfig:
    """The engine settings that were typed.

    Args:
        options: those that the command has.

    Raises:
        InvalidParameterError: a value outside its range, or settings that contradict each other.
    """
    values = values_given(args, options)
    return EngineConfig(
        cache=CacheConfig(**_for_record(CacheConfig, values)),
        scheduler=SchedulerConfig(**_for_record(SchedulerConfig, values)),
        speculative=SpeculativeConfig(**_for_record(SpeculativeConfig, values)),
        grammars=GrammarConfig(**_for_record(GrammarConfig, values)),
        **_for_record(EngineConfig, values),
    )


def _for_record(record: type, values: dict[str, Any]) -> dict[str, Any]:
    names = {field.name for field in dataclasses.fields(record)}
    return {name: value for name, value in values.items() if name in names}
