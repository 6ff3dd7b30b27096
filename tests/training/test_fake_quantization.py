"""Weights are rounded in training exactly as the native kernels round them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from aquiline.config import EngineConfig, Quantization
from aquiline.kernels import cpu
from aquiline.kernels.cpu.packed import PackedLinear
from aquiline.models.draft_metadata import read_draft_metadata
from aquiline.training.evaluation_prompts import held_out_prompts
from aquiline.training.fake_quantization import ServedQuantization, fake_quantized
from aquiline.training.run_settings import RunSettings
from aquiline.training.settings import TrainingSettings
from tests.training.toy_run import toy_settings, toy_trainer


@pytest.mark.skipif(not cpu.is_available(), reason=cpu.why_not())
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_values_are_those_of_the_native_kernels(quantization: ServedQuantization) -> None:
    torch.manual_seed(0)
    weight = torch.randn(48, 160) * torch.logspace(-4, 2, 48)[:, None]
    weight[3, :32], weight[4, 32:64], weight[5, 0] = 0.5, 0.0, 300.0
    served = PackedLinear.from_tensor(weight, quantization).unpack()
    assert torch.allclose(fake_quantized(weight, quantization), served, rtol=1e-6, atol=1e-7)


def test_it_is_as_in_the_worked_example() -> None:
    group = torch.linspace(-0.3, 1.2, 31).tolist()
    weight = torch.tensor([[*group, 0.46]])
    assert float(fake_quantized(weight, "int4")[0, -1]) == pytest.approx(0.5, abs=1e-3)


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


@pytest.mark.parametrize(
    ("asked", "aware", "served"),
    [("auto", "none", "auto"), ("auto", "int4", "int4"), ("int8", "int4", "int8"), ("none", "none", "none")],
)
def test_checkpoints_are_measured_as_they_were_trained(
    asked: Quantization, aware: ServedQuantization, served: Quantization, tmp_path: Path
) -> None:
    training, engine = TrainingSettings(quantization_aware=aware), EngineConfig(draft_quantization=asked)
    settings = RunSettings("target", tmp_path, (str(tmp_path),), held_out_prompts(), training, engine=engine)
    assert settings.serving.draft_quantization == served
