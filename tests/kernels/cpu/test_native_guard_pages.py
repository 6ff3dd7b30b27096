"""Native kernels and whole forwards read and write nothing beyond their buffers.

As in `test_guard_pages`, a page that may not be touched follows each buffer, and a process of its own does the work.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from aquiline.kernels import AttentionGroup, AttentionInputs, cpu
from aquiline.kernels.cpu import Threads, ops
from aquiline.kernels.cpu.extension import native
from aquiline.kernels.cpu.sampling import NativeSampling, best_children
from aquiline.models.kv_layer import KVLayer
from aquiline.models.llama import ForwardRows
from aquiline.models.native_llama import NativeLlama
from tests.kernels.cpu.drawing_cases import drawing_case
from tests.kernels.cpu.levels import with_levels
from tests.kernels.cpu.test_guard_pages import guarded
from tests.models.native_models import (
    AUX_LAYER_IDS,
    memory_of,
    packable_config,
    sequence_rows,
    target_tensors,
    tree_rows,
)
from tests.source_tree import ROOT

pytestmark = pytest.mark.skipif(
    not cpu.is_available() or sys.platform != "linux", reason=cpu.why_not() or "guard pages are made for Linux here"
)


def random(*shape: int) -> Tensor:
    return guarded(torch.randn(shape, generator=torch.Generator().manual_seed(1)))


def run_row_operations() -> None:
    module = native()
    for width in (1, 15, 16, 17, 33, 100):
        rows, weight, out = random(3, width), random(width), random(3, width)
        module.rms_norm(rows.data_ptr(), weight.data_ptr(), 1e-5, 3, width, out.data_ptr())
        module.silu_multiply(rows.data_ptr(), out.data_ptr(), 3 * width, out.data_ptr())
        module.exponentials(rows.data_ptr(), 3 * width, out.data_ptr())
        numbers, scales = guarded(torch.empty(3, width, dtype=torch.int8)), random(3)
        module.quantize_heads(rows.data_ptr(), 3, width, numbers.data_ptr(), scales.data_ptr())
        heads, angles = random(3, 2, 2 * width), random(3, width)
        module.rotate(heads.data_ptr(), angles.data_ptr(), angles.data_ptr(), 3, 2, width)
        module.gumbel_noise(0, width, 1, 2, weight.data_ptr())
        module.noise_bits(0, width, 1, 2, weight.data_ptr())


def run_attention() -> None:
    """The last slot is seen, so that its head ends where the memory does; the path ends where its table does."""
    for head_dim in (2, 8, 24, 64, 72, 128):
        for dtype in (torch.float32, torch.bfloat16):
            memory = [guarded(random(40, 2, head_dim).to(dtype)) for _ in range(2)]
            keys, values = (guarded(torch.ones(40, 2, head_dim, dtype=torch.int8)) for _ in range(2))
            scales = (random(40, 2), random(40, 2))
            slots = guarded(torch.arange(39, 7, -1).unsqueeze(0))
            lens, path = guarded(torch.tensor([[31, 32]])), guarded(torch.tensor([[[3, 39], [5, 39]]]))
            path_lens = guarded(torch.tensor([[2, 2]]))
            query, threads = random(2, 6, head_dim), Threads(2)
            # What nobody sees may lie anywhere; the last of two chunks is not whole.
            far = torch.full((22,), 2**40)
            longer = guarded(torch.cat((far[:1], torch.arange(40), torch.tensor([3]), far)).unsqueeze(0))
            longer_lens = guarded(torch.tensor([[42, 37]]))
            for paths in ((None, None), (path, path_lens)):
                for inputs in (
                    AttentionInputs((AttentionGroup(0, slots, lens, *paths),)),
                    AttentionInputs((AttentionGroup(0, longer, longer_lens, *paths),), first_position=1),
                ):
                    ops.attention(query, memory[0], memory[1], inputs, threads)
                    ops.attention(query, keys, values, inputs, threads, *scales)


def guarded_record(record: Any) -> Any:
    """A copy of nested records whose tensors all end before guard pages."""
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    for name, value in values.items():
        if isinstance(value, Tensor):
            values[name] = guarded(value)
        elif is_dataclass(value):
            values[name] = guarded_record(value)
    return type(record)(**values)


def run_drawing() -> None:
    """Every combination of rules, vocabularies that end anywhere, and trees of one node."""
    for vocab_size in (1, 15, 16, 17, 63, 65, 8193):
        for seed in range(25):
            case = drawing_case(seed, vocab_size, 3, 3)
            requests, rows = guarded_record(case.requests), guarded_record(case.rows)
            sampling = NativeSampling(Threads(2))
            sampling.accept(requests, rows, None)
            column_ids = guarded(torch.arange(vocab_size))
            prepared = sampling.prepared(requests, vocab_size)
            for width in (1, vocab_size):
                best_children(prepared, rows, column_ids, width, Threads(2))


def run_forwards() -> None:
    """All buffers inside the extension are guarded as well."""
    config = packable_config()
    tensors = {name: guarded(tensor) for name, tensor in target_tensors(config).items()}
    for quantization in ("none", "int8", "int4"):
        model = NativeLlama.pack(config, tensors, quantization, Threads(2), AUX_LAYER_IDS)
        for dtype in (torch.float32, torch.bfloat16, torch.int8):
            memory = [KVLayer(*(guarded(part) for part in layer.tensors())) for layer in memory_of(config, 40, dtype)]
            tokens = guarded(torch.full((33,), config.vocab_size - 1))
            prompt = sequence_rows(tokens[:32], 0, guarded(torch.arange(32)))
            tree = tree_rows(tokens[:7], [-1, 0, 0, 1, 1, 2, 3], 31, torch.arange(32), torch.arange(33, 40))
            for rows in (prompt, tree):
                places = ForwardRows(rows.token_ids, guarded(rows.positions), guarded(rows.slots), rows.attention)
                model.logits(model.forward(places, memory).hidden_states)


@with_levels
def test_nothing_beyond_a_buffer_is_touched(level: str) -> None:
    command = [sys.executable, "-m", "tests.kernels.cpu.test_native_guard_pages"]
    paths = ":".join(path for path in sys.path if path)
    environment = os.environ | {"AQUILINE_CPU_LEVEL": level, "PYTHONPATH": paths}
    assert subprocess.run(command, cwd=ROOT, env=environment, timeout=120, check=False).returncode == 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    native().guard_allocations(True)
    run_row_operations()
    run_attention()
    run_drawing()
    run_forwards()
