"""The K/V memory of target and draft: one slot numbering, two sets of tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from aquiline.engine.slots import SlotLayout
from aquiline.models.kv_layer import KVLayer
from aquiline.models.model_config import LlamaConfig

SCALE_DTYPE = torch.float32


@dataclass(frozen=True)
class MemoryKind:
    """Of what the engine's long-lived tensors are made.

    Attributes:
        poison: start from NaN, so that reading what was never written shows; integers have their scales for that.
    """

    dtype: torch.dtype
    device: torch.device
    poison: bool = False

    def unwritten(self, *shape: int) -> Tensor:
        """Memory that nothing may read before it is written.

        It is not even zeroed, and so costs nothing until then.
        """
        if self.poison and self.dtype.is_floating_point:
            return torch.full(shape, torch.nan, dtype=self.dtype, device=self.device)
        return torch.empty(shape, dtype=self.dtype, device=self.device)


class KVPool:
    """Allocates the layers' K/V tensors and moves accepted rows.

    Args:
        target, draft: whose layers to hold; `draft` None allocates none.
        memory: of keys and values; int8 brings float32 scales.
    """

    def __init__(
        self,
        layout: SlotLayout,
        target: LlamaConfig,
        draft: LlamaConfig | None,
        memory: MemoryKind,
    ) -> None:
        self.layout = layout
        self.memory = memory
        self.target_layers = _allocate(layout, target, memory)
        self.draft_layers = [] if draft is None else _allocate(layout, draft, memory)

    def move_target_rows(self, sources: Tensor, targets: Tensor) -> None:
        """Move accepted rows [num_rows] from scratch into pages, in every layer."""
        for layer in self.target_layers:
            layer.move(sources, targets)


def block_bytes(block_size: int, configs: list[LlamaConfig], dtype: torch.dtype) -> int:
    """Bytes of one block over all layers of all given models, scales included."""
    scale_bytes = SCALE_DTYPE.itemsize if dtype == torch.int8 else 0
    head_bytes = [config.head_dim * dtype.itemsize + scale_bytes for config in configs]
    num_heads = [2 * config.num_layers * config.num_kv_heads for config in configs]
    return block_size * sum(count * size for count, size in zip(num_heads, head_bytes, strict=True))


def _allocate(layout: SlotLayout, config: LlamaConfig, memory: MemoryKind) -> list[KVLayer]:
    return [_allocate_layer(layout, config, memory) for _ in range(config.num_layers)]


def _allocate_layer(layout: SlotLayout, config: LlamaConfig, memory: MemoryKind) -> KVLayer:
    heads = (layout.num_slots, config.num_kv_heads)
    keys, values = (memory.unwritten(*heads, config.head_dim) for _ in range(2))
    if memory.dtype != torch.int8:
        return KVLayer(keys, values)
    scales = replace(memory, dtype=SCALE_DTYPE)
    return KVLayer(keys, values, scales.unwritten(*heads), scales.unwritten(*heads))
