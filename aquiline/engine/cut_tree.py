"""A tree that ends where the draft has no confidence, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from aquiline.speculation import MAX_DEPTH


@dataclass(frozen=True, slots=True)
class CutTree:
    """A tree that grew, as far as the draft model grew it; without its root.

    Attributes:
        survivals: by the draft's confidence, by node.
        parents: node numbers of the whole tree, in which the root is 0 and these nodes follow.
        depths: by node.
        accepted: numbers of accepted nodes, from the root's child down.
        max_depth: of a node that the request could still have used.
    """

    survivals: tuple[float, ...]
    parents: tuple[int, ...]
    depths: tuple[int, ...]
    accepted: tuple[int, ...]
    max_depth: int = MAX_DEPTH

    def main_chain(self) -> CutTree:
        """The first children alone, from the root down.

        Worked example, nodes 1 and 2 below the root, 3 below 1 and 4 below 2: the chain is 1 and 3.
        """
        nodes, last = [], 0
        for node, parent in enumerate(self.parents, 1):
            # Siblings stand in the draft's order, so the first child of a node comes first.
            if parent == last:
                nodes.append(node)
                last = node
        places = {node: place for place, node in enumerate(nodes, 1)}
        return CutTree(
            tuple(self.survivals[node - 1] for node in nodes),
            tuple(range(len(nodes))),
            tuple(range(1, len(nodes) + 1)),
            tuple(places[node] for node in self.accepted if node in places),
            self.max_depth,
        )


@dataclass(frozen=True)
class CutTrials:
    """How the children on an accepted path fared against the draft's confidence.

    Worked example, children .6 and .2 of the root and .3 below the first, which was accepted alone: two trials, which
    were foretold .8 and .5, and one hit.
    """

    tree: CutTree

    @cached_property
    def _children(self) -> dict[int, float]:
        """Summed survival of each node's children."""
        sums: dict[int, float] = {}
        for parent, survival in zip(self.tree.parents, self.tree.survivals, strict=True):
            sums[parent] = sums.get(parent, 0.0) + survival
        return sums

    @cached_property
    def foretold(self) -> list[float]:
        """Chance of any child, by trial."""
        found = []
        for node in (0, *self.tree.accepted):
            children = self._children.get(node)
            if children is not None:
                own = self.tree.survivals[node - 1] if node else 1.0
                found.append(min(1.0, children / max(own, 1e-9)))
        return found

    @property
    def hits(self) -> int:
        """Accepted nodes."""
        return len(self.tree.accepted)
