"""Which slot means what, as integers.

    [ pages: num_blocks * block_size | scratch: max_num_seqs * scratch_per_row | padding: 1 ]

Scratch holds the K/V of draft nodes for the length of one step. The padding slot takes what padding rows write; no
query ever sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class SlotLayout:
    """Sizes of the three regions."""

    num_blocks: int
    block_size: int
    max_num_seqs: int
    scratch_per_row: int

    @property
    def num_page_slots(self) -> int:
        return self.num_blocks * self.block_size

    @property
    def padding_slot(self) -> int:
        return self.num_page_slots + self.max_num_seqs * self.scratch_per_row

    @property
    def num_slots(self) -> int:
        return self.padding_slot + 1

    def page_slot(self, block_ids: Sequence[int], position: int) -> int:
        """Slot of a logical position; the padding slot where the table does not reach."""
        index, offset = divmod(position, self.block_size)
        return block_ids[index] * self.block_size + offset if index < len(block_ids) else self.padding_slot

    def scratch_slot(self, row: int, index: int) -> int:
        """Slot of a device row's scratch place; `index` counts from 0."""
        return self.num_page_slots + row * self.scratch_per_row + index
