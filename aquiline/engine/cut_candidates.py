"""The choices of a step whose trees end where the draft has no confidence: plain decoding, thresholds and depths."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from aquiline.engine.acceptance import NUM_KINDS, SKILLS, USUAL_SKILL
from aquiline.engine.acceptance_prior import RequestClass
from aquiline.engine.cut_tally import DEEPEST, GAIN, NODES, THRESHOLDS, CutFigures
from aquiline.engine.planner_candidates import PLAIN, PLAIN_KEY, Candidate
from aquiline.engine.tree_families import TreeBounds
from aquiline.speculation import DynamicTree

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

SKILL_ODDS = np.array(SKILLS)
# Chains, and trees with so many children.
WIDTHS = (1, 4)
MOST_NODES = 12
# Every level of a draft costs some time, however few nodes it has, so trees may also end at one of these depths.
DEPTHS = (1, 2, 3, 5, DEEPEST)
DEEP = 3
MOST_SPREAD = 1.0


@dataclass(frozen=True, slots=True)
class Cut:
    """Where trees end: a width, a depth and a threshold, by number."""

    width: int
    depth: int
    threshold: int

    @property
    def key(self) -> tuple[int, int]:
        """Names it among the candidates."""
        return self.width * len(DEPTHS) + self.depth, self.threshold

    def shape(self, bounds: TreeBounds) -> DynamicTree:
        """The tree that is cut there."""
        topk = min(WIDTHS[self.width], bounds.max_children)
        steps = max(1, min(DEPTHS[self.depth], bounds.num_scratch_places // topk))
        num_nodes = min(MOST_NODES, bounds.max_draft_tokens, topk + (steps - 1) * topk**2)
        return DynamicTree(steps, topk, num_nodes, THRESHOLDS[self.threshold])


CUTS = tuple(itertools.starmap(Cut, itertools.product(*(range(len(each)) for each in (WIDTHS, DEPTHS, THRESHOLDS)))))
PLACES = {cut: place for place, cut in enumerate(CUTS, 1)}
DEEP_PLACES = tuple(place for place, cut in enumerate(CUTS, 1) if DEPTHS[cut.depth] >= DEEP and WIDTHS[cut.width] > 1)


def _places_around(cut: Cut) -> tuple[int, ...]:
    around = (
        replace(cut, depth=cut.depth + 1),
        replace(cut, threshold=cut.threshold - 1),
        replace(cut, width=1 - cut.width),
        replace(cut, depth=cut.depth - 1),
        replace(cut, threshold=cut.threshold + 1),
    )
    return tuple(PLACES[each] for each in around if each in PLACES)


PLACES_OF_KEYS = {cut.key: place for cut, place in PLACES.items()}
PLACES_AROUND = tuple(map(_places_around, CUTS))
NUM_OF_WIDTH = len(DEPTHS) * len(THRESHOLDS)
# Variance of the nodes of one tree, as a share of the square of their mean, beside that of there being any: none of a
# chain of 1.
OWN_VARIANCES = np.array([0.0, *(0.0 if cut.width == 0 and cut.depth == 0 else 0.3 for cut in CUTS)])


@dataclass(frozen=True)
class CutTable:
    """Plain decoding first, then CUTS.

    Attributes:
        per_request: as in `CandidateTable`; nodes are means.
        numbers, places: likewise.
        any_node: [num_candidates, num_kinds], chance that a request of a kind holds any node.
        levels: [num_kinds, num_candidates, DEEPEST], rows of every draft level, the root's first.
        can_share: False: a step never gives the nodes to some of the requests only.
    """

    bounds: TreeBounds
    per_request: FloatArray  # [4, num_candidates, num_kinds]
    any_node: FloatArray
    levels: FloatArray
    numbers: IntArray  # [num_candidates]
    places: dict[tuple[int, int], int]
    can_share: bool = False
    _known: dict[int, Candidate] = field(default_factory=dict)

    @classmethod
    def of(
        cls, figures: Sequence[tuple[CutFigures, ...] | None], hit_rates: Sequence[float], bounds: TreeBounds
    ) -> CutTable:
        """Candidates for the figures of each class; None for classes without requests.

        A request whose drafts fare worse than usual holds nodes as long as they come true as often, in the mean, as the
        last nodes of the others.

        Args:
            hit_rates: what share of the draft's confidence comes true, by class.
        """
        num, num_skills = len(CUTS) + 1, len(SKILLS)
        parts = np.zeros((4, num, NUM_KINDS))
        parts[2] = 1.0
        any_node, levels = np.zeros((num, NUM_KINDS)), np.zeros((NUM_KINDS, num, DEEPEST))
        thresholds = np.tile(THRESHOLDS, len(WIDTHS) * len(DEPTHS))[:, None]  # [num_cuts, 1]
        for request_class in RequestClass:
            known = figures[request_class]
            if known is None:
                continue
            columns = slice(request_class * num_skills, (request_class + 1) * num_skills)
            nodes = np.concatenate([_within_depths(each.by_depth[NODES][..., None]) for each in known])
            gain = np.concatenate([_within_depths(_with_skills(each, known[0])) for each in known])
            is_held = (gain >= nodes * (hit_rates[request_class] * thresholds)).astype(np.float64)
            is_held[:, USUAL_SKILL:] = 1.0
            parts[0, 1:, columns] = nodes * is_held
            parts[1, 1:, columns] = is_held
            parts[2, 1:, columns] += gain * is_held
            held = np.concatenate([np.tile(each.held, len(DEPTHS)) for each in known])
            any_node[1:, columns] = held[:, None] * is_held
            levels[columns, 1:] = np.concatenate([_level_rows(each) for each in known]) * is_held.T[:, :, None]
        parts[3] = 1.0 / parts[2]
        places = {PLAIN_KEY: 0, **PLACES_OF_KEYS}
        return cls(bounds, parts, any_node, levels, np.arange(num), places)

    def spread(self, nodes: FloatArray, trees: FloatArray) -> FloatArray:
        """Standard deviation of a step's nodes, as a share of their mean.

        The first node of a tree is there or not; those behind it depend on it, and on each other where a tree is wide.

        Args:
            nodes, trees: mean nodes and number of trees of a step, [num_candidates].
        """
        num_trees = np.maximum(trees, 1.0)
        variance = OWN_VARIANCES + np.maximum(0.0, num_trees / np.maximum(nodes, 1e-9) - 1.0)
        spread: FloatArray = np.minimum(MOST_SPREAD, np.sqrt(variance / num_trees))
        return spread

    @property
    def sizes(self) -> FloatArray:
        """Mean nodes by candidate and kind."""
        sizes: FloatArray = self.per_request[0]
        return sizes

    def level_rows(self, kinds: FloatArray) -> FloatArray:
        """Rows of every draft level with so many requests of each kind: [num_candidates, DEEPEST]."""
        rows: FloatArray = np.tensordot(kinds, self.levels, axes=1)
        return rows

    def tree_share(self, kinds: FloatArray) -> FloatArray:
        """Chance that any request of a step holds a node: [num_candidates]."""
        none: FloatArray = ((1.0 - self.any_node) ** kinds).prod(axis=1)
        return 1.0 - none

    @property
    def deep_places(self) -> tuple[int, ...]:
        """Of trees that are wide and reach a depth of DEEP."""
        return DEEP_PLACES

    def detours(self, best: int, score: FloatArray, nodes: FloatArray) -> list[int]:
        """The next deeper and shallower trees, those cut at the next thresholds, and the other width."""
        return [place for place in PLACES_AROUND[best - 1] if score[place] > -np.inf]

    def candidate(self, place: int) -> Candidate:
        """One of them."""
        if place == 0:
            return PLAIN
        known = self._known.get(place)
        if known is None:
            cut = CUTS[place - 1]
            shape = cut.shape(self.bounds)
            is_held = self.per_request[1, place] > 0.0
            known = self._known[place] = Candidate(
                shape,
                tuple((is_held * shape.num_draft_tokens).tolist()),
                tuple(self.per_request[2, place].tolist()),
                cut.key,
                tuple(self.sizes[place].tolist()),
                tuple(self.levels[:, place].max(axis=0).tolist()),
            )
        return known


def _within_depths(by_depth: FloatArray) -> FloatArray:
    """Sums over trees that end at each of DEPTHS, threshold by threshold: [NUM_OF_WIDTH, num_columns].

    Args:
        by_depth: of every depth from 1, [num_thresholds, DEEPEST, num_columns].
    """
    sums = by_depth.cumsum(axis=1)[:, [depth - 1 for depth in DEPTHS]]
    within: FloatArray = sums.transpose(1, 0, 2).reshape(NUM_OF_WIDTH, -1)
    return within


def _with_skills(known: CutFigures, chains: CutFigures) -> FloatArray:
    """Accepted tokens of every depth for requests of every skill: [num_thresholds, DEEPEST, num_skills].

    A skill multiplies the odds that a tree with nodes of a depth gets one of them accepted. So where the draft is sure,
    requests that it drafts well gain little more than others.

    Worked example, a depth that .8 of the trees reach, with .6 tokens accepted there: the chance is .75 and its odds
    are 3; for a request of skill 3 they are 9, which is a chance of .9 and .72 tokens.

    Args:
        chains: their nodes say how many trees reach a depth.
    """
    gain = known.by_depth[GAIN][..., None]
    reached = np.maximum(chains.by_depth[NODES][..., None], gain)
    chance = gain / np.maximum(reached, 1e-9)
    gained: FloatArray = gain * SKILL_ODDS / (1.0 - chance + chance * SKILL_ODDS)
    return gained


def _level_rows(known: CutFigures) -> FloatArray:
    """Rows of every draft level of one tree, the root's first: [NUM_OF_WIDTH, DEEPEST].

    Worked example, depth 2: the root's level, and that of the nodes at depth 1; nodes at depth 2 do not run.
    """
    nodes = known.by_depth[NODES]  # [num_thresholds, DEEPEST]
    rows = np.concatenate((np.ones((len(nodes), 1)), nodes[:, :-1]), axis=1)
    return np.concatenate([rows * (np.arange(DEEPEST) < depth) for depth in DEPTHS])
