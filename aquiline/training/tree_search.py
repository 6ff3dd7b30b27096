"""The best static tree of every size, from how often each rank is right at each depth (Sequoia, arXiv 2402.12374).

A node is accepted when every node on its path is the right child of its parent. Where depths are independent, the
probability of a path is a product, and the best tree of n nodes holds the n likeliest paths.

Worked example, hit rates .5 .3 at depth 1 and .4 .1 at depth 2:

    path           0     1     00    10    01     11
    probability    .5    .3    .2    .12   .05    .03     trees of 1, 2, 3, ... nodes take them in this order
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from aquiline.speculation import StaticTree, tree_from_paths

HitRates = Sequence[Sequence[float]]


def likeliest_paths(depth_rank: HitRates, num_paths: int) -> list[tuple[int, ...]]:
    """Up to `num_paths` paths of child ranks, the likeliest first, every node after its parent and its elder sibling.

    Paths that were never right are left out.

    Args:
        depth_rank: [depth][rank], probability that a child is right given that its parent is.
    """
    found: list[tuple[int, ...]] = []
    waiting: list[tuple[float, tuple[int, ...]]] = []

    def offer(parent: tuple[int, ...], parent_probability: float, rank: int) -> None:
        depth = len(parent)
        if depth < len(depth_rank) and rank < len(depth_rank[depth]):
            probability = parent_probability * depth_rank[depth][rank]
            if probability > 0.0:
                heapq.heappush(waiting, (-probability, (*parent, rank)))

    offer((), 1.0, 0)
    while waiting and len(found) < num_paths:
        negative, path = heapq.heappop(waiting)
        found.append(path)
        own_rate = depth_rank[len(path) - 1][path[-1]]
        offer(path[:-1], -negative / own_rate, path[-1] + 1)
        offer(path, -negative, 0)
    return found


def best_trees(depth_rank: HitRates, sizes: Sequence[int]) -> dict[int, StaticTree]:
    """The best tree of each size, in draft tokens, as far as there are likely paths; smaller ones are not repeated."""
    paths = likeliest_paths(depth_rank, max(sizes))
    return {size: tree_from_paths(paths[:size]) for size in sorted(set(sizes)) if 0 < size <= len(paths)}


def expected_acceptance_length(shape: StaticTree, depth_rank: HitRates) -> float:
    """Committed tokens per step that the hit rates promise, the bonus token included."""
    probabilities = [1.0]
    for node in range(1, len(shape.parents)):
        depth, rank = shape.depths[node] - 1, shape.ranks[node]
        is_known = depth < len(depth_rank) and rank < len(depth_rank[depth])
        own = depth_rank[depth][rank] if is_known else 0.0
        probabilities.append(probabilities[shape.parents[node]] * own)
    return sum(probabilities)


def spell_shape(shape: StaticTree) -> str:
    """The shape as `--speculate` takes it, with ranks below 10."""
    if shape.parents == tuple(range(-1, shape.num_draft_tokens)):
        return f"chain:{shape.num_draft_tokens}"
    paths = [""]
    for parent, rank in zip(shape.parents[1:], shape.ranks[1:], strict=True):
        paths.append(f"{paths[parent]}{rank}")
    return f"paths:{','.join(paths[1:])}"
