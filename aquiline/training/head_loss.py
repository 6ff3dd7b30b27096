"""The head and the loss on its logits in one go, some rows at a time: logits never lie in memory all together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aquiline.training.losses import TeacherRows, TokenLoss

ROWS_PER_CHUNK = 256


@dataclass(frozen=True)
class HeadResult:
    """Loss and hits of some rows.

    Attributes:
        loss: sum over the rows that count, differentiable; a scalar.
    """

    loss: Tensor
    is_right: Tensor  # [num_rows] bool: the draft's most likely token is the target's


def head_loss(
    head_inputs: Tensor, head: Tensor, teacher: TeacherRows, teacher_rows: Tensor, token_loss: TokenLoss
) -> HeadResult:
    """Sum of a loss over rows.

    Args:
        head_inputs: [num_rows, hidden].
        head: [draft_vocab, hidden].
        teacher_rows: which row of `teacher` is the label of each row; [num_rows].
    """
    loss, is_right = _HeadLoss.apply(head_inputs, head, teacher, teacher_rows, token_loss)  # type: ignore[no-untyped-call]
    return HeadResult(loss, is_right)


class _HeadLoss(torch.autograd.Function):
    """Computes the gradients with the loss, for a scalar's gradient is the same for all rows."""

    @staticmethod
    def forward(
        ctx: Any, head_inputs: Tensor, head: Tensor, teacher: TeacherRows, teacher_rows: Tensor, token_loss: TokenLoss
    ) -> tuple[Tensor, Tensor]:
        needs_head = ctx.needs_input_grad[1]
        input_gradient = torch.empty_like(head_inputs)
        head_gradient = torch.zeros(head.shape if needs_head else (0,), dtype=torch.float32, device=head.device)
        is_right = torch.empty(len(head_inputs), dtype=torch.bool, device=head.device)
        total = torch.zeros((), dtype=torch.float32, device=head.device)
        for first in range(0, len(head_inputs), ROWS_PER_CHUNK):
            chunk = slice(first, first + ROWS_PER_CHUNK)
            rows, labels = head_inputs[chunk], teacher.select(teacher_rows[chunk])
            with torch.enable_grad():
                logits = torch.mm(rows, head.t()).float().detach().requires_grad_()
                losses = token_loss(logits, labels)
                loss = torch.where(labels.draft_ids >= 0, losses, 0.0).sum()
            (gradient,) = torch.autograd.grad(loss, logits)
            gradient = gradient.to(head.dtype)
            total += loss.detach()
            is_right[chunk] = logits.argmax(dim=-1) == labels.draft_ids
            input_gradient[chunk] = torch.mm(gradient, head)
            if needs_head:
                head_gradient += torch.mm(gradient.t(), rows)
        ctx.save_for_backward(input_gradient, head_gradient.to(head.dtype))
        ctx.mark_non_differentiable(is_right)
        return total, is_right

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        input_gradient, head_gradient = ctx.saved_tensors
        scale = gradients[0].to(input_gradient.dtype)
        return input_gradient * scale, head_gradient * scale if head_gradient.numel() else None, None, None, None
