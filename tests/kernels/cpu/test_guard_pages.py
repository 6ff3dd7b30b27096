"""Native layers read and write nothing beyond their buffers: a page that may not be touched follows each of them.

The work is done in a process of its own, which such an access would kill.
"""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor

from aquiline.kernels import cpu
from aquiline.kernels.cpu import PackedLinear, Threads
from aquiline.kernels.cpu.extension import native
from tests.kernels.cpu.levels import with_levels
from tests.source_tree import ROOT

pytestmark = pytest.mark.skipif(
    not cpu.is_available() or sys.platform != "linux", reason=cpu.why_not() or "guard pages are made for Linux here"
)

PROT_NONE = 0
GGUF_TYPES = {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20}


class GuardedBytes:
    """Memory that ends where a page that may not be touched begins."""

    def __init__(self, num_bytes: int) -> None:
        usable = -(-max(num_bytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._map = mmap.mmap(-1, usable + mmap.PAGESIZE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        assert protect(start + usable, mmap.PAGESIZE, PROT_NONE) == 0
        self.array = np.frombuffer(self._map, np.uint8, num_bytes, usable - num_bytes)

    @property
    def address(self) -> int:
        return int(self.array.ctypes.data)

    def tensor(self, dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.from_numpy(self.array).view(dtype).view(shape)


def guarded(values: Tensor) -> Tensor:
    """A copy of `values` before a guard page."""
    copy = GuardedBytes(values.numel() * values.element_size()).tensor(values.dtype, *values.shape)
    return copy.copy_(values)


def apply_guarded(layer: PackedLinear, rows: Tensor, threads: Threads) -> None:
    """Results in both types, and sums, into guarded memory; the bytes around short rows stay as they were."""
    module = native()
    num_rows, stride = rows.shape[0], layer.out_features + 3
    expected = layer.apply(rows.clone(), threads)
    prepared = layer.prepare(guarded(rows))
    for dtype, element in ((torch.float32, module.ElementType.float32), (torch.bfloat16, module.ElementType.bfloat16)):
        size = (num_rows - 1) * stride + layer.out_features
        out = GuardedBytes(size * dtype.itemsize).tensor(dtype, size).fill_(7.0)
        layer.handle.apply(threads.handle, prepared, out.data_ptr(), element, stride)
        written = torch.as_strided(out, (num_rows, layer.out_features), (stride, 1))
        assert torch.equal(written, expected.to(dtype))
        assert (out == 7.0).sum() >= 3 * (num_rows - 1)
    total = guarded(torch.ones(num_rows, layer.out_features))
    layer.handle.add_to(threads.handle, prepared, total.data_ptr(), layer.out_features)
    assert torch.equal(total, 1.0 + expected)


def run_guarded() -> None:
    """Every format, with sizes that are no multiple of anything the kernels like."""
    native().guard_allocations(True)
    generator = torch.Generator().manual_seed(1)
    threads = Threads(2)
    native().MemoryBuffer(256 * 5).read(threads.handle)
    for out_features, in_features in ((1, 32), (17, 96), (47, 160)):
        weight = guarded(torch.randn(out_features, in_features, generator=generator))
        layers = [PackedLinear.from_tensor(weight, kind) for kind in ("bf16", "int8", "int4")]
        layers.append(PackedLinear.from_tensor(guarded(weight.bfloat16()), "bf16"))
        for storage, group_bytes in GGUF_TYPES.items():
            blocks = GuardedBytes(out_features * in_features // 32 * group_bytes).array
            blocks[:] = 1
            layers.append(PackedLinear.from_gguf(blocks, storage, (out_features, in_features)))
        for layer in layers:
            layer.set_bias(guarded(torch.randn(out_features, generator=generator)))
            layer.unpack()
            for num_rows in (1, 3, 17, 33):
                rows = torch.randn(num_rows, in_features, generator=generator)
                apply_guarded(layer, rows, threads)
                apply_guarded(layer, rows.bfloat16(), threads)


def run_in_process(argument: str, level: str) -> int:
    """Exit status of this file, run as a program."""
    command = [sys.executable, "-m", "tests.kernels.cpu.test_guard_pages", argument]
    environment = {"AQUILINE_CPU_LEVEL": level, "PYTHONPATH": ":".join(path for path in sys.path if path)}
    return subprocess.run(command, cwd=ROOT, env=environment, timeout=120, check=False).returncode


@with_levels
def test_nothing_beyond_a_buffer_is_touched(level: str) -> None:
    assert run_in_process("layers", level) == 0


def test_a_guard_page_is_noticed() -> None:
    assert run_in_process("beyond", "portable") < 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "beyond":
        memory = GuardedBytes(100)
        ctypes.string_at(memory.address, 100)
        ctypes.string_at(memory.address, 101)
    run_guarded()
