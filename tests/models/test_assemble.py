"""Which kernels run a model, and that a draft on them changes nothing but the clock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from aquiline.errors import InvalidParameterError, UnsupportedFeatureError
from aquiline.kernels import cpu
from aquiline.models.assemble import ModelSettings, assemble_models
from aquiline.models.eagle import EagleModel
from aquiline.models.llama import LlamaModel
from aquiline.models.native_eagle import NativeEagle
from aquiline.models.native_llama import NativeLlama
from aquiline.request import SamplingParams
from tests.checkpoints import write_draft, write_target
from tests.tiny import TinySettings, run_prompts, tiny_eagle_config, tiny_engine, tiny_llama_config, token_ids

TARGET = tiny_llama_config(hidden_size=64, intermediate_size=96)
DRAFT = tiny_eagle_config(TARGET, layers=replace(TARGET, num_layers=1), draft_vocab_size=TARGET.vocab_size)
SETTINGS = ModelSettings(torch.bfloat16, "auto", "auto", 1)
needs_native = pytest.mark.skipif(not cpu.is_available(), reason=cpu.why_not() or "native kernels are there")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_target(folder / "target", TARGET)
    write_draft(folder / "draft", DRAFT)
    write_target(folder / "odd", tiny_llama_config())
    return folder


@needs_native
def test_auto_takes_native_kernels_where_they_fit(folder: Path) -> None:
    models = assemble_models(folder / "target", folder / "draft", SETTINGS)
    assert models.backend == "cpu"
    assert isinstance(models.target, NativeLlama) and isinstance(models.draft, NativeEagle)


@pytest.mark.parametrize(
    "settings",
    [replace(SETTINGS, backend="pytorch"), replace(SETTINGS, dtype=torch.float32)],
    ids=["asked for", "float32"],
)
def test_pytorch_runs_what_native_kernels_should_not(settings: ModelSettings, folder: Path) -> None:
    models = assemble_models(folder / "target", folder / "draft", settings)
    assert models.backend == "pytorch"
    assert isinstance(models.target, LlamaModel) and isinstance(models.draft, EagleModel)


def test_widths_that_cannot_be_packed_run_on_pytorch(folder: Path) -> None:
    assert assemble_models(folder / "odd", None, SETTINGS).backend == "pytorch"
    with pytest.raises(UnsupportedFeatureError, match="--backend pytorch"):
        assemble_models(folder / "odd", None, replace(SETTINGS, backend="cpu"))


def test_missing_kernels_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "is_available", lambda: False)
    monkeypatch.setattr(cpu, "why_not", lambda: "nobody built them")
    assert assemble_models(folder / "target", None, SETTINGS).backend == "pytorch"
    with pytest.raises(UnsupportedFeatureError, match="nobody built them"):
        assemble_models(folder / "target", None, replace(SETTINGS, backend="cpu"))


def test_quantised_weights_need_native_kernels(folder: Path) -> None:
    with pytest.raises(InvalidParameterError, match="int8"):
        assemble_models(folder / "target", None, replace(SETTINGS, backend="pytorch", quantization="int8"))


@needs_native
@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_speculation_changes_nothing_on_native_kernels(quantization: str, temperature: float, folder: Path) -> None:
    settings = replace(SETTINGS, backend="cpu", quantization=quantization)  # type: ignore[arg-type]
    models = assemble_models(folder / "target", folder / "draft", settings)
    prompts = [[1, 2, 3, 4, 5, 6, 7], [9] * 33, [5, 6], [1, 2, 3, 4, 5, 6, 8]]
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=24, ignore_eos=True)
    answers = []
    for speculate in ("off", "chain:3", "tree:3x2x1", "dynamic:steps=3,topk=3,nodes=8"):
        tiny = TinySettings(speculate, num_blocks=24, dtype="bfloat16", check_consistency=True)
        engine = tiny_engine(tiny, models.target, models.draft)
        answers.append(token_ids(run_prompts(engine, prompts, params)))
    assert all(answer == answers[0] for answer in answers)
