"""Draft nodes that a grammar foretells: tokens that must come, and the likely tokens of a text that must come.

Where a grammar leaves one text, such as the name of a property, it seldom leaves one token: any beginning of the text
is legal too. The longest legal token is proposed, and the target decides as for every draft token.
"""

from __future__ import annotations

from collections.abc import Sequence

from aquiline.engine.grammar import Matcher
from aquiline.engine.host_tree import NO_NODES, HostTree
from aquiline.engine.lookup import LookupLimits
from aquiline.engine.row_worth import RowWorth

FIRST_RIGHT = 6.0
FIRST_PROPOSED = 8.0
DECAY = 0.98


class ForetoldRate:
    """How often the foretold tokens of a text were those that the target drew; the latest count most."""

    def __init__(self) -> None:
        self._right = FIRST_RIGHT
        self._proposed = FIRST_PROPOSED

    @property
    def rate(self) -> float:
        return self._right / self._proposed

    def observe(self, is_right: bool) -> None:
        """One more token is known."""
        self._right = DECAY * self._right + is_right
        self._proposed = DECAY * self._proposed + 1.0


class NodeBuilder:
    """Puts nodes together; a node that is there already keeps its place."""

    def __init__(self, limits: LookupLimits) -> None:
        self._limits = limits
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._survivals: list[float] = []
        self._number: dict[tuple[int, int], int] = {}

    def add(self, parent: int, token_id: int, survival: float) -> int | None:
        """The number of the node; None when there is no room for it."""
        node = self._number.get((parent, token_id))
        if node is None and len(self._tokens) < self._limits.max_draft_tokens:
            self._tokens.append(token_id)
            self._parents.append(parent)
            self._survivals.append(survival)
            node = self._number[parent, token_id] = len(self._tokens)
        return node

    def tree(self) -> HostTree:
        return HostTree(tuple(self._tokens), tuple(self._parents), tuple(self._survivals)) if self._tokens else NO_NODES


def foretold_tokens(matcher: Matcher, rate: float, limits: LookupLimits, worth: RowWorth) -> list[tuple[int, float]]:
    """Tokens that come next, one behind the other, and how likely each is drawn once those before it are.

    Args:
        rate: how often a token is right that is not the only legal one.
        worth: no token is taken that is not worth a row of the step.

    The matcher stands where it stood when this returns.
    """
    found: list[tuple[int, float]] = []
    survival = 1.0
    most = min(limits.max_draft_tokens, limits.max_depth)
    while len(found) < most and not matcher.is_terminated:
        chain = matcher.legal_chain()
        if not chain:
            break
        likely = 1.0 if len(chain) == 1 else rate
        survival *= likely
        if survival < worth.least_survival:
            break
        matcher.accept(chain[-1])
        worth.take(survival)
        found.append((chain[-1], likely))
    matcher.rollback(len(found))
    return found[: worth.settle()]


def guided_tree(
    matcher: Matcher, foretold: Sequence[tuple[int, float]], found: HostTree, limits: LookupLimits
) -> HostTree:
    """What is foretold, then the looked-up nodes that are legal.

    Args:
        foretold: from `foretold_tokens`.
    """
    builder = NodeBuilder(limits)
    parent: int | None = 0
    survival = 1.0
    for token_id, likely in foretold:
        if parent is not None:
            survival *= likely
            parent = builder.add(parent, token_id, survival)
    _add_legal(matcher, found, builder)
    return builder.tree()


def _add_legal(matcher: Matcher, found: HostTree, builder: NodeBuilder) -> None:
    """Nodes along legal paths; nodes come behind their parents, so a path is walked anew only where it branches."""
    numbers: list[int | None] = [0]
    path: list[int] = []
    for node, (token_id, parent) in enumerate(zip(found.tokens, found.parents, strict=True), 1):
        numbers.append(None)
        target = numbers[parent]
        if target is None:
            continue
        below = _path_to(found, parent)
        shared = 0
        while shared < min(len(path), len(below)) and path[shared] == below[shared]:
            shared += 1
        matcher.rollback(len(path) - shared)
        del path[shared:]
        for step in below[shared:]:
            matcher.accept(found.tokens[step - 1])
            path.append(step)
        if matcher.accept(token_id):
            path.append(node)
            numbers[node] = builder.add(target, token_id, found.survivals[node - 1])
    matcher.rollback(len(path))


def _path_to(found: HostTree, node: int) -> list[int]:
    """Nodes from below the root down to `node`."""
    path = []
    while node:
        path.append(node)
        node = found.parents[node - 1]
    return path[::-1]
