"""The head and the loss on its logits in one go, some rows at a time: logits never lie in memory all together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aquiline.training.losses import RowLossesOf, TeacherRows

ROWS_PER_CHUNK = 64


@dataclass(frozen=True)
class HeadResult:
    """Loss and hits of some rows.

    Attributes:
        loss: sum over the rows that count, differentiable; a scalar.
    """

    loss: Tensor
    is_right: Tensor  # [num_rows] bool: the draft's most likely token is the target's


def head_loss(
    head_inputs: Tensor, head: Tensor, teacher: TeacherRows, teacher_rows: Tensor, token_losses: RowLossesOf
) -> HeadResult:
    """Sum of a loss over rows; keeps the gradients of all logits in the dtype of the head.

    Args:
        head_inputs: [num_rows, hidden].
        head: [draft_vocab, hidden].
        teacher_rows: which row of `teacher` is the label of each row; [num_rows].
    """
    loss, is_right = _HeadLoss.apply(  # type: ignore[no-untyped-call]
        head_inputs, head, teacher, teacher_rows, token_losses
    )
    return HeadResult(loss, is_right)


class _HeadLoss(torch.autograd.Function):
    """Computes the gradients of logits with the loss, while they are at hand."""

    @staticmethod
    def forward(
        ctx: Any,
        head_inputs: Tensor,
        head: Tensor,
        teacher: TeacherRows,
        teacher_rows: Tensor,
        token_losses: RowLossesOf,
    ) -> tuple[Tensor, Tensor]:
        gradients = torch.empty((len(head_inputs), len(head)), dtype=head.dtype, device=head.device)
        is_right = torch.empty(len(head_inputs), dtype=torch.bool, device=head.device)
        total = torch.zeros((), dtype=torch.float32, device=head.device)
        for first in range(0, len(head_inputs), ROWS_PER_CHUNK):
            chunk = slice(first, first + ROWS_PER_CHUNK)
            labels = teacher.select(teacher_rows[chunk])
            logits = torch.mm(head_inputs[chunk], head.t()).float()
            is_right[chunk] = logits.argmax(dim=-1) == labels.draft_ids
            counts = labels.draft_ids >= 0
            losses = token_losses(logits, labels)
            total += torch.where(counts, losses.values, 0.0).sum()
            gradients[chunk] = torch.where(counts.unsqueeze(-1), losses.gradients, 0.0)
        ctx.save_for_backward(head_inputs, head, gradients)
        ctx.mark_non_differentiable(is_right)
        return total, is_right

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        head_inputs, head, gradients = ctx.saved_tensors
        scale = outer[0].to(head.dtype)
        input_gradient = torch.mm(gradients, head) * scale
        head_gradient = torch.mm(gradients.t(), head_inputs * scale) if ctx.needs_input_grad[1] else None
        return input_gradient, head_gradient, None, None, None
