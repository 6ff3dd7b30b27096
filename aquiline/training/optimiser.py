"""AdamW over a draft's weights, the learning rate's way through a stage, and the moving average that is exported."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from aquiline.training.settings import StageSettings, TrainingSettings

MOMENTS = {"first": "exp_avg", "second": "exp_avg_sq"}


def learning_rate(stage: StageSettings, settings: TrainingSettings, progress: float) -> float:
    """Rises along a line over `warmup_share` of the stage, then falls along a cosine to `final_rate_share`.

    Args:
        progress: share of the stage that is done, in [0, 1].
    """
    if progress < settings.warmup_share:
        return stage.learning_rate * progress / settings.warmup_share
    falling = (progress - settings.warmup_share) / max(1.0 - settings.warmup_share, 1e-12)
    cosine = 0.5 * (1.0 + math.cos(math.pi * min(falling, 1.0)))
    return stage.learning_rate * (settings.final_rate_share + (1.0 - settings.final_rate_share) * cosine)


class DraftOptimiser:
    """AdamW with a higher rate for norm gains, which do not decay.

    Args:
        parameters: by name; their `.grad` holds the gradients of a step.
    """

    def __init__(self, parameters: Mapping[str, Tensor], settings: TrainingSettings) -> None:
        self._parameters = dict(parameters)
        self._settings = settings
        norms = [tensor for name, tensor in self._parameters.items() if "norm" in name]
        others = [tensor for name, tensor in self._parameters.items() if "norm" not in name]
        groups = [
            {"params": others, "factor": 1.0, "weight_decay": settings.weight_decay},
            {"params": norms, "factor": settings.norm_rate_factor, "weight_decay": 0.0},
        ]
        self._adam = torch.optim.AdamW(
            [group for group in groups if group["params"]], betas=(settings.beta1, settings.beta2), fused=True
        )
        self.averages: dict[str, Tensor] = {}
        if settings.ema_decay:
            self.averages = {name: tensor.detach().clone() for name, tensor in self._parameters.items()}

    def gradient_norm(self) -> Tensor:
        """Length of the gradient over all weights; a scalar."""
        gradients = [tensor.grad for tensor in self._parameters.values() if tensor.grad is not None]
        length: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        return length

    def step(self, rate: float, gradient_norm: float) -> None:
        """Apply the gradients, shortened to `max_gradient_norm`, and forget them.

        Args:
            rate: learning rate of matrices.
        """
        if gradient_norm > self._settings.max_gradient_norm:
            gradients = [tensor.grad for tensor in self._parameters.values() if tensor.grad is not None]
            torch._foreach_mul_(gradients, self._settings.max_gradient_norm / gradient_norm)
        for group in self._adam.param_groups:
            group["lr"] = rate * group["factor"]
        self._adam.step()
        self._adam.zero_grad()
        if self.averages:
            torch._foreach_lerp_(
                list(self.averages.values()),
                [self._parameters[name].detach() for name in self.averages],
                1.0 - self._settings.ema_decay,
            )

    def exported(self) -> dict[str, Tensor]:
        """The weights that a checkpoint hands out: the averages, where there are any."""
        return self.averages or {name: tensor.detach() for name, tensor in self._parameters.items()}

    def state(self) -> dict[str, Tensor]:
        """Everything that the next step depends on, by name."""
        tensors = {f"weights.{name}": tensor.detach() for name, tensor in self._parameters.items()}
        tensors |= {f"averages.{name}": tensor for name, tensor in self.averages.items()}
        for name, parameter in self._parameters.items():
            moments = self._adam.state.get(parameter, {})
            if moments:
                tensors |= {f"{kind}.{name}": moments[key] for kind, key in MOMENTS.items()}
                tensors[f"num_steps.{name}"] = moments["step"].reshape(1)
        return tensors

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what `state` gave."""
        for name, parameter in self._parameters.items():
            parameter.copy_(tensors[f"weights.{name}"])
            if f"first.{name}" in tensors:
                moments = {key: tensors[f"{kind}.{name}"].to(parameter.device) for kind, key in MOMENTS.items()}
                num_steps = tensors[f"num_steps.{name}"].reshape(()).to(parameter.device)
                self._adam.state[parameter] = {"step": num_steps, **moments}
        for name, average in self.averages.items():
            average.copy_(tensors[f"averages.{name}"])
