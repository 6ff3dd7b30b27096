"""The shapes a step may choose from: best-first trees within bounds of depth and width, in every useful size."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aquiline.engine.acceptance import SKILLS
from aquiline.engine.acceptance_prior import MAX_LEARNT_DEPTH, MAX_LEARNT_RANK, MOST_CERTAIN
from aquiline.speculation import DynamicTree, StaticTree, TreeShape, max_children

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Rates = Sequence[Sequence[float]]
"""By depth, the first row depth 1, and rank."""

# Deepest node and most children of a node; the first family is the chains.
FAMILY_BOUNDS = (
    (6, 1),
    (1, MAX_LEARNT_RANK),
    (2, MAX_LEARNT_RANK),
    (3, MAX_LEARNT_RANK),
    (5, MAX_LEARNT_RANK),
    (7, MAX_LEARNT_RANK),
    (10, MAX_LEARNT_RANK),
)
# One less than 8, 16, 32 and 64 fills a panel of rows together with the root.
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 16, 20, 24, 31, 32, 40, 48, 63, 64)
# Behind the rates of all depths and ranks: that of the root, and that of a node which is not there.
ROOT_PLACE = MAX_LEARNT_DEPTH * MAX_LEARNT_RANK
NO_PLACE = ROOT_PLACE + 1


@dataclass(frozen=True)
class TreeBounds:
    """What no tree of an engine exceeds.

    Attributes:
        max_draft_tokens: nodes below the root.
        max_children: of one node.
        num_scratch_places: draft nodes that a request holds at most while its tree grows and is verified.
        reads_confidence: trees may end where the draft has no confidence, for the host can see it without waiting.
    """

    max_draft_tokens: int = 0
    max_children: int = MAX_LEARNT_RANK
    num_scratch_places: int = 0
    reads_confidence: bool = False

    @classmethod
    def of_shapes(cls, shapes: Sequence[TreeShape]) -> TreeBounds:
        """Bounds that just hold the shapes."""
        # A dynamic tree runs more nodes through the draft than it keeps.
        places = [s.steps * s.topk if isinstance(s, DynamicTree) else 0 for s in shapes]
        most = max((shape.num_draft_tokens for shape in shapes), default=0)
        return cls(most, max(map(max_children, shapes), default=0), max([most, *places]))


@dataclass(frozen=True)
class TreeFamilies:
    """Trees that grew node by node, the most promising first; every beginning of one is a candidate.

    Attributes:
        shapes: one per family.
        rate_places: by family, node and level of its path, which of the rates it takes, depth by depth and rank by
            rank; ROOT_PLACE above the root and NO_PLACE for nodes that a family lacks.
        level_widths: by family, size and level, the nodes with children, which the draft runs; the root's level first.
        family, size: of every candidate.
    """

    shapes: tuple[StaticTree, ...]
    rate_places: IntArray  # [num_families, max_nodes, max_depth]
    level_widths: FloatArray  # [num_families, max_nodes, max_depth]
    family: IntArray  # [num_candidates]
    size: IntArray  # [num_candidates]

    @classmethod
    def grown(cls, rates: Rates, bounds: TreeBounds) -> TreeFamilies:
        """Those that are best by the rates."""
        shapes = [
            best_first(rates, depth, min(width, bounds.max_children), bounds.max_draft_tokens)
            for depth, width in FAMILY_BOUNDS
        ]
        num_nodes = max(len(shape.parents) for shape in shapes)
        max_depth = max(1, *(shape.depth for shape in shapes))
        places = np.full((len(shapes), num_nodes, max_depth), ROOT_PLACE, dtype=np.int64)
        widths = np.zeros((len(shapes), num_nodes, max_depth))
        for number, shape in enumerate(shapes):
            _fill(shape, places[number], widths[number])
        pairs = [
            (number, size)
            for number, shape in enumerate(shapes)
            for size in SIZES
            if size <= min(shape.num_draft_tokens, bounds.max_draft_tokens)
        ]
        numbers = np.array(pairs, dtype=np.int64).reshape(len(pairs), 2)
        return cls(tuple(shapes), places, widths.cumsum(axis=1), numbers[:, 0], numbers[:, 1])

    def survivals(self, rates: Rates) -> FloatArray:
        """Of every node, by skill, family and node; 0 where a family has no such node."""
        flat = np.ones((len(SKILLS), NO_PLACE + 1))
        flat[:, :ROOT_PLACE] = bent_rates(rates).reshape(len(SKILLS), ROOT_PLACE)
        flat[:, NO_PLACE] = 0.0
        found: FloatArray = flat[:, self.rate_places].prod(axis=-1)
        return found


def _fill(shape: StaticTree, places: IntArray, widths: FloatArray) -> None:
    """Write what `TreeFamilies` says of one shape."""
    places[len(shape.parents) :, 0] = NO_PLACE
    for node in range(1, len(shape.parents)):
        parent, depth, rank = shape.parents[node], shape.depths[node], shape.ranks[node]
        places[node] = places[parent]
        places[node, depth - 1] = (min(depth, MAX_LEARNT_DEPTH) - 1) * MAX_LEARNT_RANK + rank
        if rank == 0:
            # With its first child a node becomes one that the draft runs.
            widths[node, depth - 1] = 1.0


def bent_rates(rates: Rates) -> FloatArray:
    """`with_skill` of every depth's rates, for every skill: [num_skills, num_depths, num_ranks]."""
    plain = np.array(rates, dtype=np.float64)
    total = plain.sum(axis=1, keepdims=True)
    certain = np.minimum(total, MOST_CERTAIN)
    skills = np.array(SKILLS).reshape(-1, 1, 1)
    factors = certain * skills / (1.0 - certain + certain * skills) / np.maximum(total, 1e-12)
    bent: FloatArray = plain * factors
    bent[SKILLS.index(1.0)] = plain
    return bent


def best_first(rates: Rates, max_depth: int, max_children: int, max_draft_tokens: int) -> StaticTree:
    """Add the node with the best survival until the tree is full.

    Worked example, rates .6 .2 at depth 1 and .5 .1 at depth 2: the nodes come as 0 (.6), 00 (.3), 1 (.2), 10 (.1),
    01 (.06).
    """
    last = len(rates) - 1
    parents, ranks, survivals = [-1], [0], [1.0]
    # Every node waits for its turn behind its parent and its elder sibling: (-survival, depth, parent, rank).
    waiting = [(-rates[0][0], 1, 0, 0)]
    while waiting and len(parents) <= max_draft_tokens:
        survival, depth, parent, rank = heapq.heappop(waiting)
        node = len(parents)
        parents.append(parent)
        ranks.append(rank)
        survivals.append(-survival)
        if rank + 1 < max_children:
            sibling = survivals[parent] * rates[min(depth - 1, last)][rank + 1]
            heapq.heappush(waiting, (-min(sibling, -survival), depth, parent, rank + 1))
        if depth < max_depth:
            heapq.heappush(waiting, (survival * rates[min(depth, last)][0], depth + 1, node, 0))
    return StaticTree(tuple(parents), tuple(ranks))
