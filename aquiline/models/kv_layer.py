"""The K/V memory of one layer, as a model sees it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from aquiline import kernels


@dataclass(frozen=True)
class KVLayer:
    """Keys and values of one layer by slot; a slot is a place in a page, in scratch, or the padding slot.

    int8 keys and values have one scale for each head of each slot.
    """

    keys: Tensor  # [num_slots, num_kv_heads, head_dim]
    values: Tensor  # [num_slots, num_kv_heads, head_dim]
    key_scales: Tensor | None = None  # [num_slots, num_kv_heads] float32
    value_scales: Tensor | None = None  # [num_slots, num_kv_heads] float32

    def write(self, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store one row per slot, in the type of the memory.

        Args:
            slots: [num_rows]; repeated only for the padding slot.
            keys, values: [num_rows, num_kv_heads, head_dim].
        """
        _write(self.keys, self.key_scales, slots, keys)
        _write(self.values, self.value_scales, slots, values)

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Copy rows from slots to slots; all are read before any is written, so ranges may overlap."""
        for part in self.tensors():
            part[targets] = part[sources]

    def tensors(self) -> list[Tensor]:
        """Everything that a slot has a row in."""
        parts = (self.keys, self.values, self.key_scales, self.value_scales)
        return [part for part in parts if part is not None]


def _write(memory: Tensor, scales: Tensor | None, slots: Tensor, heads: Tensor) -> None:
    if scales is None:
        memory[slots] = heads.to(memory.dtype)
        return
    quantized = kernels.quantize_heads(heads)
    memory[slots], scales[slots] = quantized.numbers, quantized.scales
