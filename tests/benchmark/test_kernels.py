"""`bench kernels` on a tiny model: every kernel is there at every number of rows, with its floor."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aquiline.benchmark.kernels import KernelSweep, measure_kernels
from aquiline.config import CacheConfig, EngineConfig, KVCacheDtype, SchedulerConfig
from aquiline.engine.engine import Engine, EngineModels
from aquiline.errors import InvalidParameterError, UnsupportedFeatureError
from aquiline.kernels import cpu
from aquiline.llm import LLM
from aquiline.models.interfaces import DraftModel, TargetModel
from aquiline.token_bytes import IncrementalDecoder
from tests.models.native_models import draft_pair, packable_config, target_pair
from tests.tiny import tiny_eagle_config

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason=cpu.why_not())
LINEAR = {"linear qkv", "linear o", "linear gate_up", "linear down", "linear head"}
DRAFT = {"draft forward", "draft head"}


def no_decoder(token_ids: object, skip_special_tokens: bool) -> IncrementalDecoder:
    raise AssertionError("no text is made here")


def loaded(target: TargetModel, draft: DraftModel | None, kv_cache_dtype: KVCacheDtype = "auto") -> LLM:
    """What `measure_kernels` reads of an LLM."""
    models = EngineModels(target, draft, no_decoder, frozenset())
    engine = Engine(
        models,
        EngineConfig(cache=CacheConfig(kv_cache_dtype=kv_cache_dtype), scheduler=SchedulerConfig(max_num_seqs=1)),
    )
    return cast(LLM, SimpleNamespace(models=models, engine=engine))


@pytest.mark.parametrize(
    ("quantization", "has_draft", "kv_cache_dtype"), [("none", True, "auto"), ("int8", False, "int8")]
)
def test_every_kernel_is_measured_at_every_number_of_rows(
    quantization: str, has_draft: bool, kv_cache_dtype: KVCacheDtype
) -> None:
    config = packable_config()
    targets = target_pair(config, quantization)
    draft = (
        draft_pair(tiny_eagle_config(config, layers=replace(config, num_layers=1)), targets)[1] if has_draft else None
    )
    calls: list[tuple[int, int]] = []
    sweep = KernelSweep(row_counts=(1, 3, 40), context=17, num_rounds=2)
    result = measure_kernels(loaded(targets[1], draft, kv_cache_dtype), sweep, lambda *progress: calls.append(progress))
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in result["rows"]:
        rows.setdefault(row["kernel"], []).append(row)
    for kernel, measured in rows.items():
        takes_all = kernel in LINEAR | {"rms_norm", "rotate", "silu_multiply"}
        expected = [256] if kernel == "prefill" else [1, 3, 40] if takes_all else [1, 3]
        assert [row["num_rows"] for row in measured] == expected, kernel
        assert all(0 < row["p10_us"] <= row["median_us"] <= row["p90_us"] for row in measured)
        assert all(row["floor_us"] > 0 and row["ratio_to_floor"] > 0 for row in measured), kernel
        assert measured[0]["ratio_to_first"] == 1.0
    assert rows.keys() >= LINEAR | {"attention", "sample greedy", "sample keyed", "target step"}
    assert (rows.keys() >= DRAFT) == has_draft
    step = rows["target step"][1]
    assert step["tokens_per_second"] == pytest.approx(3e6 / step["median_us"], rel=0.01)
    assert result["packed_bytes"] == targets[1].num_bytes
    assert calls[-1] == (3 * len(result["rows"]), 3 * len(result["rows"]))


@pytest.mark.parametrize("context", [-1, 0, 1, 257])
def test_a_context_that_the_model_does_not_have_is_refused(context: int) -> None:
    llm = loaded(target_pair(packable_config())[1], None)
    with pytest.raises(InvalidParameterError, match="--context is"):
        measure_kernels(llm, KernelSweep(row_counts=(1,), context=context, num_rounds=1))


def test_a_model_on_pytorch_is_refused() -> None:
    with pytest.raises(UnsupportedFeatureError, match="native"):
        measure_kernels(loaded(target_pair(packable_config())[0], None), KernelSweep())
