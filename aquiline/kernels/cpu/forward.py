"""Inputs of native forwards: where rows stand and what they see, as the extension module takes them.

The extension module trusts addresses and sizes and checks every index, so tensors are checked here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from aquiline.errors import InvalidParameterError
from aquiline.kernels.attention_inputs import AttentionGroup, AttentionInputs
from aquiline.kernels.cpu.extension import native

if TYPE_CHECKING:
    from aquiline.kernels.cpu import _native

MEMORY_DTYPES = (torch.bfloat16, torch.float32, torch.int8)


@dataclass(frozen=True)
class MemoryShape:
    """What the K and V tensors of a layer must look like: [num_slots, num_kv_heads, head_dim]."""

    num_layers: int
    num_kv_heads: int
    head_dim: int


def check_tensor(tensor: Tensor, name: str, dtypes: Sequence[torch.dtype], shape: Sequence[int | None]) -> None:
    """Refuse a tensor whose memory a kernel would misread.

    Args:
        shape: None allows any size of that dimension.

    Raises:
        InvalidParameterError: it has another type, shape, device or layout.
    """
    sizes = tensor.shape
    fits = len(sizes) == len(shape) and all(want in (None, size) for want, size in zip(shape, sizes, strict=True))
    if not fits or tensor.dtype not in dtypes or tensor.device.type != "cpu" or not tensor.is_contiguous():
        wanted = "[" + ", ".join("any" if size is None else str(size) for size in shape) + "]"
        types = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        layout = "contiguous" if tensor.is_contiguous() else "not contiguous"
        raise InvalidParameterError(
            f"{name} must be contiguous {types} {wanted} on the CPU, not {layout} "
            f"{str(tensor.dtype).removeprefix('torch.')} {list(sizes)} on {tensor.device}"
        )


class GroupArrays:
    """Attention groups for the extension module; keeps their tensors alive."""

    def __init__(self, inputs: AttentionInputs) -> None:
        if inputs.first_position < 0:
            raise InvalidParameterError(f"first_position is {inputs.first_position}; it must be at least 0")
        self.first_position = inputs.first_position
        self._tensors: list[Tensor] = []
        module = native()
        self.handles: list[_native.AttentionGroup] = [self._group(module, group) for group in inputs.groups]

    def _group(self, module: object, group: AttentionGroup) -> _native.AttentionGroup:
        keys, visible = self._kept(group.key_slots), group.visible_lens
        self._check_lens(visible, "visible_lens")
        num_reqs, num_queries = visible.shape
        check_tensor(keys, "key_slots", (torch.int64,), (num_reqs, None))
        make = module.attention_group  # type: ignore[attr-defined]
        handle: _native.AttentionGroup = make(
            num_reqs, num_queries, keys.shape[1], keys.data_ptr(), visible.data_ptr(), visible.stride()
        )
        if group.path_slots is not None and group.path_lens is not None:
            slots, lens = self._kept(group.path_slots), group.path_lens
            self._check_lens(lens, "path_lens")
            check_tensor(slots, "path_slots", (torch.int64,), (num_reqs, num_queries, None))
            if lens.shape != visible.shape:
                raise InvalidParameterError(f"path_lens has shape {list(lens.shape)}, not {list(visible.shape)}")
            handle.set_paths(slots.data_ptr(), slots.shape[2], lens.data_ptr(), lens.stride())
        return handle

    def _kept(self, tensor: Tensor) -> Tensor:
        contiguous = tensor.contiguous()
        self._tensors.append(contiguous)
        return contiguous

    def _check_lens(self, lens: Tensor, name: str) -> None:
        """Lengths may be expanded tensors: they are read with their strides."""
        self._tensors.append(lens)
        if lens.dtype != torch.int64 or lens.dim() != 2 or lens.device.type != "cpu":
            raise InvalidParameterError(f"{name} must be int64 with two dimensions on the CPU, not {lens.dtype}")


@dataclass(frozen=True)
class LayerMemory:
    """K and V of one layer: bfloat16 or float32, or int8 with scales."""

    keys: Tensor  # [num_slots, num_kv_heads, head_dim]
    values: Tensor  # [num_slots, num_kv_heads, head_dim]
    key_scales: Tensor | None = None  # [num_slots, num_kv_heads] float32
    value_scales: Tensor | None = None  # [num_slots, num_kv_heads] float32


class LayerMemories:
    """K and V of every layer; keeps the tensors alive.

    Raises:
        InvalidParameterError: a tensor of another type, shape, device or layout, or another number of layers.
    """

    def __init__(self, layers: Sequence[LayerMemory], shape: MemoryShape) -> None:
        if len(layers) != shape.num_layers:
            raise InvalidParameterError(f"there is memory for {len(layers)} layers; the model has {shape.num_layers}")
        first = layers[0].keys
        check_tensor(first, "keys", MEMORY_DTYPES, (None, shape.num_kv_heads, shape.head_dim))
        module = native()
        kind = getattr(module.KVType, str(first.dtype).removeprefix("torch."))
        self.handle: _native.ModelMemory = module.ModelMemory(kind, *first.shape)
        self._kept: list[Tensor | None] = []
        for layer in layers:
            check_tensor(layer.keys, "keys", (first.dtype,), first.shape)
            check_tensor(layer.values, "values", (first.dtype,), first.shape)
            scales = [layer.key_scales, layer.value_scales]
            addresses = [_address_of_scales(part, first) for part in scales]
            self.handle.add_layer(layer.keys.data_ptr(), layer.values.data_ptr(), *addresses)
            self._kept += [layer.keys, layer.values, *scales]


def _address_of_scales(scales: Tensor | None, heads: Tensor) -> int:
    """0 where `heads` have none."""
    if (scales is not None) != (heads.dtype == torch.int8):
        raise InvalidParameterError("int8 keys and values need scales, and others have none")
    if scales is None:
        return 0
    check_tensor(scales, "scales", (torch.float32,), heads.shape[:2])
    return int(scales.data_ptr())


class RotaryTable:
    """Cosines and sines of positions 0, 1, ... for the extension module; keeps the tensors alive.

    Args:
        cosines, sines: float32 [num_positions, head_dim / 2].
    """

    def __init__(self, cosines: Tensor, sines: Tensor) -> None:
        check_tensor(cosines, "cosines", (torch.float32,), (None, None))
        check_tensor(sines, "sines", (torch.float32,), cosines.shape)
        self.num_positions = int(cosines.shape[0])
        self._tables = (cosines, sines)
        self.handle: _native.RotaryTable = native().rotary_table(
            cosines.data_ptr(), sines.data_ptr(), self.num_positions
        )


class StepRows:
    """All rows of a forward for the extension module; keeps the tensors alive.

    Args:
        positions, slots: int64 [num_rows].

    Raises:
        InvalidParameterError: a tensor of another type, shape, device or layout.
        IndexError: a slot, position or length that does not exist, or groups that do not cover the rows.
    """

    def __init__(
        self, positions: Tensor, slots: Tensor, attention: AttentionInputs, memory: LayerMemories, rotary: RotaryTable
    ) -> None:
        positions, slots = positions.contiguous(), slots.contiguous()
        num_rows = positions.shape[0] if positions.dim() else 0
        check_tensor(positions, "positions", (torch.int64,), (num_rows,))
        check_tensor(slots, "slots", (torch.int64,), (num_rows,))
        groups = GroupArrays(attention)
        self.num_rows = num_rows
        self._kept = (positions, slots, groups, memory, rotary)
        self.handle: _native.StepRows = native().step_rows(
            num_rows,
            positions.data_ptr(),
            slots.data_ptr(),
            rotary.handle,
            memory.handle,
            groups.handles,
            groups.first_position,
        )
