"""The K/V memory of target and draft: one slot numbering, two sets of tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from aquiline.engine.slots import SlotLayout
from aquiline.models.kv_layer import KVLayer
from aquiline.models.model_config import LlamaConfig


class KVPool:
    """Allocates the layers' K/V tensors and moves accepted rows.

    Args:
        target, draft: whose layers to hold; `draft` None allocates none.
        poison: start from NaN, so that reading an unwritten slot shows.
    """

    def __init__(
        self,
        layout: SlotLayout,
        target: LlamaConfig,
        draft: LlamaConfig | None,
        dtype: torch.dtype,
        *,
        poison: bool = False,
    ) -> None:
        self.layout = layout
        self.target_layers = _allocate(layout, target, dtype, poison)
        self.draft_layers = [] if draft is None else _allocate(layout, draft, dtype, poison)

    def move_target_rows(self, sources: Tensor, targets: Tensor) -> None:
        """Move accepted rows [num_rows] from scratch into pages, in every layer."""
        for layer in self.target_layers:
            layer.move(sources, targets)


def block_bytes(block_size: int, configs: list[LlamaConfig], dtype: torch.dtype) -> int:
    """Bytes of one block over all layers of all given models."""
    elements = sum(2 * config.num_layers * config.num_kv_heads * config.head_dim for config in configs)
    return block_size * elements * dtype.itemsize


def _allocate(layout: SlotLayout, config: LlamaConfig, dtype: torch.dtype, poison: bool) -> list[KVLayer]:
    shape = (layout.num_slots, config.num_kv_heads, config.head_dim)

    def memory() -> Tensor:
        # Nothing reads a slot before it is written, and memory that is not even zeroed costs nothing until then.
        return torch.full(shape, torch.nan, dtype=dtype) if poison else torch.empty(shape, dtype=dtype)

    return [KVLayer(memory(), memory()) for _ in range(config.num_layers)]
