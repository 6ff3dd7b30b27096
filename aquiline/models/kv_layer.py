"""The K/V memory of one layer, as a model sees it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class KVLayer:
    """Keys and values of one layer by slot; a slot is a place in a page, in scratch, or the padding slot."""

    keys: Tensor  # [num_slots, num_kv_heads, head_dim]
    values: Tensor  # [num_slots, num_kv_heads, head_dim]

    def write(self, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store one row per slot.

        Args:
            slots: [num_rows]; repeated only for the padding slot.
            keys, values: [num_rows, num_kv_heads, head_dim].
        """
        self.keys[slots] = keys
        self.values[slots] = values

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Copy rows from slots to slots; all are read before any is written, so ranges may overlap."""
        self.keys[targets] = self.keys[sources]
        self.values[targets] = self.values[sources]
