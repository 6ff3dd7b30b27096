"""What native forwards of target and draft do with their inputs in the same way."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from aquiline.kernels.cpu.forward import LayerMemories, LayerMemory, MemoryShape, RotaryTable, StepRows
from aquiline.models.kv_layer import KVLayer
from aquiline.models.llama import ForwardRows
from aquiline.models.model_config import LlamaConfig
from aquiline.models.rope import RotaryEmbedding

# Angles are computed in pieces of this many positions: a position has the same bits however far the table reaches.
PIECE = 1024


class NativeInputs:
    """Turns a model's forward rows and memory into what the extension module takes.

    What stays the same from step to step, the addresses of the memory and the rotary angles, is made once.
    """

    def __init__(self, config: LlamaConfig) -> None:
        self._shape = MemoryShape(config.num_layers, config.num_kv_heads, config.head_dim)
        self._embedding = RotaryEmbedding(config.rope, config.head_dim, torch.device("cpu"))
        self._pieces: list[tuple[Tensor, Tensor]] = []
        self._rotary = self._table(PIECE)
        self._memory_of: Sequence[KVLayer] | None = None
        self._memory: LayerMemories | None = None

    def step(self, rows: ForwardRows, memory: Sequence[KVLayer]) -> StepRows:
        """The rows of a step; raises as `StepRows` does."""
        last = int(rows.positions.max()) if len(rows.positions) else 0
        return StepRows(rows.positions, rows.slots, rows.attention, self.memory(memory), self.rotary(last))

    def rotary(self, last_position: int) -> RotaryTable:
        """Angles of the positions 0 to at least `last_position`."""
        if last_position >= self._rotary.num_positions:
            self._rotary = self._table(last_position + 1)
        return self._rotary

    def memory(self, memory: Sequence[KVLayer]) -> LayerMemories:
        """The layers of a memory, whose tensors stay the same for as long as it lives."""
        if self._memory is None or memory is not self._memory_of:
            layers = [LayerMemory(kv.keys, kv.values, kv.key_scales, kv.value_scales) for kv in memory]
            self._memory = LayerMemories(layers, self._shape)
            self._memory_of = memory
        return self._memory

    def _table(self, num_positions: int) -> RotaryTable:
        while len(self._pieces) * PIECE < num_positions:
            first = len(self._pieces) * PIECE
            self._pieces.append(self._embedding.angles(torch.arange(first, first + PIECE)))
        cosines, sines = (torch.cat(tables) for tables in zip(*self._pieces, strict=True))
        return RotaryTable(cosines, sines)
