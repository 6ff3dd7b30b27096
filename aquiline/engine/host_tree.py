"""Draft nodes whose tokens the host knows before a step begins: they are found in texts, not computed by a model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class HostTree:
    """Nodes below a request's root, the most promising first, every one behind its parent.

    Nodes are numbered from 1, for 0 is the root. No two children of a node have the same token.

    Worked example, `b` and `c` may follow the root, and `d` may follow `b`:

        node         1    2    3
        tokens       b    c    d
        parents      0    0    1
        depths       1    1    2
        survivals   .6   .3   .5

    Attributes:
        survivals: how likely each node is to be on the accepted path, in [0, 1], no larger than its parent's.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    survivals: tuple[float, ...] = ()

    @property
    def num_draft_tokens(self) -> int:
        return len(self.tokens)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Distance of every node from the root."""
        depths = [0]
        for parent in self.parents:
            depths.append(depths[parent] + 1)
        return tuple(depths[1:])

    @property
    def depth(self) -> int:
        return max(self.depths, default=0)

    @cached_property
    def first_survival(self) -> float:
        """How likely any child of the root is accepted."""
        return sum(survival for survival, parent in zip(self.survivals, self.parents, strict=True) if parent == 0)

    def within(self, max_draft_tokens: int, max_depth: int) -> HostTree:
        """The first nodes that do not lie deeper; itself when all of it fits."""
        if self.num_draft_tokens <= max_draft_tokens and self.depth <= max_depth:
            return self
        kept = [node for node, depth in enumerate(self.depths) if depth <= max_depth][:max_draft_tokens]
        new_number = {0: 0} | {node + 1: place for place, node in enumerate(kept, 1)}
        return HostTree(
            tuple(self.tokens[node] for node in kept),
            tuple(new_number[self.parents[node]] for node in kept),
            tuple(self.survivals[node] for node in kept),
        )


NO_NODES = HostTree()
