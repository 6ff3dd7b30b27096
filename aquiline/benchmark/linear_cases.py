"""The linear layers of a target, each kind over all decoder layers, so that no weight is still in a cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from aquiline.benchmark.interleaved import Case, Numbers, Work
from aquiline.kernels.cpu import PackedLinear
from aquiline.kernels.cpu.extension import native
from aquiline.models.native_llama import NativeLlama

if TYPE_CHECKING:
    from aquiline.kernels.cpu import _native

PARTS = {"qkv": "query_key_value", "o": "output", "gate_up": "gate_up", "down": "down"}


def linear_cases(target: NativeLlama, num_rows: int) -> list[Case]:
    """One case per kind of linear layer; the activations are rounded or quantised beforehand."""
    cases = [_stack_case(f"linear {name}", target, target.layer_parts(part), num_rows) for name, part in PARTS.items()]
    return [*cases, _head_case(target, num_rows)]


def stack_work(stacks: Sequence[_native.LinearStack], num_rows: int) -> Work:
    """What one call of a layer does on average over `stacks`."""
    module = native()
    num_bytes = sum(module.stack_bytes(stack) for stack in stacks) // len(stacks)
    numbers: Numbers = "bfloat16" if module.stack_reads_bfloat16(stacks[0]) else "int8"
    operations = 2 * num_rows * stacks[0].in_features * stacks[0].out_features
    return Work(memory_bytes=num_bytes, operations=((numbers, operations),))


def layer_work(linear: PackedLinear, num_rows: int) -> Work:
    """What a call of one packed layer does."""
    numbers: Numbers = "bfloat16" if linear.kind == "bf16" else "int8"
    operations = 2 * num_rows * linear.in_features * linear.out_features
    return Work(memory_bytes=linear.num_bytes, operations=((numbers, operations),))


def _stack_case(name: str, target: NativeLlama, stacks: list[_native.LinearStack], num_rows: int) -> Case:
    module, threads = native(), target.threads.handle
    numbers = torch.randn(num_rows, stacks[0].in_features)
    rows = module.StackRows(stacks[0].in_features, num_rows)
    rows.fill(numbers.data_ptr())
    out = torch.empty(num_rows, stacks[0].out_features)
    address, apply = out.data_ptr(), module.apply_stack

    def run() -> object:
        for stack in stacks:
            apply(threads, stack, rows, address)
        return out

    return Case(name, num_rows, run, stack_work(stacks, num_rows), len(stacks), is_cold=True)


def _head_case(target: NativeLlama, num_rows: int) -> Case:
    head = target.head
    prepared = head.prepare(torch.randn(num_rows, head.in_features))
    run: Callable[[], object] = lambda: head.apply_prepared(prepared, target.threads)  # noqa: E731
    return Case("linear head", num_rows, run, layer_work(head, num_rows), is_cold=True)
