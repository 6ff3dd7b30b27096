"""The choices of a step whose trees end where the draft has no confidence: plain decoding, and every threshold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from aquiline.engine.acceptance import NUM_KINDS, SKILLS, USUAL_SKILL
from aquiline.engine.acceptance_prior import RequestClass
from aquiline.engine.cut_tally import DEEPEST, FIRST_LEVEL, GAIN, HELD, MOST_NODES, NODES, THRESHOLDS, WIDEST
from aquiline.engine.planner_candidates import PLAIN, PLAIN_KEY, Candidate
from aquiline.engine.tree_families import TreeBounds
from aquiline.speculation import DynamicTree

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# Of the children of a request whose drafts fare better or worse than usual, so many times as many come true: what
# multiplies odds by a skill multiplies an even chance by this.
SKILL_FACTORS = np.array([2.0 * skill / (1.0 + skill) for skill in SKILLS])


def cut_shape(place: int, bounds: TreeBounds) -> DynamicTree:
    """The tree that is cut at a threshold, by the threshold's number."""
    topk = min(WIDEST, bounds.max_children)
    steps = max(1, min(DEEPEST, bounds.num_scratch_places // topk))
    num_nodes = min(MOST_NODES, bounds.max_draft_tokens, topk + (steps - 1) * topk**2)
    return DynamicTree(steps, topk, num_nodes, THRESHOLDS[place])


@dataclass(frozen=True)
class CutTable:
    """Plain decoding first, then the thresholds in rising order.

    Attributes:
        per_request: as in `CandidateTable`; nodes are means.
        numbers, places: likewise.
        any_node: [num_candidates, num_kinds], chance that a request of a kind holds any node.
        can_share: False: a step never gives the nodes to some of the requests only.
        spread: as there.
    """

    bounds: TreeBounds
    per_request: FloatArray  # [4, num_candidates, num_kinds]
    any_node: FloatArray  # [num_candidates, num_kinds]
    levels: FloatArray  # [num_candidates, num_kinds, DEEPEST], rows of every draft level, the root's first
    numbers: IntArray  # [num_candidates]
    places: dict[tuple[int, int], int]
    can_share: bool = False
    spread: float = 0.8
    _known: dict[int, Candidate] = field(default_factory=dict)

    @classmethod
    def of(
        cls, figures: Sequence[FloatArray | None], hit_rates: Sequence[float], bounds: TreeBounds
    ) -> CutTable:
        """Candidates for the figures of each class; None for classes without requests.

        A request whose drafts fare worse than usual holds nodes as long as they come true as often, in the mean, as the
        last nodes of the others.

        Args:
            hit_rates: what share of the draft's confidence comes true, by class.
        """
        num = len(THRESHOLDS) + 1
        sizes, trees = np.zeros((num, NUM_KINDS)), np.zeros((num, NUM_KINDS))
        gains, any_node = np.ones((num, NUM_KINDS)), np.zeros((num, NUM_KINDS))
        levels = np.zeros((num, NUM_KINDS, DEEPEST))
        for request_class in RequestClass:
            known = figures[request_class]
            if known is None:
                continue
            columns = slice(request_class * len(SKILLS), (request_class + 1) * len(SKILLS))
            gain = known[:, GAIN, None] * SKILL_FACTORS  # [num_thresholds, num_skills]
            last = hit_rates[request_class] * np.array(THRESHOLDS)[:, None]
            is_held = (gain >= known[:, NODES, None] * last).astype(np.float64)
            is_held[:, USUAL_SKILL:] = 1.0
            sizes[1:, columns] = known[:, NODES, None] * is_held
            trees[1:, columns] = is_held
            gains[1:, columns] = 1.0 + gain * is_held
            any_node[1:, columns] = known[:, HELD, None] * is_held
            levels[1:, columns, 0] = is_held
            levels[1:, columns, 1:] = known[:, None, FIRST_LEVEL:] * is_held[:, :, None]
        places = {PLAIN_KEY: 0, **{(0, place): place + 1 for place in range(len(THRESHOLDS))}}
        stacked = np.stack((sizes, trees, gains, 1.0 / gains))
        return cls(bounds, stacked, any_node, levels, np.arange(num), places)

    @property
    def sizes(self) -> FloatArray:
        """Mean nodes by candidate and kind."""
        sizes: FloatArray = self.per_request[0]
        return sizes

    def level_rows(self, kinds: FloatArray) -> FloatArray:
        """Rows of every draft level with so many requests of each kind: [num_candidates, DEEPEST]."""
        rows: FloatArray = np.einsum("ckd,k->cd", self.levels, kinds)
        return rows

    def tree_share(self, kinds: FloatArray) -> FloatArray:
        """Chance that any request of a step holds a node: [num_candidates]."""
        none: FloatArray = ((1.0 - self.any_node) ** kinds).prod(axis=1)
        return 1.0 - none

    def candidate(self, place: int) -> Candidate:
        """One of them."""
        if place == 0:
            return PLAIN
        known = self._known.get(place)
        if known is None:
            shape = cut_shape(place - 1, self.bounds)
            is_held = self.per_request[1, place] > 0.0
            known = self._known[place] = Candidate(
                shape,
                tuple((is_held * shape.num_draft_tokens).tolist()),
                tuple(self.per_request[2, place].tolist()),
                (0, place - 1),
                tuple(self.sizes[place].tolist()),
                tuple(self.levels[place].max(axis=0).tolist()),
            )
        return known
