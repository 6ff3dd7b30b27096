"""How far draft trees get on a text that is already written, counted from the ranks of its tokens.

At temperature 0 a step accepts the child that equals the token the target writes, so the accepted path of any static
tree follows from one table: at which rank did the draft have the right token, below every possible root, at every
depth? Rows of the kernels do not depend on each other, and so these counts are those of serving, not an estimate.

Worked example, output tokens a b c d e f, a chain of 2 and ranks (0 is the draft's first choice) as in the table:

    root      a      b      c      d      e
    depth 1   b: 0   c: 1   d: 0   e: 0   f: 5
    depth 2   c: 3   d: 0   e: 0   f: 0

    a accepts b and draws c; c accepts d and e and draws f: 2 steps, 3 accepted draft tokens
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from aquiline.engine.acceptance_tally import AcceptanceTally
from aquiline.speculation import StaticTree, chain


@dataclass(frozen=True)
class RankedText:
    """One answer of the target, as a draft foresees it.

    Attributes:
        ranks: for every output token that grows a tree, depth by depth, the rank of the right token; shorter where the
            answer ends. A token that the draft does not know has a rank that no tree reaches.
    """

    category: str
    ranks: tuple[tuple[int, ...], ...]


def tally(texts: Sequence[RankedText], shape: StaticTree) -> AcceptanceTally:
    """What serving the texts with a tree of this shape accepts."""
    counts, children = AcceptanceTally(), _children(shape)
    for text in texts:
        for root in _roots(text, children):
            counts.count(_num_accepted(text.ranks[root], children))
    return counts


def hit_rates(texts: Sequence[RankedText], max_depth: int, num_ranks: int) -> tuple[tuple[float, ...], ...]:
    """How likely each child of a node is the right one, given that the node is, by depth and rank.

    Counted below the roots that serving with a chain of `max_depth` visits: they are harder than all positions are, for
    a root follows a rejection. Below a root the text is followed while its tokens are among the first `num_ranks`.

    Returns:
        [depth][rank], from the root's children down, as far as any text leads.
    """
    hits = [[0] * num_ranks for _ in range(max_depth)]
    offered = [0] * max_depth
    children = _children(chain(max_depth))
    for text in texts:
        for root in _roots(text, children):
            for depth, rank in enumerate(text.ranks[root][:max_depth]):
                offered[depth] += 1
                if rank >= num_ranks:
                    break
                hits[depth][rank] += 1
    return tuple(tuple(count / total for count in row) for row, total in zip(hits, offered, strict=True) if total > 0)


def conditional_accuracy(texts: Sequence[RankedText], max_depth: int) -> tuple[float, ...]:
    """Share of positions, all of them roots, whose depth-i token is the first choice, given all before it were."""
    children = _children(chain(max_depth))
    counts = AcceptanceTally()
    for text in texts:
        for ranks in text.ranks:
            counts.count(_num_accepted(ranks, children))
    return tuple(counts.conditional_acceptance_per_position)


def _roots(text: RankedText, children: dict[tuple[int, int], int]) -> Iterator[int]:
    """Output tokens that become roots, one step after the other."""
    root = 0
    while root < len(text.ranks):
        yield root
        root += _num_accepted(text.ranks[root], children) + 1


def _num_accepted(ranks: Sequence[int], children: dict[tuple[int, int], int]) -> int:
    """Draft tokens on the accepted path below one root."""
    node, count = 0, 0
    for rank in ranks:
        child = children.get((node, rank))
        if child is None:
            break
        node, count = child, count + 1
    return count


def _children(shape: StaticTree) -> dict[tuple[int, int], int]:
    """Node by its parent and its rank."""
    places = enumerate(zip(shape.parents, shape.ranks, strict=True))
    return {(parent, rank): node for node, (parent, rank) in places if node > 0}
