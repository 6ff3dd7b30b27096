"""What trees bring that end where the draft has no confidence: learnt for every threshold from each tree that grew.

The draft's confidence in a child is its probability; the product down to a node is how likely the draft itself holds
it that the node is committed. A tree that was cut at one threshold says what it would have been at every higher one:
the same tree without the nodes below that.

Worked example, nodes of survival .6, .3 and .15, of which the first was accepted:

    threshold    nodes    accepted    levels that the draft runs behind the root's
    .1           3        1           those of the nodes' depths
    .5           1        1           depth 1
    .8           0        0           none
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aquiline.engine.change_watch import ChangeWatch
from aquiline.engine.cut_tree import CutTree
from aquiline.speculation import DynamicTree

FloatArray = NDArray[np.float64]

# A step may choose among these; finer ones differ by less than what is known of them.
THRESHOLDS = (0.03, 0.05, 0.07, 0.1, 0.14, 0.2, 0.28, 0.4, 0.55, 0.75)
DEEPEST = 8
# Trees fade with this half-life, so that the figures follow the traffic, and sooner at thresholds below those tried of
# late; the prior weighs as many trees as this.
FADING = 0.5 ** (1 / 400)
FADING_UNTRIED = 0.5 ** (1 / 100)
PRIOR_TREES = 24.0
# Behind a change, what was seen before it weighs as many.
TREES_REMEMBERED = 24.0
# The draft's confidence is taken at its word until it has promised more tokens than this.
PRIOR_TOKENS = 8.0
PRIOR_TRIALS = 4.0
# At thresholds below those tried, trees are as much larger or smaller than foretold as at the lowest one tried, within
# bounds.
MOST_CHANGE = 2.0
LEAST_CHANGE = 0.25
GAIN, PROMISED, NODES = 0, 1, 2
LEAST_NOTED = 0.01
# The cut of a tree that says nothing.
NEVER = (1.0, 0)
# Nodes above the highest threshold survive about as often as this.
SUREST_SURVIVAL = 0.85
# Measured with the head that the project ships: tokens accepted for each that its confidence promised, at temperature 0
# and at 1.
GREEDY_SHARE = 1.08
SAMPLED_SHARE = 0.85
# Measured at temperature 0 with the head that the project ships, whose first child was right in this share of all
# steps: nodes of every depth, and trees with any node, per tree, at every threshold.
PRIOR_FIRST_RATE = 0.53
LEAST_SCALE = 0.01
PRIOR_NODES = (
    (2.58, 2.36, 1.22, 0.49, 0.17, 0.05, 0.012, 0.003),
    (2.06, 1.59, 0.78, 0.30, 0.13, 0.04, 0.010, 0.002),
    (1.72, 1.16, 0.56, 0.22, 0.09, 0.03, 0.008, 0.002),
    (1.37, 0.82, 0.37, 0.16, 0.06, 0.02, 0.005, 0.001),
    (1.12, 0.58, 0.25, 0.10, 0.04, 0.01, 0.003, 0.001),
    (0.89, 0.40, 0.15, 0.06, 0.02, 0.006, 0.002, 0.001),
    (0.73, 0.28, 0.09, 0.03, 0.01, 0.004, 0.002, 0.001),
    (0.55, 0.17, 0.05, 0.015, 0.006, 0.002, 0.001, 0.001),
    (0.39, 0.12, 0.03, 0.010, 0.004, 0.002, 0.001, 0.001),
    (0.25, 0.06, 0.015, 0.005, 0.002, 0.001, 0.001, 0.001),
)
PRIOR_CHAIN_NODES = (
    (0.957, 0.776, 0.486, 0.236, 0.100, 0.028, 0.006, 0.001),
    (0.925, 0.705, 0.377, 0.164, 0.079, 0.024, 0.005, 0.001),
    (0.900, 0.641, 0.318, 0.137, 0.057, 0.017, 0.005, 0.001),
    (0.857, 0.544, 0.245, 0.111, 0.037, 0.013, 0.004, 0.001),
    (0.812, 0.440, 0.192, 0.079, 0.025, 0.007, 0.002, 0.001),
    (0.745, 0.349, 0.136, 0.051, 0.017, 0.003, 0.002, 0.001),
    (0.670, 0.268, 0.090, 0.027, 0.010, 0.002, 0.001, 0.001),
    (0.540, 0.167, 0.047, 0.012, 0.006, 0.002, 0.001, 0.001),
    (0.390, 0.115, 0.023, 0.007, 0.003, 0.001, 0.001, 0.001),
    (0.250, 0.059, 0.012, 0.004, 0.002, 0.001, 0.001, 0.001),
)
PRIOR_HELD = tuple(row[0] for row in PRIOR_CHAIN_NODES)


@dataclass(frozen=True)
class CutFigures:
    """Means per tree at every threshold.

    Attributes:
        by_depth: [3, num_thresholds, DEEPEST], of every depth from 1: accepted tokens, how many the draft's confidence
            promised, and nodes.
        held: [num_thresholds], share of trees with any node.
    """

    by_depth: FloatArray
    held: FloatArray

    def have_moved(self, new: CutFigures, share: float) -> bool:
        """Whether trees of some depth come to more tokens or nodes by more than a share."""
        before, after = self.by_depth[[GAIN, NODES]].cumsum(axis=2), new.by_depth[[GAIN, NODES]].cumsum(axis=2)
        return bool((np.abs(after - before) > share * np.maximum(before, after) + LEAST_NOTED).any())


class CutTally:
    """Figures of one class of requests, of chains and of trees.

    Args:
        first_rate: how often the draft's first child is expected to be right.
        kept_share: how many tokens are expected for each that the draft's confidence promises.

    Attributes:
        num_observed: trees seen so far.
        num_changes: how often the share of the draft's confidence that comes true has changed.
        chains, trees: what each sort brings; trees say what their first children would have brought alone.
    """

    def __init__(self, first_rate: float, kept_share: float = 1.0) -> None:
        # A draft that is right less often is sure less often.
        scale = min(1.0, max(LEAST_SCALE, first_rate / PRIOR_FIRST_RATE))
        self.chains = WidthTally(np.array(PRIOR_CHAIN_NODES) * scale, scale, kept_share)
        self.trees = WidthTally(np.array(PRIOR_NODES) * scale, scale, kept_share)
        self.num_observed = self.num_changes = 0
        self._hits = self._foretold = 0.0
        self._watch = ChangeWatch()

    @property
    def figures(self) -> tuple[CutFigures, CutFigures]:
        """Of chains and of trees, as of the last `refresh`."""
        return self.chains.figures, self.trees.figures

    @property
    def num_trees(self) -> float:
        """Weight of what was seen at the highest threshold, to which every tree contributes."""
        return self.chains.num_trees

    @property
    def hit_rate(self) -> float:
        """What share of the children that the draft's confidence foretold came true."""
        return (self._hits + PRIOR_TRIALS) / (self._foretold + PRIOR_TRIALS)

    def observe(self, shape: DynamicTree, tree: CutTree) -> None:
        """One tree that was cut where `shape` says; `refresh` makes it count."""
        self.num_observed += 1
        cut = (shape.least_survival, min(shape.steps, tree.max_depth))
        self.chains.add(cut, tree if shape.topk == 1 else tree.main_chain())
        self.trees.add(cut if shape.topk > 1 else NEVER, tree)

    def count_trials(self, hits: float, foretold: float) -> None:
        """Children that were accepted, and how many the draft's confidence foretold.

        Where both have parted, what came true before says nothing of what comes.
        """
        share = self._watch.see(hits, foretold, self.hit_rate)
        self._hits = self._hits * FADING + hits
        self._foretold = self._foretold * FADING + foretold
        if share is not None:
            self.num_changes += 1
            self._hits, self._foretold = share * TREES_REMEMBERED, TREES_REMEMBERED
            self.chains.believe(share)
            self.trees.believe(share)

    def refresh(self) -> None:
        """Bring `figures` up to what was observed."""
        self.chains.refresh()
        self.trees.refresh()


class WidthTally:
    """Figures of trees of one width.

    Args:
        prior_nodes: [num_thresholds, DEEPEST], nodes of every depth that are expected of a tree.
        scale: of PRIOR_HELD.
        kept_share: as in `CutTally`.

    Attributes:
        figures: as of the last `refresh`.
    """

    def __init__(self, prior_nodes: FloatArray, scale: float, kept_share: float) -> None:
        self._prior = CutFigures(_by_depth(prior_nodes), np.array(PRIOR_HELD) * scale)
        self._kept_share = kept_share
        self._sums = np.zeros((3, len(THRESHOLDS), DEEPEST))
        self._weights = np.zeros((len(THRESHOLDS), DEEPEST))
        self._held = np.zeros(len(THRESHOLDS))
        self._unread: dict[tuple[float, int], list[CutTree]] = {}
        self.figures = self._prior
        self.refresh()

    @property
    def num_trees(self) -> float:
        """Weight of what was seen at the highest threshold."""
        return float(self._weights[-1, 0])

    def add(self, cut: tuple[float, int], tree: CutTree) -> None:
        """One tree that was cut at a threshold and a depth."""
        self._unread.setdefault(cut, []).append(tree)

    def believe(self, share: float) -> None:
        """Take another share of the promised tokens to come true from now on, whatever was seen."""
        self._read()
        kept = TREES_REMEMBERED / np.maximum(TREES_REMEMBERED, self._weights)
        self._sums *= kept
        self._held *= kept[:, 0]
        self._weights *= kept
        self._sums[GAIN] = share * self._sums[PROMISED]
        self._kept_share = share

    def refresh(self) -> None:
        """Bring `figures` up to what was observed."""
        self._read()
        _, prior_promised, prior = self._prior.by_depth
        by_depth = np.empty_like(self._sums)
        change, first_share, weight_above = np.ones(DEEPEST), self._kept_share, np.ones(DEEPEST)
        for place in reversed(range(len(THRESHOLDS))):
            seen, weight = self._sums[:, place], self._weights[place]
            # What was seen above a threshold says something of it as far as it was not tried itself.
            untried = 1.0 - np.minimum(1.0, weight / np.maximum(weight_above, 1e-9))
            weight_above = weight
            change = 1.0 + (change - 1.0) * untried
            nodes = prior[place] * change
            promised = prior_promised[place]
            if place + 1 < len(THRESHOLDS):
                more = _between(place) * change * (prior[place] - prior[place + 1])
                promised = promised + untried * (by_depth[PROMISED, place + 1] + more - promised)
            # Chance has less part in what the draft promises than in what comes true, so only the share is learnt.
            first_share = self._kept_share + (first_share - self._kept_share) * float(untried[0])
            kept_share = _shares(seen[GAIN], seen[PROMISED], first_share)
            first_share = float(kept_share[0])
            nodes = (seen[NODES] + PRIOR_TREES * nodes) / (weight + PRIOR_TREES)
            promised = (seen[PROMISED] + PRIOR_TREES * promised) / (weight + PRIOR_TREES)
            by_depth[:, place] = np.minimum(kept_share * promised, nodes), promised, nodes
            change = np.clip(nodes / prior[place], LEAST_CHANGE, MOST_CHANGE)
        held = (self._held + PRIOR_TREES * self._prior.held) / (self._weights[:, 0] + PRIOR_TREES)
        # Who cuts less keeps more, whatever chance says.
        self.figures = CutFigures(
            np.maximum.accumulate(by_depth[:, ::-1], axis=1)[:, ::-1], np.maximum.accumulate(held[::-1])[::-1]
        )

    def _read(self) -> None:
        for (least_survival, max_depth), trees in self._unread.items():
            self._take(least_survival, min(max_depth, DEEPEST), trees)
        self._unread.clear()

    def _take(self, least_survival: float, max_depth: int, trees: Sequence[CutTree]) -> None:
        # Rounded thresholds keep what the draft's own comparison, in another precision, kept.
        first = next((place for place, each in enumerate(THRESHOLDS) if each >= least_survival * (1 - 1e-6)), None)
        first = len(THRESHOLDS) if first is None else first
        self._forget(first, len(trees))
        if first == len(THRESHOLDS):
            return
        kept = FADING ** len(trees)
        added = (1.0 - kept) / (1.0 - FADING)
        survivals = np.array([survival for tree in trees for survival in tree.survivals])
        is_kept = survivals >= np.array(THRESHOLDS[first:])[:, None] * (1.0 - 1e-6)
        # [num_thresholds, num_nodes] @ [num_nodes, 3, DEEPEST]
        sums = np.tensordot(is_kept.astype(np.float64), _parts_of(trees, survivals), axes=1).transpose(1, 0, 2)
        # The first node of a tree is the draft's first choice: no other can be there without it.
        firsts = np.array([node == 0 for tree in trees for node in range(len(tree.survivals))], dtype=bool)
        share = added / len(trees)
        tried = (slice(first, None), slice(0, max_depth))
        self._sums[:, *tried] = self._sums[:, *tried] * kept + sums[:, :, :max_depth] * share
        self._weights[tried] = self._weights[tried] * kept + added
        self._held[first:] = self._held[first:] * kept + is_kept[:, firsts].sum(axis=1) * share

    def _forget(self, first: int, num_trees: int) -> None:
        """Thresholds below the first that was tried rest on older trees, whose weight fades."""
        kept = FADING_UNTRIED**num_trees
        self._sums[:, :first] *= kept
        self._weights[:first] *= kept
        self._held[:first] *= kept


def _parts_of(trees: Sequence[CutTree], survivals: FloatArray) -> FloatArray:
    """What each node adds to the figures of its depth: [num_nodes, 3, DEEPEST]."""
    parts = np.zeros((len(survivals), 3, DEEPEST))
    depths = [depth - 1 for tree in trees for depth in tree.depths]
    nodes = np.arange(len(survivals))
    accepted = [node in tree.accepted for tree in trees for node in range(1, len(tree.survivals) + 1)]
    parts[nodes, GAIN, depths] = accepted
    parts[nodes, PROMISED, depths] = survivals
    parts[nodes, NODES, depths] = 1.0
    return parts


def _shares(gained: FloatArray, promised: FloatArray, expected: float) -> FloatArray:
    """What share of the promised tokens is accepted, by depth; each depth leans on the one above it."""
    shares = np.empty(DEEPEST)
    for depth, (tokens, foretold) in enumerate(zip(gained.tolist(), promised.tolist(), strict=True)):
        expected = (tokens + PRIOR_TOKENS * expected) / (foretold + PRIOR_TOKENS)
        shares[depth] = expected
    return shares


def _between(place: int) -> float:
    """How often nodes survive that lie between a threshold and the next higher one."""
    return float((THRESHOLDS[place] * THRESHOLDS[place + 1]) ** 0.5)


def _by_depth(nodes: FloatArray) -> FloatArray:
    """Figures that follow from the numbers of nodes, if the draft's confidence comes true."""
    promised = np.empty_like(nodes)
    promised[-1] = SUREST_SURVIVAL * nodes[-1]
    for place in reversed(range(len(nodes) - 1)):
        promised[place] = promised[place + 1] + _between(place) * (nodes[place] - nodes[place + 1])
    return np.stack((promised, promised, nodes))
