"""Weights are rounded in training exactly as the native kernels round them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from aquiline.config import EngineConfig, Quantization
from aquiline.errors import InvalidParameterError
from aquiline.kernels import cpu
from aquiline.kernels.cpu.packed import PackedLinear
from aquiline.models.draft_metadata import read_draft_metadata
from aquiline.models.tensor_shapes import HEAD
from aquiline.training.evaluation_prompts import held_out_prompts
from aquiline.training.fake_quantization import fake_quantized
from aquiline.training.prepare import START, prepare
from aquiline.training.run_settings import RunSettings
from aquiline.training.settings import DraftSettings, ServedQuantization, TrainingSettings
from tests.training.toy_data import write_toy_data
from tests.training.toy_models import write_toys
from tests.training.toy_run import toy_settings, toy_trainer


@pytest.mark.skipif(not cpu.is_available(), reason=cpu.why_not())
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_values_are_those_of_the_native_kernels(quantization: ServedQuantization) -> None:
    torch.manual_seed(0)
    weight = torch.randn(48, 160) * torch.logspace(-4, 2, 48)[:, None]
    weight[3, :32], weight[4, 32:64], weight[5, 0] = 0.5, 0.0, 300.0
    served = PackedLinear.from_tensor(weight.bfloat16(), quantization).unpack()
    assert torch.allclose(fake_quantized(weight, quantization), served, rtol=1e-6, atol=1e-7)


def test_it_is_as_in_the_worked_example() -> None:
    group = torch.linspace(-0.3, 1.2, 31).tolist()
    weight = torch.tensor([[*group, 0.46]])
    assert float(fake_quantized(weight, "int4")[0, -1]) == pytest.approx(0.5, abs=2e-3)


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_gradients_pass_as_if_nothing_were_rounded(quantization: ServedQuantization) -> None:
    weight = torch.randn(4, 64, requires_grad=True)
    given = torch.randn(4, 64)
    fake_quantized(weight, quantization).backward(given)
    assert weight.grad is not None and torch.equal(weight.grad, given)


@pytest.mark.parametrize("shape", [(64,), (4, 48)])
def test_what_groups_do_not_fit_stays_as_it_is(shape: tuple[int, ...]) -> None:
    weight = torch.randn(shape)
    assert torch.equal(fake_quantized(weight, "int4"), weight)


@pytest.mark.parametrize(("quantization", "said"), [("none", ""), ("int8", "int8"), ("int4", "int4")])
def test_a_draft_says_what_it_was_trained_for(quantization: ServedQuantization, said: str, tmp_path: Path) -> None:
    trainer = toy_trainer(tmp_path / "run", toy_settings(quantization_aware=quantization))
    exact, used = trainer.network.parameters, trainer.network.used_weights()
    for name, weight in exact.items():
        assert torch.equal(used[name], fake_quantized(weight, quantization))
    trainer.export(tmp_path / "draft")
    assert read_draft_metadata(tmp_path / "draft").quantization == said


def test_a_head_that_stays_is_rounded_too_and_written_as_it_is(tmp_path: Path) -> None:
    trainer = toy_trainer(tmp_path / "run", toy_settings(quantization_aware="int4", freeze_head=True))
    exact = toy_trainer(tmp_path / "other", toy_settings(freeze_head=True)).network.used_weights()[HEAD]
    assert HEAD not in trainer.network.parameters
    assert torch.equal(trainer.network.used_weights()[HEAD], fake_quantized(exact, "int4"))
    trainer.export(tmp_path / "draft")
    assert torch.equal(load_file(tmp_path / "draft" / "model.safetensors")[HEAD], exact.bfloat16())


@pytest.mark.parametrize("asked", ["auto", "int4"])
def test_a_draft_says_before_training_too_how_it_is_served_and_measured(asked: Quantization, tmp_path: Path) -> None:
    """So `auto` is what a draft was trained for, and nothing on PyTorch, which has no quantised weights."""
    write_toy_data(write_toys(tmp_path))
    draft = DraftSettings(aux_layer_ids=(0, 1, 3), draft_vocab_size=None)
    training = TrainingSettings(draft=draft, quantization_aware="int4", dtype="float32")
    engine = EngineConfig(dtype="float32", draft_quantization=asked)
    settings = RunSettings(
        str(tmp_path / "target"),
        tmp_path / "run",
        (str(tmp_path / "data"),),
        held_out_prompts(),
        training,
        engine=engine,
        num_threads=1,
    )
    if asked == "int4":
        with pytest.raises(InvalidParameterError, match="--draft-quantization is 'int4', but this model runs on Py"):
            prepare(settings, lambda *_: None)
    else:
        assert prepare(settings, lambda *_: None).llm.backend == "pytorch"
    assert read_draft_metadata(settings.output / START).quantization == "int4"
    assert settings.serving.draft_quantization == asked
