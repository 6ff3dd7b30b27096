"""Losses against their definitions, spelt out token by token on tiny vocabularies."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from aquiline.training.head_loss import head_loss
from aquiline.training.labels import TargetLabels, Teacher
from aquiline.training.losses import (
    LOSSES,
    TeacherRows,
    TokenLoss,
    acceptance_rates,
    ce_loss,
    feature_loss,
    kl_loss,
    lk_hybrid_loss,
    lk_loss,
)

VOCAB, HIDDEN, ROWS = 7, 5, 90
TARGET_IDS = (0, 2, 3, 6)
LOSS_OF: dict[str, TokenLoss] = {"kl": kl_loss, "ce": ce_loss, "lk": lk_loss, "lk_hybrid": lk_hybrid_loss}


class Case:
    """A target and a draft head at random."""

    def __init__(self, num_rows: int = ROWS, target_ids: tuple[int, ...] = TARGET_IDS) -> None:
        generator = torch.Generator().manual_seed(num_rows)
        target_head = torch.randn((VOCAB, HIDDEN), generator=generator)
        hidden = torch.randn((num_rows, HIDDEN), generator=generator)
        logits = hidden @ target_head.T
        self.target_probs = logits.softmax(dim=-1)  # [num_rows, vocab]
        self.best = logits.argmax(dim=-1)
        labels = TargetLabels(hidden, hidden, logits.logsumexp(dim=-1), self.best)
        self.teacher = Teacher(target_head[list(target_ids)], target_ids, VOCAB).rows(labels)
        self.head_inputs = torch.randn((num_rows, HIDDEN), generator=generator).requires_grad_()
        self.head = torch.randn((len(target_ids), HIDDEN), generator=generator).requires_grad_()

    @property
    def draft_probs(self) -> Tensor:
        return (self.head_inputs @ self.head.T).softmax(dim=-1).detach()


def defined(name: str, target: list[float], draft: list[float], best: int) -> float:
    """The loss of one row from the target's probabilities over all tokens and the draft's over its own."""
    inside = [target[i] for i in TARGET_IDS]
    restricted = [p / sum(inside) for p in inside]
    alpha = sum(min(p, q) for p, q in zip(inside, draft, strict=True))
    kl = sum(p * math.log(p / q) for p, q in zip(restricted, draft, strict=True))
    weight = math.exp(-3 * alpha)
    return {
        "kl": kl,
        "ce": -math.log(draft[TARGET_IDS.index(best)]) if best in TARGET_IDS else 0.0,
        "lk": -math.log(alpha),
        "lk_hybrid": weight * kl + (1 - weight) * (1 - alpha),
    }[name]


@pytest.mark.parametrize("name", LOSS_OF)
def test_a_row_has_the_loss_of_its_definition(name: str) -> None:
    case = Case()
    losses = LOSS_OF[name](case.head_inputs @ case.head.T, case.teacher).tolist()
    num_compared = 0
    for row in range(ROWS):
        if int(case.best[row]) in TARGET_IDS:
            expected = defined(
                name, case.target_probs[row].tolist(), case.draft_probs[row].tolist(), int(case.best[row])
            )
            assert losses[row] == pytest.approx(expected, abs=2e-5)
            num_compared += 1
    assert 0 < num_compared < ROWS


@pytest.mark.parametrize("name", LOSS_OF)
def test_the_head_and_its_inputs_get_the_gradient_of_the_sum_over_rows_that_count(name: str) -> None:
    case = Case()
    result = head_loss(
        case.head_inputs,
        case.head,
        case.teacher,
        torch.arange(ROWS),
        LOSSES[name].token_losses,  # type: ignore[index]
    )
    losses = LOSS_OF[name](case.head_inputs @ case.head.T, case.teacher)
    expected = losses[case.teacher.draft_ids >= 0].sum()
    torch.testing.assert_close(result.loss, expected)
    found = torch.autograd.grad(0.25 * result.loss, (case.head_inputs, case.head))
    right = torch.autograd.grad(0.25 * expected, (case.head_inputs, case.head))
    torch.testing.assert_close(found, right, atol=1e-5, rtol=1e-5)


def test_rows_read_the_labels_they_are_given() -> None:
    case = Case()
    order = torch.arange(ROWS).flip(0)
    result = head_loss(case.head_inputs, case.head, case.teacher, order, LOSSES["ce"].token_losses)
    losses = ce_loss(case.head_inputs @ case.head.T, case.teacher.select(order))
    torch.testing.assert_close(result.loss, losses[case.teacher.draft_ids[order] >= 0].sum())


def test_a_draft_is_right_where_its_best_token_is_the_targets() -> None:
    case = Case()
    result = head_loss(case.head_inputs, case.head, case.teacher, torch.arange(ROWS), LOSSES["kl"].token_losses)
    best = [TARGET_IDS[i] for i in case.draft_probs.argmax(dim=-1).tolist()]
    assert result.is_right.tolist() == [mine == right for mine, right in zip(best, case.best.tolist(), strict=True)]


def test_the_teacher_is_the_target_restricted_to_the_draft_vocabulary() -> None:
    case = Case()
    inside = case.target_probs[:, list(TARGET_IDS)]
    coverage = inside.sum(dim=-1)
    restricted = inside / coverage.unsqueeze(-1)
    torch.testing.assert_close(case.teacher.probs, restricted)
    torch.testing.assert_close(case.teacher.coverages, coverage)
    torch.testing.assert_close(case.teacher.entropies, -(restricted * restricted.log()).sum(dim=-1))
    ids = [TARGET_IDS.index(best) if best in TARGET_IDS else -1 for best in case.best.tolist()]
    assert case.teacher.draft_ids.tolist() == ids


def test_a_perfect_draft_loses_nothing_but_what_its_vocabulary_leaves_out() -> None:
    case = Case()
    logits = case.teacher.probs.log()
    torch.testing.assert_close(kl_loss(logits, case.teacher), torch.zeros(ROWS), atol=1e-6, rtol=0)
    torch.testing.assert_close(acceptance_rates(logits, case.teacher), case.teacher.coverages)
    whole = Case(target_ids=tuple(range(VOCAB)))
    torch.testing.assert_close(lk_loss(whole.teacher.probs.log(), whole.teacher), torch.zeros(ROWS), atol=1e-6, rtol=0)


def test_the_weight_of_the_hybrid_is_a_constant_to_the_gradient() -> None:
    teacher = TeacherRows(torch.tensor([[0.7, 0.3]]), torch.zeros(1), torch.ones(1), torch.zeros(1, dtype=torch.long))
    logits = torch.zeros((1, 2)).requires_grad_()
    alpha, weight = 0.8, math.exp(-3 * 0.8)
    (found,) = torch.autograd.grad(lk_hybrid_loss(logits, teacher).sum(), logits)
    # Of KL it is Q - P'. Of 1 - alpha: the second token gives alpha its P, a constant, the first its Q.
    expected = weight * torch.tensor([[-0.2, 0.2]]) + (1 - weight) * torch.tensor([[-0.25, 0.25]])
    torch.testing.assert_close(found, expected)
    assert float(acceptance_rates(logits.detach(), teacher)) == pytest.approx(alpha)


def test_features_are_compared_by_smooth_l1() -> None:
    found, expected = torch.tensor([[0.0, 3.0]]), torch.tensor([[0.5, 0.0]])
    assert float(feature_loss(found, expected)) == pytest.approx((0.5 * 0.25 + 2.5) / 2)
