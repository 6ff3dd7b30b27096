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
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

# A step may choose among these; finer ones differ by less than what is known of them.
THRESHOLDS = (0.03, 0.05, 0.07, 0.1, 0.14, 0.2, 0.28, 0.4, 0.55, 0.75)
DEEPEST = 8
WIDEST = 4
MOST_NODES = 12
# Trees fade with this half-life, so that the figures follow the traffic, and sooner at thresholds below those tried of
# late; the prior weighs as many trees as this.
FADING = 0.5 ** (1 / 800)
FADING_UNTRIED = 0.5 ** (1 / 100)
PRIOR_TREES = 12.0
# The draft's confidence is taken at its word until it has promised more tokens than this.
PRIOR_TOKENS = 8.0
PRIOR_TRIALS = 4.0
# At thresholds below those tried, trees are as much larger or smaller than foretold as at the lowest one tried, within
# bounds.
MOST_CHANGE = 2.0
LEAST_CHANGE = 0.25
GAIN, PROMISED, NODES, HELD, FIRST_LEVEL = 0, 1, 2, 3, 4
NUM_FIGURES = FIRST_LEVEL + DEEPEST - 1
# Measured at temperature 0 with the head that the project ships, whose first child was right in this share of all
# steps: accepted tokens, nodes and trees with any node, per tree, at every threshold; and how the rows of a level
# fall from one to the next.
PRIOR_FIRST_RATE = 0.53
PRIOR_GAINS = (1.35, 1.24, 1.15, 1.03, 0.92, 0.78, 0.65, 0.5, 0.36, 0.22)
PRIOR_NODES = (6.2, 4.2, 3.3, 2.45, 1.95, 1.45, 1.1, 0.75, 0.5, 0.28)
PRIOR_HELD = (1.0, 0.99, 0.97, 0.93, 0.87, 0.77, 0.65, 0.5, 0.36, 0.23)


@dataclass(frozen=True, slots=True)
class CutTree:
    """A tree that grew, as far as the draft model grew it; without its root.

    Attributes:
        survivals: by the draft's confidence, by node.
        parents: node numbers of the whole tree, in which the root is 0 and these nodes follow.
        depths: by node.
        accepted: numbers of accepted nodes, from the root's child down.
    """

    survivals: tuple[float, ...]
    parents: tuple[int, ...]
    depths: tuple[int, ...]
    accepted: tuple[int, ...]


class CutTally:
    """Figures of one class of requests.

    Args:
        first_rate: how often the draft's first child is expected to be right.

    Attributes:
        num_observed: trees seen so far.
        figures: [num_thresholds, NUM_FIGURES], means per tree as of the last `refresh`: accepted tokens, how many the
            draft's confidence promised, nodes, share of trees with any node, and rows of every draft level behind the
            root's.
    """

    def __init__(self, first_rate: float) -> None:
        self._prior = _prior(first_rate)
        self._sums = np.zeros((len(THRESHOLDS), NUM_FIGURES))
        self._weights = np.zeros(len(THRESHOLDS))
        self._unread: dict[float, list[CutTree]] = {}
        self._hits = self._foretold = 0.0
        self.num_observed = 0
        self.figures: FloatArray = self._prior
        self.refresh()

    @property
    def num_trees(self) -> float:
        """Weight of what was seen at the highest threshold, to which every tree contributes."""
        return float(self._weights[-1])

    @property
    def hit_rate(self) -> float:
        """What share of the children that the draft's confidence foretold came true."""
        return (self._hits + PRIOR_TRIALS) / (self._foretold + PRIOR_TRIALS)

    def observe(self, least_survival: float, tree: CutTree) -> None:
        """One tree that was cut at a threshold; `refresh` makes it count."""
        self.num_observed += 1
        self._unread.setdefault(least_survival, []).append(tree)

    def count_trials(self, hits: float, foretold: float) -> None:
        """Children that were accepted, and how many the draft's confidence foretold."""
        kept = FADING
        self._hits = self._hits * kept + hits
        self._foretold = self._foretold * kept + foretold

    def refresh(self) -> None:
        """Bring `figures` up to what was observed."""
        for least_survival, trees in self._unread.items():
            self._take(least_survival, trees)
        self._unread.clear()
        figures, change, kept_share = np.empty_like(self._prior), np.ones(NUM_FIGURES), 1.0
        for place in reversed(range(len(THRESHOLDS))):
            expected = self._prior[place] * change
            if place + 1 < len(THRESHOLDS):
                # Nodes between two thresholds survive about as often as these say.
                between = (THRESHOLDS[place] * THRESHOLDS[place + 1]) ** 0.5
                above = figures[place + 1]
                expected[PROMISED] = above[PROMISED] + between * max(0.0, expected[NODES] - above[NODES])
            seen, weight = self._sums[place], self._weights[place]
            figures[place] = own = (seen + PRIOR_TREES * expected) / (weight + PRIOR_TREES)
            # Chance has less part in what the draft promises than in what comes true, so only the share is learnt.
            kept_share = (seen[GAIN] + PRIOR_TOKENS * kept_share) / (seen[PROMISED] + PRIOR_TOKENS)
            own[GAIN] = own[PROMISED] * kept_share
            change = np.clip(own / self._prior[place], LEAST_CHANGE, MOST_CHANGE)
        figures[:, HELD] = np.minimum(figures[:, HELD], 1.0)
        # Who cuts less keeps more, whatever chance says.
        self.figures = np.maximum.accumulate(figures[::-1])[::-1]

    def _take(self, least_survival: float, trees: Sequence[CutTree]) -> None:
        first = next((place for place, each in enumerate(THRESHOLDS) if each >= least_survival), None)
        if first is None:
            return
        survivals = [survival for tree in trees for survival in tree.survivals]
        kept = FADING ** len(trees)
        added = (1.0 - kept) / (1.0 - FADING)
        sums = np.zeros((len(THRESHOLDS) - first, NUM_FIGURES))
        if survivals:
            rows = [row for tree in trees for row in _rows_of(tree)]
            thresholds = np.array(THRESHOLDS[first:])[:, None]
            # Rounded thresholds keep what the draft's own comparison, in another precision, kept.
            is_kept = np.array(survivals) >= thresholds * (1.0 - 1e-6)
            sums = is_kept.astype(np.float64) @ np.array(rows)
        self._sums[first:] = self._sums[first:] * kept + sums * (added / len(trees))
        self._weights[first:] = self._weights[first:] * kept + added
        kept_untried = FADING_UNTRIED ** len(trees)
        self._sums[:first] *= kept_untried
        self._weights[:first] *= kept_untried


def _rows_of(tree: CutTree) -> list[list[float]]:
    """What each node adds to the figures of a tree that holds it."""
    accepted, rows = set(tree.accepted), []
    for node, depth in enumerate(tree.depths, 1):
        row = [0.0] * NUM_FIGURES
        row[GAIN] = float(node in accepted)
        row[PROMISED] = tree.survivals[node - 1]
        row[NODES] = 1.0
        # The first node is the draft's first choice: no other can be there without it.
        row[HELD] = float(node == 1)
        if depth < DEEPEST:
            row[FIRST_LEVEL + depth - 1] = 1.0
        rows.append(row)
    return rows


def _prior(first_rate: float) -> FloatArray:
    """The figures of the measured head, scaled to a draft whose first child is right in another share of the steps."""
    scale = first_rate / PRIOR_FIRST_RATE
    figures = np.empty((len(THRESHOLDS), NUM_FIGURES))
    for place, (gain, nodes, held) in enumerate(zip(PRIOR_GAINS, PRIOR_NODES, PRIOR_HELD, strict=True)):
        # Rows per level that fall by one factor and add up to the nodes.
        falling = nodes / (nodes + 1.0)
        levels = nodes * (1.0 - falling) * falling ** np.arange(DEEPEST - 1)
        gain *= scale
        figures[place] = [gain, gain, nodes * min(1.0, scale), min(1.0, held * scale), *levels * min(1.0, scale)]
    return np.maximum(figures, 1e-6)


@dataclass(frozen=True)
class CutTrials:
    """How the children on an accepted path fared against the draft's confidence.

    Worked example, children .6 and .2 of the root and .3 below the first, which was accepted alone: two trials, foretold
    .8 and .5, one hit.
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
