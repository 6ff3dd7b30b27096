"""How the rows of a step are shared out between trees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aquiline.engine.host_tree import HostTree
from aquiline.speculation import StaticTree, TreeShape


@dataclass(frozen=True, slots=True)
class TreeShare:
    """What one request holds of the step's shape: its first nodes, and how deep the deepest of them lies."""

    num_draft_tokens: int
    depth: int


NO_SHARE = TreeShare(0, 0)


@dataclass(frozen=True)
class FittedTrees:
    """Trees for which a step has rows.

    Attributes:
        held: how many nodes the draft model grows, by request id.
        known: what was looked up, by request id.
    """

    held: Mapping[str, int]
    known: Mapping[str, HostTree]


def fitted(held: Mapping[str, int], num_rows: int) -> Mapping[str, int]:
    """Nodes by request that `num_rows` rows suffice for: what each should hold, or at most an equal share.

    Worked example, 8 rows for requests that should hold 6, 6 and 1: nobody gets more than 2, so 2, 2 and 1.
    """
    if sum(held.values()) <= max(0, num_rows):
        return held
    most = max(0, num_rows) // len(held)
    return {request_id: min(size, most) for request_id, size in held.items() if most}


def known_within(known: dict[str, HostTree], num_rows: int) -> dict[str, HostTree]:
    """The looked-up trees that `num_rows` rows suffice for, every one cut to an equal share if need be."""
    if num_nodes(known) <= num_rows:
        return known
    share = max(0, num_rows) // len(known)
    return {request_id: tree.within(share, tree.depth) for request_id, tree in known.items()} if share else {}


def within_shape(tree: HostTree, shape: TreeShape | None) -> HostTree:
    """A looked-up tree that is no larger and no deeper than `shape`; None: than nothing."""
    return tree if shape is None else tree.within(shape.num_draft_tokens, shape.depth)


def num_nodes(known: Mapping[str, HostTree]) -> int:
    """Looked-up nodes of all requests."""
    return sum(tree.num_draft_tokens for tree in known.values())


def share_within(shape: TreeShape, num_draft_tokens: int, max_depth: int) -> TreeShare:
    """The largest share of at most so many nodes that reaches no deeper than `max_depth`."""
    if num_draft_tokens < 1 or max_depth < 1:
        return NO_SHARE
    if isinstance(shape, StaticTree):
        num_draft_tokens = min(num_draft_tokens, shape.num_within(max_depth))
    return TreeShare(num_draft_tokens, min(max_depth, shape.truncated(num_draft_tokens).depth))
