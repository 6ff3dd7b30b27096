"""Losses between what a draft says and what the target says, each a function of logits over the draft vocabulary.

P is the target's distribution, Q the draft's. A row counts only where the target's most likely token is in the draft
vocabulary: elsewhere the draft cannot be right, whatever it learns.

    kl         KL(P' || Q), P' being P restricted to the draft vocabulary and renormalised (EAGLE-3, arXiv 2503.01840,
               up to the entropy of P')
    ce         -log Q(most likely token of the target)
    lk         -log alpha, with the acceptance rate alpha = sum over v of min(P(v), Q(v)) (arXiv 2602.23881)
    lk_hybrid  w * KL + (1 - w) * (1 - alpha), w = exp(-3 * alpha) taken as a constant (same)
    eagle1     smooth L1 on the next feature + a tenth of kl (EAGLE-1, arXiv 2401.15077)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional

from aquiline.training.settings import LossName

LK_DECAY = 3.0
EAGLE1_FEATURE_WEIGHT = 1.0
EAGLE1_TOKEN_WEIGHT = 0.1


@dataclass(frozen=True)
class TeacherRows:
    """What the target says at some rows, restricted to the draft vocabulary."""

    probs: Tensor  # [num_rows, draft_vocab] float32: P', summing to 1
    entropies: Tensor  # [num_rows] float32: of P', in nats
    coverages: Tensor  # [num_rows] float32: share of the target's probability that lies in the draft vocabulary
    draft_ids: Tensor  # [num_rows] the target's most likely token as a draft id; -1 outside the draft vocabulary

    def select(self, rows: Tensor) -> TeacherRows:
        """Rows by number."""
        return TeacherRows(self.probs[rows], self.entropies[rows], self.coverages[rows], self.draft_ids[rows])


TokenLoss = Callable[[Tensor, TeacherRows], Tensor]
"""From draft logits [num_rows, draft_vocab] to the loss of every row [num_rows]."""


@dataclass(frozen=True)
class RowLosses:
    """The loss of some rows and its derivative, each row by its own logits."""

    values: Tensor  # [num_rows]
    gradients: Tensor  # [num_rows, draft_vocab]


def kl_loss(logits: Tensor, teacher: TeacherRows) -> Tensor:
    """KL(P' || Q) of every row [num_rows], in nats.

    As P' sums to 1, it is log sum exp(logits) - sum P' logits - entropy of P'.
    """
    expected = torch.linalg.vecdot(teacher.probs, logits)
    losses: Tensor = torch.logsumexp(logits, dim=-1) - expected - teacher.entropies
    return losses


def ce_loss(logits: Tensor, teacher: TeacherRows) -> Tensor:
    """-log Q(most likely token of the target) of every row [num_rows]; any number outside the vocabulary."""
    return functional.cross_entropy(logits, teacher.draft_ids.clamp_min(0), reduction="none")


def acceptance_rates(logits: Tensor, teacher: TeacherRows) -> Tensor:
    """sum over v of min(P(v), Q(v)) of every row [num_rows]: the share of draws of Q that P accepts."""
    target = teacher.probs * teacher.coverages.unsqueeze(-1)
    return torch.minimum(target, torch.softmax(logits, dim=-1)).sum(dim=-1)


def lk_loss(logits: Tensor, teacher: TeacherRows) -> Tensor:
    """-log alpha of every row [num_rows]."""
    return -torch.log(acceptance_rates(logits, teacher).clamp_min(torch.finfo(torch.float32).tiny))


def lk_hybrid_loss(logits: Tensor, teacher: TeacherRows) -> Tensor:
    """Mostly kl while little is accepted, mostly the rejection rate later; of every row [num_rows]."""
    rates = acceptance_rates(logits, teacher)
    weights = torch.exp(-LK_DECAY * rates.detach())
    return weights * kl_loss(logits, teacher) + (1 - weights) * (1 - rates)


def feature_loss(features: Tensor, expected: Tensor) -> Tensor:
    """Smooth L1 between predicted and true features [num_rows, hidden], averaged over the width: [num_rows]."""
    return functional.smooth_l1_loss(features, expected, reduction="none").mean(dim=-1)


def kl_losses(logits: Tensor, teacher: TeacherRows) -> RowLosses:
    """`kl_loss` with its derivative Q - P', in few passes over memory; overwrites the logits."""
    expected = torch.linalg.vecdot(teacher.probs, logits)
    peaks = logits.amax(dim=-1, keepdim=True)
    draft = logits.sub_(peaks).exp_()
    sums = draft.sum(dim=-1, keepdim=True)
    values = (sums.log() + peaks).squeeze(-1) - expected - teacher.entropies
    return RowLosses(values, draft.div_(sums).sub_(teacher.probs))


def derived(loss: TokenLoss) -> RowLossesOf:
    """The derivative of a loss by automatic differentiation."""

    def losses(logits: Tensor, teacher: TeacherRows) -> RowLosses:
        with torch.enable_grad():
            leaf = logits.detach().requires_grad_()
            values = loss(leaf, teacher)
            (gradients,) = torch.autograd.grad(values.sum(), leaf)
        return RowLosses(values.detach(), gradients)

    return losses


RowLossesOf = Callable[[Tensor, TeacherRows], RowLosses]


@dataclass(frozen=True)
class Loss:
    """How the parts of a loss are weighed.

    Attributes:
        token_losses: on logits, which it may overwrite.
        feature_weight: of `feature_loss`; 0 where features are not trained.
    """

    token_losses: RowLossesOf
    token_weight: float = 1.0
    feature_weight: float = 0.0


LOSSES: Mapping[LossName, Loss] = MappingProxyType(
    {
        "kl": Loss(kl_losses),
        "ce": Loss(derived(ce_loss)),
        "lk": Loss(derived(lk_loss)),
        "lk_hybrid": Loss(derived(lk_hybrid_loss)),
        "eagle1": Loss(kl_losses, EAGLE1_TOKEN_WEIGHT, EAGLE1_FEATURE_WEIGHT),
    }
)
