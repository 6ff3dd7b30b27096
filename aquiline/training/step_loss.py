"""The loss of one pack, and what is counted with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aquiline.training.head_loss import head_loss
from aquiline.training.labels import TargetLabels, Teacher
from aquiline.training.losses import LOSSES, Loss, feature_loss
from aquiline.training.network import DraftNetwork, Weights
from aquiline.training.packing import Pack
from aquiline.training.settings import LossName
from aquiline.training.unrolling import unroll

NUM_COLUMNS = 5
LOSS, TRAINED, RIGHT, REACHED, SURVIVED = range(NUM_COLUMNS)


class StepTally:
    """Sums over rows for each self-fed step; tallies of packs and processes add up.

    Args:
        sums: float64 [num_steps, 5]: loss, trained rows, rows whose most likely token is right, rows that were right at
            all steps before, rows that were right at all steps so far.
    """

    def __init__(self, sums: Tensor) -> None:
        self.sums = sums

    @classmethod
    def empty(cls, num_steps: int) -> StepTally:
        return cls(torch.zeros((num_steps, NUM_COLUMNS), dtype=torch.float64))

    def add(self, other: StepTally) -> None:
        """Add the rows of another tally of as many steps."""
        self.sums += other.sums

    @property
    def losses(self) -> tuple[float, ...]:
        """Mean loss of the trained rows, by step."""
        return self._shares(LOSS, TRAINED)

    @property
    def accuracies(self) -> tuple[float, ...]:
        """Share of the trained rows whose most likely token is the target's, by step; rows fed the true tokens."""
        return self._shares(RIGHT, TRAINED)

    @property
    def conditional_accuracies(self) -> tuple[float, ...]:
        """The same among rows that were right at all steps before: what a chain accepts at each position."""
        return self._shares(SURVIVED, REACHED)

    def _shares(self, column: int, base: int) -> tuple[float, ...]:
        sums: list[list[float]] = self.sums.tolist()
        return tuple(row[column] / row[base] if row[base] else 0.0 for row in sums)


@dataclass(frozen=True)
class PackLoss:
    """Loss of a pack.

    Attributes:
        loss: weighted sum over steps and rows, differentiable; a scalar.
    """

    loss: Tensor
    tally: StepTally


@dataclass(frozen=True)
class LossPlan:
    """How the steps of training-time test are weighed.

    Attributes:
        step_weights: one for each step.
    """

    loss: Loss
    step_weights: tuple[float, ...]

    @classmethod
    def of(cls, name: LossName, num_steps: int, decay: float) -> LossPlan:
        return cls(LOSSES[name], tuple(decay**step for step in range(num_steps)))


def pack_loss(
    network: DraftNetwork, weights: Weights, pack: Pack, labels: TargetLabels, teacher: Teacher, plan: LossPlan
) -> PackLoss:
    """Run a pack through all steps.

    Args:
        labels: of the pack; its features may have noise on them.
    """
    device = network.frozen.embedding.device
    features = labels.features.to(device, network.dtype)
    says = teacher.rows(labels)
    total = torch.zeros((), device=device)
    tally = StepTally.empty(len(plan.step_weights))
    was_right = torch.ones(pack.num_rows, dtype=torch.bool)
    for index, step in enumerate(unroll(network, weights, pack, features, len(plan.step_weights))):
        label_index = torch.searchsorted(pack.label_rows, step.label_rows).to(device)
        result = head_loss(step.states.head_inputs, network.head(weights), says, label_index, plan.loss.token_losses)
        loss = plan.loss.token_weight * result.loss
        if plan.loss.feature_weight:
            expected = features[step.label_rows.to(device)].float()
            loss = loss + plan.loss.feature_weight * feature_loss(step.states.hidden_states.float(), expected).sum()
        total = total + plan.step_weights[index] * loss
        is_right, reached = result.is_right.cpu(), was_right[step.rows]
        was_right[step.rows] = reached & is_right
        counts: Sequence[float] = (
            float(loss.detach()),
            len(step.rows),
            int(is_right.sum()),
            int(reached.sum()),
            int((reached & is_right).sum()),
        )
        tally.sums[index] += torch.tensor(counts, dtype=torch.float64)
    return PackLoss(total, tally)
