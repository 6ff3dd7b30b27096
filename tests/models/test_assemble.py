"""Which kernels run a model, and that a draft on them changes nothing but the clock."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from aquiline.config import Backend
from aquiline.errors import InvalidParameterError, ModelFormatError, UnsupportedFeatureError
from aquiline.kernels import cpu
from aquiline.models.assemble import ModelSettings, assemble_models
from aquiline.models.eagle import EagleModel
from aquiline.models.llama import LlamaModel
from aquiline.models.loading import expected_draft_tensors, expected_target_tensors, open_target
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


@needs_native
def test_an_eagle1_head_keeps_nothing_from_native_kernels(folder: Path, tmp_path: Path) -> None:
    config = tiny_eagle_config(TARGET, "eagle1", has_own_embedding=True, fc_bias=True)
    draft = write_draft(tmp_path / "eagle1", replace(config, layers=replace(config.layers, intermediate_size=96)))
    models = assemble_models(folder / "target", draft, SETTINGS)
    assert models.backend == "cpu"
    plain = tiny_engine(TinySettings("off", dtype="bfloat16"), models.target, models.draft)
    engine = tiny_engine(TinySettings("chain:3", dtype="bfloat16", check_consistency=True), models.target, models.draft)
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=12, ignore_eos=True)
    prompts = ((3, 1, 4), (1, 5))
    assert token_ids(run_prompts(engine, prompts, params)) == token_ids(run_prompts(plain, prompts, params))


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
    for name in ("quantization", "draft_quantization"):
        settings = replace(SETTINGS, backend="pytorch", **{name: "int8"})  # type: ignore[arg-type]
        with pytest.raises(InvalidParameterError, match=f"--{name.replace('_', '-')} is 'int8'"):
            assemble_models(folder / "target", folder / "draft", settings)


@needs_native
def test_the_draft_is_packed_as_asked(folder: Path) -> None:
    sizes = []
    for quantization in ("none", "int8", "int4"):
        settings = replace(SETTINGS, draft_quantization=quantization)
        draft = assemble_models(folder / "target", folder / "draft", settings).draft
        assert isinstance(draft, NativeEagle)
        sizes.append(draft.num_bytes)
    automatic = assemble_models(folder / "target", folder / "draft", SETTINGS).draft
    assert sizes[0] > sizes[1] > sizes[2]
    assert isinstance(automatic, NativeEagle) and automatic.num_bytes == sizes[1]


@needs_native
@pytest.mark.parametrize(("asked", "served"), [("auto", "int4"), ("int8", "int8"), ("none", "none")])
def test_a_draft_is_served_as_it_was_trained_unless_something_else_is_asked_for(
    asked: str, served: str, folder: Path, tmp_path: Path
) -> None:
    plain = replace(SETTINGS, draft_quantization=served)  # type: ignore[arg-type]
    expected = assemble_models(folder / "target", folder / "draft", plain).draft
    trained = Path(shutil.copytree(folder / "draft", tmp_path / "draft"))
    config = json.loads((trained / "config.json").read_text())
    (trained / "config.json").write_text(json.dumps(config | {"aquiline": {"quantization": "int4"}}))
    draft = assemble_models(folder / "target", trained, replace(SETTINGS, draft_quantization=asked)).draft  # type: ignore[arg-type]
    assert isinstance(draft, NativeEagle) and isinstance(expected, NativeEagle)
    assert draft.num_bytes == expected.num_bytes


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


@needs_native
@pytest.mark.parametrize("backend", ["cpu", "pytorch"])
@pytest.mark.parametrize("has_draft", [False, True], ids=["target", "with draft"])
def test_progress_counts_every_weight_once(backend: Backend, has_draft: bool, folder: Path) -> None:
    calls: list[tuple[int, int]] = []
    draft_folder = folder / "draft" if has_draft else None
    settings = replace(SETTINGS, backend=backend)
    assemble_models(folder / "target", draft_folder, settings, lambda done, total: calls.append((done, total)))
    shapes = [*expected_target_tensors(TARGET).values()]
    if has_draft:
        shapes += expected_draft_tensors(DRAFT).values()
    total = sum(math.prod(shape) for shape in shapes)
    assert calls[-1] == (total, total)
    assert [done for done, _ in calls] == sorted({done for done, _ in calls})
    assert {total for _, total in calls} == {total} and len(calls) > TARGET.num_layers


@needs_native
def test_a_tensor_is_read_when_its_turn_comes(folder: Path) -> None:
    spoiled = folder / "spoiled"
    write_target(spoiled, TARGET)
    read: list[str] = []
    opened = open_target(spoiled, torch.bfloat16, read.append)
    assert not read
    assert opened.tensors["model.norm.weight"].shape == (TARGET.hidden_size,)
    assert read == ["model.norm.weight"]
    shutil.rmtree(spoiled)
    with pytest.raises(ModelFormatError, match="spoiled"):
        opened.tensors["model.embed_tokens.weight"]
