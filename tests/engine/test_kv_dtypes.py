"""Keys and values in another type than the model's: rounded alike wherever and whenever they are computed."""

from __future__ import annotations

import pytest
import torch

from aquiline.config import CacheConfig, EngineConfig, KVCacheDtype
from aquiline.engine.engine import Engine
from aquiline.errors import ConsistencyError, InvalidParameterError
from aquiline.request import SamplingParams
from tests.engine.workloads import (
    DRAFT_KINDS,
    Job,
    Script,
    answers,
    assert_nothing_left,
    histories_of,
    make_engine,
    random_prompt,
    run_jobs,
)
from tests.tiny import ScriptedDrafter, TinySettings

JOBS = [
    Job(random_prompt(21, seed=1), SamplingParams(temperature=0, max_tokens=14, ignore_eos=True)),
    Job(random_prompt(3, seed=2), SamplingParams(seed=4, temperature=0.9, top_p=0.9, max_tokens=14, ignore_eos=True)),
    Job((5,), SamplingParams(seed=8, max_tokens=14, ignore_eos=True)),
]
OTHER_DTYPES: tuple[KVCacheDtype, ...] = ("bfloat16", "int8")


@pytest.mark.parametrize("kv_cache_dtype", OTHER_DTYPES)
@pytest.mark.parametrize("kind", DRAFT_KINDS)
@pytest.mark.parametrize("mode", ["chain:3", "tree:3x2x1", "dynamic:steps=2,topk=3,nodes=5"])
def test_speculation_changes_no_token(mode: str, kind: str, kv_cache_dtype: KVCacheDtype) -> None:
    plain = make_engine(TinySettings(kv_cache_dtype=kv_cache_dtype), kind)
    expected = [answers(run_jobs(plain, [job])["0"]) for job in JOBS]
    settings = TinySettings(mode, kv_cache_dtype=kv_cache_dtype, max_num_batched_tokens=16, check_consistency=True)
    engine = make_engine(settings, kind)
    ScriptedDrafter.replace_in(engine, Script(histories_of(JOBS, expected), period=3).chooser())
    outputs = run_jobs(engine, JOBS)
    assert [answers(outputs[str(index)]) for index in range(len(JOBS))] == expected
    assert sum(output.outputs[0].speculation.num_accepted_draft_tokens for output in outputs.values()) > 10
    assert_nothing_left(engine)


def test_eight_bits_change_what_the_model_sees() -> None:
    logprobs = []
    both: tuple[KVCacheDtype, ...] = ("float32", "int8")
    for dtype in both:
        engine = make_engine(TinySettings(kv_cache_dtype=dtype))
        job = Job(random_prompt(30), SamplingParams(temperature=0, max_tokens=1, logprobs=0, prompt_logprobs=0))
        (answer,) = answers(run_jobs(engine, [job])["0"])
        assert answer.prompt_logprobs is not None
        logprobs.append(torch.tensor([each.logprob for each in answer.prompt_logprobs if each is not None]))
    difference = (logprobs[0] - logprobs[1]).abs()
    assert 0 < difference.max() < 0.5


@pytest.mark.parametrize("kv_cache_dtype", OTHER_DTYPES)
def test_cached_blocks_keep_what_they_held(kv_cache_dtype: KVCacheDtype) -> None:
    engine = make_engine(TinySettings("chain:3", kv_cache_dtype=kv_cache_dtype, check_consistency=True))
    first = answers(run_jobs(engine, JOBS[:1])["0"])
    steps_of_first = engine.num_steps
    rows: list[int] = []
    forward = engine._models.target.forward

    def counted(*args):  # type: ignore[no-untyped-def]
        rows.append(len(args[0].token_ids))
        return forward(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine._models.target, "forward", counted)
        assert answers(run_jobs(engine, JOBS[:1])["0"]) == first
    assert engine.num_steps == 2 * steps_of_first
    assert rows[0] < len(JOBS[0].prompt) - 15


def running_engine() -> Engine:
    engine = make_engine(TinySettings("chain:3", kv_cache_dtype="int8"))
    engine.add_request("watched", random_prompt(9), SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))
    for _ in range(3):
        engine.step()
    return engine


@pytest.mark.parametrize("part", ["keys", "values", "key_scales", "value_scales"])
@pytest.mark.parametrize("model", ["target", "draft"])
def test_the_check_compares_numbers_and_scales(model: str, part: str) -> None:
    engine = running_engine()
    engine.check_consistency()
    layout, request = engine.pool.layout, engine.scheduler.running[0]
    layer = (engine.pool.target_layers if model == "target" else engine.pool.draft_layers)[0]
    with torch.inference_mode():
        tensor = getattr(layer, part)
        tensor[layout.page_slot(request.block_ids, 5)] += 1
    with pytest.raises(ConsistencyError, match=rf"{model} KV of layer 0 \({part.replace('_', ' ')}\).* position 5"):
        engine.check_consistency()


def test_unwritten_scales_are_poisoned() -> None:
    pool = make_engine(TinySettings(kv_cache_dtype="int8", poison=True)).pool
    for layer in [*pool.target_layers, *pool.draft_layers]:
        assert layer.keys.dtype == layer.values.dtype == torch.int8
        assert layer.key_scales is not None and bool(layer.key_scales.isnan().all())
        assert layer.value_scales is not None and bool(layer.value_scales.isnan().all())


def test_a_type_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="kv_cache_dtype is 'fp8'; it must be auto, bfloat16, float32 or"):
        CacheConfig(kv_cache_dtype="fp8")  # type: ignore[arg-type]


def test_auto_is_the_type_of_the_engine() -> None:
    assert EngineConfig(dtype="float32").kv_dtype == "float32"
    assert EngineConfig(dtype="bfloat16").kv_dtype == "bfloat16"
    assert EngineConfig(dtype="float32", cache=CacheConfig(kv_cache_dtype="int8")).kv_dtype == "int8"
