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

    log_probs: Tensor  # [num_rows, draft_vocab] float32, renormalised over the draft vocabulary
    coverages: Tensor  # [num_rows] float32: share of the target's probability that lies in the draft vocabulary
    draft_ids: Tensor  # [num_rows] the target's most likely token as a draft id; -1 outside the draft vocabulary

    def select(self, rows: Tensor) -> TeacherRows:
        """Rows by number."""
        return TeacherRows(self.log_probs[rows], self.coverages[rows], self.draft_ids[rows])


TokenLoss = Callable[[Tensor, TeacherRows], Tensor]
"""From draft logits [num_rows, draft_vocab] to the loss of every row [num_rows]."""


def kl_loss(logits: Tensor, teacher: TeacherRows) -> Tensor:
    """KL(P' || Q) of every row [num_rows], in nats."""
    expected = teacher.log_probs
    return (expected.exp() * (expected - torch.log_softmax(logits, dim=-1))).sum(dim=-1)


def ce_loss(logits: Tensor, teacher: TeacherRows) -> Tensor:
    """-log Q(most likely token of the target) of every row [num_rows]; any number outside the vocabulary."""
    return functional.cross_entropy(logits, teacher.draft_ids.clamp_min(0), reduction="none")


def acceptance_rates(logits: Tensor, teacher: TeacherRows) -> Tensor:
    """sum over v of min(P(v), Q(v)) of every row [num_rows]: the share of draws of Q that P accepts."""
    target = teacher.log_probs.exp() * teacher.coverages.unsqueeze(-1)
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


@dataclass(frozen=True)
class Loss:
    """How the parts of a loss are weighed.

    Attributes:
        token_loss: on logits.
        feature_weight: of `feature_loss`; 0 where features are not trained.
    """

    token_loss: TokenLoss
    token_weight: float = 1.0
    feature_weight: float = 0.0


LOSSES: Mapping[LossName, Loss] = MappingProxyType(
    {
        "kl": Loss(kl_loss),
        "ce": Loss(ce_loss),
        "lk": Loss(lk_loss),
        "lk_hybrid": Loss(lk_hybrid_loss),
        "eagle1": Loss(kl_loss, EAGLE1_TOKEN_WEIGHT, EAGLE1_FEATURE_WEIGHT),
    }
)
