"""An engine on native kernels: speculation changes when tokens come, never which."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
import torch

from aquiline.config import KVCacheDtype
from aquiline.engine.engine import Engine
from aquiline.kernels import cpu
from aquiline.kernels.cpu import Threads
from aquiline.models.loading import expected_draft_tensors
from aquiline.models.native_eagle import NativeEagle
from aquiline.models.native_llama import NativeLlama
from aquiline.request import Request, SamplingParams
from tests.kernels.cpu.levels import LEVELS
from tests.models.native_models import packable_config, rounded, target_tensors
from tests.tiny import (
    ScriptedDrafter,
    TinySettings,
    random_tensors,
    run_prompts,
    tiny_eagle_config,
    tiny_engine,
    token_ids,
)

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason=cpu.why_not())
PROMPTS = ((3, 1, 4, 1, 5), tuple(range(40)), (7,))
PARAMS = [
    SamplingParams(temperature=0, max_tokens=24, ignore_eos=True),
    SamplingParams(temperature=1.0, seed=5, max_tokens=24, ignore_eos=True),
    SamplingParams(temperature=0.7, seed=6, top_p=0.9, max_tokens=24, ignore_eos=True),
]
RULES = [
    SamplingParams(temperature=0, repetition_penalty=1.3, frequency_penalty=0.4, max_tokens=20, ignore_eos=True),
    SamplingParams(seed=1, presence_penalty=1.5, top_k=7, max_tokens=20, ignore_eos=True),
    SamplingParams(seed=2, temperature=1.3, min_p=0.05, logit_bias={3: 2.5, 9: -4.0}, max_tokens=20, ignore_eos=True),
    SamplingParams(seed=3, allowed_token_ids=tuple(range(2, 40)), banned_token_ids=(5, 6), top_p=0.8, max_tokens=20),
    SamplingParams(seed=4, min_tokens=12, stop_token_ids=tuple(range(8)), frequency_penalty=-0.5, max_tokens=20),
    SamplingParams(temperature=0, logit_bias={1: 50.0}, frequency_penalty=2.0, max_tokens=20, ignore_eos=True),
    SamplingParams(seed=5, temperature=0.6, top_k=9, top_p=0.9, min_p=0.02, repetition_penalty=0.8, logprobs=2, n=2),
]


def native_engine(
    quantization: str, speculate: str, num_threads: int, kv_cache_dtype: KVCacheDtype = "auto", kind: str = "eagle3"
) -> Engine:
    """An engine whose states are checked after every step."""
    config = packable_config()
    draft_config = tiny_eagle_config(config, kind, draft_vocab_size=config.vocab_size)
    aux_layer_ids = draft_config.aux_layer_ids
    target = NativeLlama.pack(config, target_tensors(config), quantization, Threads(num_threads), aux_layer_ids)
    draft_config = replace(draft_config, layers=replace(draft_config.layers, intermediate_size=64))
    shapes = dict(expected_draft_tensors(draft_config))
    shapes.pop("draft_to_target_ids")
    tensors = rounded(random_tensors(shapes, 1, scale=0.15))
    tensors["draft_to_target_ids"] = torch.arange(config.vocab_size)
    draft = NativeEagle.pack(draft_config, tensors, target, quantization)
    settings = TinySettings(
        speculate=speculate,
        check_consistency=speculate != "off",
        max_num_batched_tokens=32,
        kv_cache_dtype=kv_cache_dtype,
    )
    return tiny_engine(settings, cast(Any, target), cast(Any, draft))


@pytest.mark.parametrize("kv_cache_dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
@pytest.mark.parametrize(
    "speculate",
    ["chain:3", "tree:3x2x1", "dynamic:steps=3,topk=3,nodes=8,survival=0.02", "dynamic:steps=3,topk=3,nodes=8"],
)
def test_speculation_on_native_kernels_changes_no_token(
    quantization: str, speculate: str, kv_cache_dtype: KVCacheDtype
) -> None:
    check_speculation_changes_no_token(quantization, speculate, kv_cache_dtype)


@pytest.mark.parametrize("quantization", ["none", "int4"])
@pytest.mark.parametrize("speculate", ["chain:3", "dynamic:steps=3,topk=2,nodes=6"])
def test_an_eagle1_draft_changes_no_token(quantization: str, speculate: str) -> None:
    check_speculation_changes_no_token(quantization, speculate, kind="eagle1")


def check_speculation_changes_no_token(
    quantization: str, speculate: str, kv_cache_dtype: KVCacheDtype = "auto", kind: str = "eagle3"
) -> None:
    plain = token_ids(run_prompts(native_engine(quantization, "off", 1, kv_cache_dtype, kind), PROMPTS, PARAMS))
    histories = [(*prompt, *tokens) for prompt, tokens in zip(PROMPTS, plain, strict=True)]

    def mostly_right(request: Request, position: int, rank: int, proposal: int) -> int:
        history = histories[int(request.request_id.split("-")[0])]
        return history[position] if rank == 0 and position % 4 and position < len(history) else proposal

    engine = native_engine(quantization, speculate, 2, kv_cache_dtype, kind)
    ScriptedDrafter.replace_in(engine, mostly_right)
    outputs = run_prompts(engine, PROMPTS, PARAMS)
    assert token_ids(outputs) == plain
    accepted = [output.outputs[0].speculation.num_accepted_draft_tokens for output in outputs]
    assert min(accepted) > 5
    alone = native_engine(quantization, speculate, 1, kv_cache_dtype, kind)
    assert token_ids(run_prompts(alone, PROMPTS[1:2], PARAMS[1:2])) == plain[1:2]


@pytest.mark.parametrize("quantization", ["none", "int4"])
def test_trees_of_roots_alone_change_no_token(quantization: str) -> None:
    """No token of the draft is ever so likely."""
    plain = token_ids(run_prompts(native_engine(quantization, "off", 1), PROMPTS, PARAMS))
    engine = native_engine(quantization, "dynamic:steps=3,topk=3,nodes=8,survival=0.999999", 2)
    outputs = run_prompts(engine, PROMPTS, PARAMS)
    assert token_ids(outputs) == plain
    assert sum(output.outputs[0].speculation.num_draft_tokens for output in outputs) == 0


@pytest.mark.parametrize("kv_cache_dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("level", LEVELS)
def test_no_instruction_set_changes_a_token_by_speculation(
    level: str, kv_cache_dtype: KVCacheDtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AQUILINE_CPU_LEVEL", level)
    if cpu.level() != level:
        pytest.skip(f"this machine has no {level}")
    check_speculation_changes_no_token("int8", "tree:3x2x1", kv_cache_dtype)


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
@pytest.mark.parametrize(
    "speculate",
    ["chain:3", "tree:3x2x1", "dynamic:steps=3,topk=3,nodes=8,survival=0.02", "dynamic:steps=3,topk=3,nodes=8"],
)
def test_no_parameter_makes_a_difference_between_speculation_and_none(quantization: str, speculate: str) -> None:
    """Together and speculating, or plainly and one by one."""
    prompts = [(7, number, 3) for number in range(len(RULES))]
    plain = []
    for prompt, params in zip(prompts, RULES, strict=True):
        plain += token_ids(run_prompts(native_engine(quantization, "off", 1), [prompt], [params]))
    engine = native_engine(quantization, speculate, 2)
    outputs = run_prompts(engine, prompts, RULES)
    assert token_ids(outputs) == plain
    assert sum(output.outputs[0].speculation.num_accepted_draft_tokens for output in outputs) > 0
