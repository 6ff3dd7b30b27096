"""Stops a run whose loss has gone astray."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from aquiline.errors import TrainingDivergedError

SMOOTHING = 0.98
LARGEST_RISE = 2.0
SMALLEST_RISE_NATS = 1.0
STEPS_BEFORE_JUDGING = 50
CURE = "lower learning_rate or max_gradient_norm, or use dtype float32"


def check_weights(step: int, weights: Mapping[str, Tensor]) -> None:
    """Raise TrainingDivergedError unless all weights are finite numbers: a checkpoint must be worth going back to."""
    for name, tensor in weights.items():
        if not bool(torch.isfinite(tensor).all()):
            raise TrainingDivergedError(
                f"step {step}: {name} holds NaN or infinite values; the last checkpoint is sound: {CURE}"
            )


class DivergenceWatch:
    """Follows the loss of the first position, which all stages share.

    A run has diverged when its smoothed loss is twice its lowest, and at least 1 above it.

    Args:
        state: of an earlier `state`, to go on from it.
    """

    def __init__(self, state: dict[str, float] | None = None) -> None:
        self._begin(state or {})

    def _begin(self, start: dict[str, float]) -> None:
        self._sum = start.get("sum", 0.0)
        self._weight = start.get("weight", 0.0)
        self._lowest = start.get("lowest", math.inf)
        self._num_steps = start.get("num_steps", 0.0)

    def state(self) -> dict[str, float]:
        """Ready for JSON."""
        lowest = {} if math.isinf(self._lowest) else {"lowest": self._lowest}
        return {"sum": self._sum, "weight": self._weight, "num_steps": self._num_steps} | lowest

    def restart(self) -> None:
        """Forget the losses so far: another loss follows."""
        self._begin({})

    def check(self, step: int, loss: float, gradient_norm: float) -> None:
        """Take in the loss of a step.

        Raises:
            TrainingDivergedError: it is no finite number, or has risen too far.
        """
        if not math.isfinite(loss) or not math.isfinite(gradient_norm):
            raise TrainingDivergedError(
                f"step {step}: the loss is {loss:g} and the length of its gradient {gradient_norm:g}; the last "
                f"checkpoint is sound: {CURE}"
            )
        self._sum = SMOOTHING * self._sum + (1 - SMOOTHING) * loss
        self._weight = SMOOTHING * self._weight + (1 - SMOOTHING)
        self._num_steps += 1
        if self._num_steps < STEPS_BEFORE_JUDGING:
            return
        smoothed = self._sum / self._weight
        self._lowest = min(self._lowest, smoothed)
        if smoothed > max(LARGEST_RISE * self._lowest, self._lowest + SMALLEST_RISE_NATS):
            raise TrainingDivergedError(
                f"step {step}: the loss has risen from {self._lowest:.4g} to {smoothed:.4g}; the last checkpoint is "
                "kept: lower learning_rate, or raise warmup_share"
            )
