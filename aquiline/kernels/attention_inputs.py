"""Where every query row of a forward finds its keys."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class AttentionGroup:
    """Requests that bring the same number of query rows.

    A query sees the logical positions `first_position .. visible_len - 1` in its request's pages, then its own path
    through the draft tree: path entry i stands at logical position `visible_len + i`, wherever it lies in memory.

    Worked example: four committed tokens and the root fill slots 0..4 of the pages; node 3 is the child of node 1.
    Its row has visible_len 5 and the path (scratch slot of node 1, scratch slot of node 3) at positions 5 and 6. The
    same token decoded plainly has visible_len 7 and no path; both read the same seven keys in the same order.

    Attributes:
        first_row: flat row of the first query; the group owns num_reqs * num_queries consecutive rows.
        key_slots: slot of every logical position; entries nobody may see point to any slot.
        visible_lens: 0 marks a padding row, which sees nothing and yields zeros.
        path_slots, path_lens: None when no query of the group has a path.
    """

    first_row: int
    key_slots: Tensor  # [num_reqs, context], context a multiple of CONTEXT_CHUNK
    visible_lens: Tensor  # [num_reqs, num_queries]
    path_slots: Tensor | None = None  # [num_reqs, num_queries, path_capacity]
    path_lens: Tensor | None = None  # [num_reqs, num_queries]

    @property
    def num_reqs(self) -> int:
        return int(self.visible_lens.shape[0])

    @property
    def num_queries(self) -> int:
        return int(self.visible_lens.shape[1])


@dataclass(frozen=True)
class AttentionInputs:
    """All queries of a forward.

    Attributes:
        groups: in row order; together they cover every row.
        first_position: logical position of the first key there is (a draft cache has none in slot 0, so 1).
    """

    groups: tuple[AttentionGroup, ...]
    first_position: int = 0
