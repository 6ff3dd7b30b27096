"""The shapes a step may choose from: best-first trees within bounds of depth and width, in every useful size."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from aquiline.engine.acceptance import MAX_LEARNT_RANK, SKILLS, AcceptanceEstimator, with_skill
from aquiline.speculation import DynamicTree, StaticTree, TreeShape, max_children

# Deepest node and most children of a node; the first family is the chains.
FAMILY_BOUNDS = ((6, 1), (1, MAX_LEARNT_RANK), (2, MAX_LEARNT_RANK), (3, MAX_LEARNT_RANK), (5, MAX_LEARNT_RANK))
DEEPEST = 10
SIZES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64)
# A node that is committed less often than this is no candidate at any price.
LEAST_SURVIVAL = 0.002
ROUNDING = 1e-9


@dataclass(frozen=True)
class TreeBounds:
    """What no tree of an engine exceeds.

    Attributes:
        max_draft_tokens: nodes below the root.
        max_children: of one node.
        num_scratch_places: draft nodes that a request holds at most while its tree grows and is verified.
    """

    max_draft_tokens: int = 0
    max_children: int = MAX_LEARNT_RANK
    num_scratch_places: int = 0

    @classmethod
    def of_shapes(cls, shapes: Sequence[TreeShape]) -> TreeBounds:
        """Bounds that just hold the shapes."""
        # A dynamic tree runs more nodes through the draft than it keeps.
        places = [s.steps * s.topk if isinstance(s, DynamicTree) else 0 for s in shapes]
        most = max((shape.num_draft_tokens for shape in shapes), default=0)
        return cls(most, max(map(max_children, shapes), default=0), max([most, *places]))


@dataclass(frozen=True)
class Candidate:
    """One shape with what it would bring, for requests of every skill.

    Requests that draft badly hold fewer nodes of the shape: a node is theirs as long as its survival is no less than
    that of the shape's last node for a request of usual skill. So one threshold divides the nodes of a step.

    Attributes:
        shape: that of the request that holds most; the others hold its first nodes.
        num_draft_tokens: by skill.
        expected: committed tokens of a step, the bonus token included, by skill.
        key: names the candidate across changes of its shape: its family and its size there.
        level_widths: nodes with children on every level, the root's level first: what the draft runs per tree.
    """

    shape: StaticTree
    num_draft_tokens: tuple[int, ...]
    expected: tuple[float, ...]
    level_widths: tuple[int, ...]
    key: tuple[int, int] = (-1, 0)


class TreeFamily:
    """Trees that grow node by node, the most promising first, within bounds of depth and width."""

    def __init__(
        self, estimator: AcceptanceEstimator, max_depth: int, max_children: int, max_draft_tokens: int
    ) -> None:
        self.shape = _best_first(estimator, max_depth, max_children, max_draft_tokens)
        self._survivals: list[list[float]] = []
        self._expected: list[list[float]] = []
        self._falling: list[list[float]] = []
        self.refresh(estimator)

    def refresh(self, estimator: AcceptanceEstimator) -> None:
        """Take over new rates; the order of the nodes stays."""
        self._survivals = [_survivals(self.shape, estimator.rates, skill) for skill in SKILLS]
        self._expected = [list(accumulate(survivals)) for survivals in self._survivals]
        # Least survival so far, negated so that it ascends.
        self._falling = [[-least for least in accumulate(survivals, min)] for survivals in self._survivals]

    def candidate(self, num_draft_tokens: int, family: int) -> Candidate:
        """The candidate whose requests of usual skill hold so many nodes; `family` is the number of this one."""
        usual = self._survivals[SKILLS.index(1.0)]
        threshold = usual[num_draft_tokens]
        sizes = tuple(bisect_right(falling, -threshold * (1.0 - ROUNDING)) - 1 for falling in self._falling)
        shape = self.shape.truncated(max(sizes))
        expected = tuple(values[size] for values, size in zip(self._expected, sizes, strict=True))
        return Candidate(shape, sizes, expected, shape.level_widths, (family, num_draft_tokens))

    def sizes(self) -> list[int]:
        """Sizes worth a candidate."""
        usual = self._survivals[SKILLS.index(1.0)]
        return [size for size in SIZES if size <= self.shape.num_draft_tokens and usual[size] >= LEAST_SURVIVAL]


def grow_families(estimator: AcceptanceEstimator, bounds: TreeBounds) -> list[TreeFamily]:
    """All families for the rates of now."""
    limits = [*FAMILY_BOUNDS, (DEEPEST, MAX_LEARNT_RANK)]
    return [
        TreeFamily(estimator, depth, min(width, bounds.max_children), bounds.max_draft_tokens)
        for depth, width in limits
    ]


def candidates_of(families: Sequence[TreeFamily]) -> list[Candidate]:
    """One candidate per family and size, without repetitions."""
    found: dict[tuple[StaticTree, tuple[int, ...]], Candidate] = {}
    for number, family in enumerate(families):
        for size in family.sizes():
            candidate = family.candidate(size, number)
            found.setdefault((candidate.shape, candidate.num_draft_tokens), candidate)
    return list(found.values())


def _best_first(estimator: AcceptanceEstimator, max_depth: int, max_children: int, max_draft_tokens: int) -> StaticTree:
    """Add the node with the best survival until the tree is full.

    Worked example, rates .6 .2 at depth 1 and .5 .1 at depth 2: the nodes come as 0 (.6), 00 (.3), 1 (.2), 10 (.1),
    01 (.06).
    """
    parents, ranks, depths, survivals = [-1], [0], [0], [1.0]
    # Every node waits for its turn behind its parent and its elder sibling: (-survival, depth, parent, rank).
    waiting = [(-estimator.rate(1, 0), 1, 0, 0)]
    while waiting and len(parents) <= max_draft_tokens:
        survival, depth, parent, rank = heapq.heappop(waiting)
        node = len(parents)
        parents.append(parent)
        ranks.append(rank)
        depths.append(depth)
        survivals.append(-survival)
        if rank + 1 < max_children:
            sibling = survivals[parent] * estimator.rate(depth, rank + 1)
            heapq.heappush(waiting, (-min(sibling, -survival), depth, parent, rank + 1))
        if depth < max_depth:
            heapq.heappush(waiting, (survival * estimator.rate(depth + 1, 0), depth + 1, node, 0))
    return StaticTree(tuple(parents), tuple(ranks))


def _survivals(shape: StaticTree, rates: Sequence[Sequence[float]], skill: float) -> list[float]:
    """Of every node of `shape`, the root's 1 first."""
    bent = [with_skill(row, skill) for row in rates]
    last = len(bent) - 1
    survivals = [1.0]
    for parent, rank, depth in zip(shape.parents[1:], shape.ranks[1:], shape.depths[1:], strict=True):
        survivals.append(survivals[parent] * bent[min(depth - 1, last)][rank])
    return survivals
