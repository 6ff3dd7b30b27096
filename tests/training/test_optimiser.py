"""Learning rates, AdamW, the moving average, and the watch over the loss."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor

from aquiline.errors import TrainingDivergedError
from aquiline.training.divergence import STEPS_BEFORE_JUDGING, DivergenceWatch
from aquiline.training.optimiser import DraftOptimiser, learning_rate
from aquiline.training.settings import StageSettings, TrainingSettings

STAGE = StageSettings(learning_rate=2.0e-3)


def parameters() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"fc.weight": (3, 4), "norm.weight": (3,)}
    return {name: torch.randn(shape, generator=generator).requires_grad_() for name, shape in shapes.items()}


def give_gradients(weights: dict[str, Tensor], scale: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for weight in weights.values():
        weight.grad = scale * torch.randn(weight.shape, generator=generator)


def test_the_rate_rises_along_a_line_and_falls_along_a_cosine() -> None:
    settings = TrainingSettings(warmup_share=0.1, final_rate_share=0.25)
    expected = {0.0: 0.0, 0.05: 1e-3, 0.1: 2e-3, 0.55: 1.25e-3, 1.0: 5e-4, 1.2: 5e-4}
    for progress, rate in expected.items():
        assert learning_rate(STAGE, settings, progress) == pytest.approx(rate)
    assert learning_rate(STAGE, TrainingSettings(warmup_share=0.0), 0.0) == 2e-3


def adam_steps(start: Tensor, gradients: list[Tensor], rate: float) -> Tensor:
    """AdamW with betas 0.9 and 0.95, as its definition has it."""
    weight, first, second = start.double(), torch.zeros(()).double(), torch.zeros(()).double()
    for number, gradient in enumerate(gradients, start=1):
        first = 0.9 * first + 0.1 * gradient.double()
        second = 0.95 * second + 0.05 * gradient.double() ** 2
        weight = weight - rate * (first / (1 - 0.9**number)) / ((second / (1 - 0.95**number)).sqrt() + 1e-8)
    return weight.float()


def test_norm_gains_get_a_higher_rate_and_long_gradients_are_shortened() -> None:
    weights = parameters()
    start = {name: weight.detach().clone() for name, weight in weights.items()}
    settings = TrainingSettings(norm_rate_factor=5.0, max_gradient_norm=1.0)
    optimiser = DraftOptimiser(weights, settings)
    seen: dict[str, list[Tensor]] = {name: [] for name in weights}
    for step, scale in enumerate((0.01, 10.0)):
        give_gradients(weights, scale, step)
        gradients = [weight.grad for weight in weights.values() if weight.grad is not None]
        length = float(torch.cat([gradient.flatten() for gradient in gradients]).norm())
        assert float(optimiser.gradient_norm()) == pytest.approx(length)
        for name, gradient in zip(weights, gradients, strict=True):
            seen[name].append(gradient.clone() / max(1.0, length))
        optimiser.step(1e-2, length)
    torch.testing.assert_close(weights["fc.weight"].detach(), adam_steps(start["fc.weight"], seen["fc.weight"], 1e-2))
    torch.testing.assert_close(
        weights["norm.weight"].detach(), adam_steps(start["norm.weight"], seen["norm.weight"], 5e-2)
    )


def test_the_average_follows_the_weights_and_is_what_is_exported() -> None:
    weights = parameters()
    average = weights["fc.weight"].detach().clone()
    optimiser = DraftOptimiser(weights, TrainingSettings(ema_decay=0.75))
    for step in range(3):
        give_gradients(weights, 1.0, step)
        optimiser.step(1e-2, 0.5)
        average = 0.75 * average + 0.25 * weights["fc.weight"].detach()
    torch.testing.assert_close(optimiser.exported()["fc.weight"], average)
    plain = DraftOptimiser(weights, TrainingSettings())
    assert torch.equal(plain.exported()["fc.weight"], weights["fc.weight"])


def run_of(losses: list[float], watch: DivergenceWatch, first_step: int = 1) -> None:
    for step, loss in enumerate(losses, start=first_step):
        watch.check(step, loss, 1.0)


def test_a_loss_that_doubles_for_long_stops_the_run() -> None:
    watch = DivergenceWatch()
    run_of([3.0] * 200, watch)
    with pytest.raises(TrainingDivergedError, match=r"risen from 3 to 6\.\d+; .* lower learning_rate"):
        run_of([12.0] * 200, watch)


def test_noise_and_a_small_loss_that_rises_a_little_do_not() -> None:
    run_of([3.0, 9.0, 1.0, 4.0] * 100, DivergenceWatch())
    run_of([0.1] * 200 + [0.9] * 300, DivergenceWatch())


def test_nothing_is_judged_early_nor_after_a_restart() -> None:
    watch = DivergenceWatch()
    run_of([1.0] * (STEPS_BEFORE_JUDGING - 1), watch)
    watch.restart()
    run_of([50.0] * 500, watch)


def test_the_watch_goes_on_from_its_state() -> None:
    whole, first = DivergenceWatch(), DivergenceWatch()
    losses = [2.0 + step % 5 for step in range(120)]
    run_of(losses, whole)
    run_of(losses[:60], first)
    second = DivergenceWatch(json.loads(json.dumps(first.state())))
    run_of(losses[60:], second)
    assert second.state() == whole.state()


@pytest.mark.parametrize(("loss", "length"), [(float("nan"), 1.0), (float("inf"), 1.0), (1.0, float("nan"))])
def test_a_loss_or_gradient_that_is_no_number_stops_the_run(loss: float, length: float) -> None:
    with pytest.raises(TrainingDivergedError, match=r"step 7: the loss is .* the last checkpoint is sound"):
        DivergenceWatch().check(7, loss, length)
