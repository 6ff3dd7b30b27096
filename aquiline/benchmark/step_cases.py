"""Attention, whole forwards of target and draft, and prefill, of one request with a draft tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from aquiline.benchmark.interleaved import Case, Work
from aquiline.benchmark.linear_cases import PARTS, layer_work, stack_work
from aquiline.benchmark.step_rows import OneRequest
from aquiline.kernels.cpu.ops import prepared_attention
from aquiline.models.kv_layer import KVLayer
from aquiline.models.llama import ForwardRows
from aquiline.models.native_eagle import NativeEagle
from aquiline.models.native_llama import NativeLlama


@dataclass(frozen=True)
class TargetInMemory:
    """A target and the K/V memory of a request whose prompt it has computed."""

    model: NativeLlama
    memory: Sequence[KVLayer]
    request: OneRequest

    def prefill(self) -> None:
        """Compute the request's committed tokens, so that what attention reads is real."""
        self.model.forward(self.request.prompt(self.request.context), self.memory)


def attention_case(target: TargetInMemory, num_rows: int) -> Case:
    """Attention of a tree, over the memory of every layer in turn."""
    config, rows = target.model.config, target.request.tree(num_rows)
    query = torch.randn(num_rows, config.num_heads, config.head_dim)
    calls = [
        prepared_attention(
            query,
            layer.keys,
            layer.values,
            rows.attention,
            target.model.threads,
            layer.key_scales,
            layer.value_scales,
        )
        for layer in target.memory
    ]

    def run() -> None:
        for call in calls:
            call()

    slot_bytes = sum(part[0].numel() * part.element_size() for part in target.memory[0].tensors())
    keys_seen = sum(int(position) + 1 for position in rows.positions)
    operations = 4 * config.num_heads * config.head_dim * keys_seen
    work = Work(slot_bytes * (target.request.context + num_rows - 1), operations=(("float32", operations),))
    return Case("attention", num_rows, run, work, len(calls), is_cold=True)


def target_step_case(target: TargetInMemory, num_rows: int) -> Case:
    """From the token ids of a tree to its logits."""
    run = partial(_target_step, target, target.request.tree(num_rows))
    return Case("target step", num_rows, run, target_work(target.model, num_rows, num_rows))


def prefill_case(target: TargetInMemory, num_rows: int) -> Case:
    """A whole prompt, and the logits of its last row."""
    run = partial(_target_prefill, target, target.request.prompt(num_rows))
    return Case("prefill", num_rows, run, target_work(target.model, num_rows, 1))


def draft_cases(draft: NativeEagle, memory: Sequence[KVLayer], context: int, row_counts: Sequence[int]) -> list[Case]:
    """One level of a draft, and its head, for each row count."""
    request = OneRequest(context, draft.config.layers.vocab_size, first_position=1)
    width = draft.config.layers.hidden_size
    prompt = request.prompt(context - 1)
    draft.forward(prompt, torch.randn(context - 1, width), memory)
    cases = []
    for num_rows in row_counts:
        hidden_states = torch.randn(num_rows, width)
        forward = partial(draft.forward, request.tree(num_rows), hidden_states, memory)
        head = partial(draft.logits, hidden_states)
        head_work = layer_work(draft.head, num_rows)
        layer_bytes = draft.num_bytes - (head_work.memory_bytes if draft.config.has_own_head else 0)
        cases += [
            Case("draft forward", num_rows, forward, Work(layer_bytes), is_cold=True),
            Case("draft head", num_rows, head, head_work, is_cold=True),
        ]
    return cases


def target_work(model: NativeLlama, num_rows: int, num_logit_rows: int) -> Work:
    """All weights once, and the products of the linear layers."""
    parts = [stack_work(model.layer_parts(part), num_rows) for part in PARTS.values()]
    operations = [(numbers, model.config.num_layers * count) for part in parts for numbers, count in part.operations]
    operations += layer_work(model.head, num_logit_rows).operations
    return Work(memory_bytes=model.num_bytes, operations=tuple(operations))


def _target_step(target: TargetInMemory, rows: ForwardRows) -> Tensor:
    return target.model.logits(target.model.forward(rows, target.memory).hidden_states)


def _target_prefill(target: TargetInMemory, rows: ForwardRows) -> Tensor:
    hidden_states = target.model.forward(rows, target.memory).hidden_states
    return target.model.logits(hidden_states[-1:])
