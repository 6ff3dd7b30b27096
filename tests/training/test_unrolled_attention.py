"""Attention of training-time test against a dense mask, forward and backward."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from aquiline.training import unrolled_attention as module
from aquiline.training.unrolled_attention import AttentionPlan, unrolled_attention

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 6
STARTS, LENGTHS = (0, 7, 8), (7, 1, 9)
CPU = torch.device("cpu")


def dense_attention(tensors: list[Tensor], rows: Tensor) -> Tensor:
    """All keys of all steps side by side under one mask of 0 and -inf."""
    query, keys, values, own_keys, own_values = tensors
    num_queries, num_steps = own_keys.shape[:2]
    conversation = torch.tensor([i for i, length in enumerate(LENGTHS) for _ in range(length)])
    every = torch.arange(len(conversation))
    seen = (conversation[rows].unsqueeze(1) == conversation) & (every <= rows.unsqueeze(1))
    own_seen = torch.eye(num_queries, dtype=torch.bool).repeat_interleave(num_steps, dim=1)
    mask = torch.cat((seen, own_seen), dim=1)  # [num_queries, num_rows + num_queries * num_steps]
    all_keys = torch.cat((keys, own_keys.flatten(0, 1))).repeat_interleave(HEADS // KV_HEADS, dim=1)
    all_values = torch.cat((values, own_values.flatten(0, 1))).repeat_interleave(HEADS // KV_HEADS, dim=1)
    scores = torch.einsum("qhd,khd->hqk", query, all_keys) * HEAD_DIM**-0.5
    weights = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, all_values)


def inputs(rows: Tensor, num_steps: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    own = (len(rows), num_steps, KV_HEADS, HEAD_DIM)
    shared = (sum(LENGTHS), KV_HEADS, HEAD_DIM)
    shapes = ((len(rows), HEADS, HEAD_DIM), shared, shared, own, own)
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("num_steps", [0, 1, 3])
@pytest.mark.parametrize("rows", [range(17), [2, 3, 5, 7, 11, 16], [9]], ids=["all", "some", "one"])
@pytest.mark.parametrize("tile", [3, 128])
def test_values_and_gradients_are_those_of_a_dense_mask(
    num_steps: int, rows: list[int], tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUERY_TILE", tile)
    query_rows = torch.tensor(list(rows))
    tensors = inputs(query_rows, num_steps, torch.float64)
    plan = AttentionPlan.of(query_rows, STARTS, LENGTHS, CPU)
    found, expected = apply(tensors, plan), dense_attention(tensors, query_rows)
    outer = torch.randn(expected.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=2e-6)
    for mine, right in zip(
        torch.autograd.grad(found, tensors, outer), torch.autograd.grad(expected, tensors, outer), strict=True
    ):
        torch.testing.assert_close(mine, right, atol=5e-6, rtol=5e-6)


def apply(tensors: list[Tensor], plan: AttentionPlan) -> Tensor:
    query, keys, values, own_keys, own_values = tensors
    return unrolled_attention(query, keys, values, own_keys, own_values, plan)


def test_no_conversation_sees_another() -> None:
    query_rows = torch.arange(sum(LENGTHS))
    tensors = inputs(query_rows, 1, torch.float32)
    found = apply(tensors, AttentionPlan.of(query_rows, STARTS, LENGTHS, CPU))
    (gradient,) = torch.autograd.grad(found[8:].sum(), tensors[1])
    assert not gradient[:8].any()
    assert gradient[8:].any()


def test_bfloat16_is_close_to_float32() -> None:
    query_rows = torch.arange(sum(LENGTHS))
    wide = inputs(query_rows, 2, torch.float32)
    narrow = [tensor.detach().bfloat16().requires_grad_() for tensor in wide]
    plan = AttentionPlan.of(query_rows, STARTS, LENGTHS, CPU)
    expected, found = apply(wide, plan), apply(narrow, plan)
    torch.testing.assert_close(found.float(), expected, atol=0.05, rtol=0.05)
    ours = torch.autograd.grad(found.float().square().sum(), narrow)
    for mine, right in zip(ours, torch.autograd.grad(expected.square().sum(), wide), strict=True):
        torch.testing.assert_close(mine.float(), right, atol=0.15, rtol=0.05)
