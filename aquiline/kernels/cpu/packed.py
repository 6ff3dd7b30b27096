"""Linear layers whose weights are kept in the order, and at the precision, in which native kernels read them.

Addresses and sizes are handed to the extension module, which trusts them; everything is checked here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from aquiline.errors import InvalidParameterError
from aquiline.kernels.cpu.extension import level, native

if TYPE_CHECKING:
    from aquiline.kernels.cpu import _native

GROUP_SIZE = 32
MAX_THREADS = 1024

# Storage format of each kind of packing that a matrix of numbers can get.
MATRIX_FORMATS = {"bf16": "bf16", "int8": "q8_0", "int4": "q4_1"}

# Bytes of a group of 32 weights in each type of GGUF tensor that is kept as it is.
GGUF_GROUP_BYTES = {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20}

# A float16 scale of a group cannot be larger.
LARGEST_SCALE = 65504.0


class Threads:
    """Threads that share out the work of a layer; the caller's is one of them, the others sleep when there is none."""

    def __init__(self, num_threads: int) -> None:
        if not 1 <= num_threads <= MAX_THREADS:
            raise InvalidParameterError(f"num_threads is {num_threads}; it must be 1 to {MAX_THREADS}")
        self.handle: _native.ThreadPool = native().ThreadPool(num_threads)

    @property
    def num_threads(self) -> int:
        return self.handle.num_threads


@dataclass(frozen=True)
class Packing:
    """By whom and where weights are packed.

    Attributes:
        threads: share out the packing.
        memory: where weights that are read together lie together, on huge pages where the system has them; None: every
            matrix has memory of its own.
    """

    threads: Threads
    memory: _native.WeightMemory | None = None

    @classmethod
    def together(cls, threads: Threads) -> Packing:
        """Packing of the matrices of one model."""
        return cls(threads, native().WeightMemory())


class PackedLinear:
    """rows @ weight.T + bias over packed weights; made by `from_tensor` or `from_gguf`.

    The bits of a row of the result depend on that row alone: not on its neighbours, the number of rows or the threads.

    Attributes:
        kind: bf16, int8 or int4, or the type of the GGUF tensor.
    """

    def __init__(self, handle: _native.PackedLinear, kind: str, out_features: int, in_features: int) -> None:
        self.handle = handle
        self.kind = kind
        self.out_features = out_features
        self.in_features = in_features

    @classmethod
    def from_tensor(cls, weight: Tensor, kind: str, packing: Packing | None = None) -> PackedLinear:
        """Pack a matrix [out_features, in_features] of float32 or bfloat16.

        Args:
            kind: bf16 rounds the weights to bfloat16; int8 and int4 quantise them in groups of 32 inputs, int4 with a
                minimum for each group. Activations are rounded or quantised likewise, to 8 bits in both.
            packing: None: one thread, and memory of its own.

        Raises:
            InvalidParameterError: an unknown kind, or a weight of another type, device, layout or size.
        """
        if kind not in MATRIX_FORMATS:
            raise InvalidParameterError(f"the kind of packing is {kind!r}; it can be {', '.join(MATRIX_FORMATS)}")
        _check_matrix(weight, "weight")
        out_features, in_features = weight.shape
        _check_sizes(out_features, in_features)
        if kind != "bf16":
            limit = LARGEST_SCALE if kind == "int4" else 127 * LARGEST_SCALE
            lowest, highest = (float(bound) for bound in weight.aminmax())
            if not (-limit <= lowest and highest <= limit):
                raise InvalidParameterError(f"a weight is not finite or above {limit:g}; it cannot be packed as {kind}")
        level()
        module = native()
        storage = getattr(module.WeightFormat, MATRIX_FORMATS[kind])
        element = _element_type(weight.dtype)
        packing = packing or Packing(Threads(1))
        handle = module.PackedLinear.pack_matrix(
            packing.threads.handle, weight.data_ptr(), element, out_features, in_features, storage, packing.memory
        )
        return cls(handle, kind, out_features, in_features)

    @classmethod
    def from_gguf(
        cls, blocks: np.ndarray, storage: str, shape: tuple[int, int], packing: Packing | None = None
    ) -> PackedLinear:
        """Pack a GGUF tensor without changing a weight.

        Args:
            blocks: its bytes, uint8, row after row.
            storage: its type: Q8_0, Q4_0 or Q4_1.
            shape: (out_features, in_features).
            packing: None: one thread, and memory of its own.

        Raises:
            InvalidParameterError: another type, or bytes that do not fit the shape.
        """
        if storage not in GGUF_GROUP_BYTES:
            raise InvalidParameterError(f"{storage} cannot be packed as it is; only {', '.join(GGUF_GROUP_BYTES)} can")
        out_features, in_features = shape
        _check_sizes(out_features, in_features)
        if blocks.dtype != np.uint8 or not blocks.flags.c_contiguous:
            raise InvalidParameterError("the blocks of a GGUF tensor must be contiguous bytes (uint8)")
        num_bytes = out_features * in_features // GROUP_SIZE * GGUF_GROUP_BYTES[storage]
        if blocks.size != num_bytes:
            raise InvalidParameterError(
                f"a {storage} tensor of shape {list(shape)} has {num_bytes} bytes, not {blocks.size}"
            )
        if not np.isfinite(scales_of(blocks, storage)).all():
            raise InvalidParameterError(f"a scale of the {storage} tensor is not finite; fetch the file again")
        level()
        module = native()
        packing = packing or Packing(Threads(1))
        weight_format = getattr(module.WeightFormat, storage.lower())
        handle = module.PackedLinear.pack_gguf(
            packing.threads.handle, blocks.ctypes.data, out_features, in_features, weight_format, packing.memory
        )
        return cls(handle, storage, out_features, in_features)

    @property
    def num_bytes(self) -> int:
        """Memory that the packed weights take."""
        return self.handle.num_bytes

    def set_bias(self, bias: Tensor) -> None:
        """Add `bias`, [out_features], to every row of later results; it is kept in float32."""
        if tuple(bias.shape) != (self.out_features,) or bias.device.type != "cpu" or not bias.is_floating_point():
            raise InvalidParameterError(f"bias must be {self.out_features} numbers on the CPU, not {_describe(bias)}")
        wide = bias.float().contiguous()
        self.handle.set_bias(wide.data_ptr())

    def prepare(self, rows: Tensor) -> _native.InputRows:
        """Round or quantise rows [num_rows, in_features] once, for this layer and others of its kind and width."""
        _check_matrix(rows, "rows")
        if rows.shape[1] != self.in_features:
            raise InvalidParameterError(f"rows have {rows.shape[1]} numbers; this layer takes {self.in_features}")
        prepared: _native.InputRows = native().InputRows(self.handle, rows.shape[0])
        prepared.fill(rows.data_ptr(), _element_type(rows.dtype), rows.shape[0])
        return prepared

    def apply(self, rows: Tensor, threads: Threads, dtype: torch.dtype = torch.float32) -> Tensor:
        """rows @ weight.T + bias.

        Args:
            rows: float32 or bfloat16 [num_rows, in_features], contiguous.
            dtype: of the result, float32 or bfloat16.

        Raises:
            InvalidParameterError: rows of another type, device, layout or size.
        """
        return self.apply_prepared(self.prepare(rows), threads, dtype)

    def apply_prepared(
        self, prepared: _native.InputRows, threads: Threads, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """The same for rows that `prepare` of this or a like layer has rounded or quantised."""
        element = _element_type(dtype)
        out = torch.empty((prepared.num_rows, self.out_features), dtype=dtype)
        try:
            self.handle.apply(threads.handle, prepared, out.data_ptr(), element, self.out_features)
        except ValueError as error:
            raise InvalidParameterError(str(error)) from None
        return out

    def add_to(self, out: Tensor, rows: Tensor, threads: Threads) -> None:
        """out += rows @ weight.T + bias, for float32 `out` [num_rows, out_features]."""
        _check_matrix(out, "out")
        if out.dtype != torch.float32 or tuple(out.shape) != (rows.shape[0], self.out_features):
            wanted = f"float32 [{rows.shape[0]}, {self.out_features}]"
            raise InvalidParameterError(f"out must be {wanted}, not {_describe(out)}")
        self.handle.add_to(threads.handle, self.prepare(rows), out.data_ptr(), self.out_features)

    def unpack(self) -> Tensor:
        """The weights as the kernels see them, float32 [out_features, in_features]."""
        weight = torch.empty((self.out_features, self.in_features))
        self.handle.unpack(weight.data_ptr())
        return weight


def scales_of(blocks: np.ndarray, storage: str) -> np.ndarray:
    """Scales of all groups of a GGUF tensor, with minima beside them in Q4_1: float16 [num_groups, 1 or 2].

    Args:
        blocks: bytes, uint8; whole groups of 32 weights.
        storage: Q8_0, Q4_0 or Q4_1.
    """
    num_halves = 2 if storage == "Q4_1" else 1
    return np.ascontiguousarray(blocks.reshape(-1, GGUF_GROUP_BYTES[storage])[:, : 2 * num_halves]).view(np.float16)


def _element_type(dtype: torch.dtype) -> _native.ElementType:
    if dtype not in (torch.float32, torch.bfloat16):
        raise InvalidParameterError(f"numbers are {dtype}; native layers take torch.float32 and torch.bfloat16")
    element: _native.ElementType = getattr(native().ElementType, str(dtype).removeprefix("torch."))
    return element


def _check_matrix(tensor: Tensor, name: str) -> None:
    _element_type(tensor.dtype)
    if tensor.dim() != 2 or tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise InvalidParameterError(f"{name} must be a contiguous matrix on the CPU, not {_describe(tensor)}")


def _check_sizes(out_features: int, in_features: int) -> None:
    if out_features < 1 or in_features < 1 or in_features % GROUP_SIZE:
        raise InvalidParameterError(
            f"a packed matrix needs at least one output and a multiple of {GROUP_SIZE} inputs, not "
            f"[{out_features}, {in_features}]"
        )


def _describe(tensor: Tensor) -> str:
    layout = "contiguous" if tensor.is_contiguous() else "not contiguous"
    return f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}, {layout}"
