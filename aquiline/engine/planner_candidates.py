"""What every candidate shape would bring to requests of every kind, as arrays that a step reckons with all at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from aquiline.engine.acceptance import NUM_KINDS, SKILLS, USUAL_SKILL
from aquiline.engine.acceptance_prior import RequestClass
from aquiline.engine.tree_families import Rates, TreeFamilies
from aquiline.speculation import NO_TREE, TreeShape

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# A node that is committed less often than this is no candidate at any price.
LEAST_SURVIVAL = 0.002
ROUNDING = 1e-9
PLAIN_KEY = (-1, 0)
# Detours go to trees with more than so many times the nodes, or fewer.
DETOUR_FACTOR = 1.3


@dataclass(frozen=True)
class Candidate:
    """One shape with what it would bring, for requests of every kind.

    Requests that draft badly hold fewer nodes of the shape: a node is theirs as long as its survival is no less than
    that of the shape's last node for a usual request of the step's leading class. So one threshold divides the nodes
    of a step. Where a node of some class costs more, its threshold is so much higher.

    Attributes:
        shape: that of the request that holds most; the others hold its first nodes.
        num_draft_tokens: by kind.
        expected: committed tokens of a step, the bonus token included, by kind.
        key: names the candidate across changes of its shape: its family and its size there, or the numbers of its width
            and depth, in one, and of its threshold.
        mean_nodes: by kind, of trees that end where the draft has no confidence; empty: all nodes are there.
        mean_level_rows: likewise, rows of every draft level, the root's first.
    """

    shape: TreeShape
    num_draft_tokens: tuple[int, ...]
    expected: tuple[float, ...]
    key: tuple[int, int] = PLAIN_KEY
    mean_nodes: tuple[float, ...] = ()
    mean_level_rows: tuple[float, ...] = ()

    @property
    def is_plain(self) -> bool:
        return self.key == PLAIN_KEY


PLAIN = Candidate(NO_TREE, (0,) * NUM_KINDS, (1.0,) * NUM_KINDS)


@dataclass(frozen=True)
class CandidateTable:
    """All candidates for steps in which requests of one class lead. The first is plain decoding.

    Attributes:
        family: of every candidate; that of plain decoding is 0, with no nodes.
        per_request: what one request of each kind adds to a step: nodes, trees (1 if it holds any node), committed
            tokens, and steps per committed token.
        numbers: of the candidates, in order.
        places: number of a candidate by its key.
        can_share: True: a step may give the nodes to some of the requests only.
    """

    families: TreeFamilies
    family: IntArray  # [num_candidates]
    per_request: FloatArray  # [4, num_candidates, num_kinds]
    numbers: IntArray  # [num_candidates]
    places: dict[tuple[int, int], int]
    can_share: bool = True
    _known: dict[int, Candidate] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        families: TreeFamilies,
        rates: Sequence[Rates | None],
        leading: RequestClass,
        dearness: Sequence[float] = (1.0,) * len(RequestClass),
    ) -> CandidateTable:
        """Candidates for the rates of each class; None for classes without requests.

        Args:
            dearness: what a node costs, by class, as a multiple of what it costs without grammar.
        """
        family, size = families.family, families.size
        own_rates = rates[leading]
        assert own_rates is not None, "the leading class has no rates"
        usual = families.survivals(own_rates)[USUAL_SKILL]
        thresholds = usual[family, size] * (1.0 - ROUNDING)
        is_possible = thresholds >= LEAST_SURVIVAL
        num = len(family) + 1
        sizes, gains = np.zeros((num, NUM_KINDS)), np.ones((num, NUM_KINDS))
        for request_class in RequestClass:
            class_rates = rates[request_class]
            if class_rates is None:
                continue
            survivals = families.survivals(class_rates)
            expected = survivals.cumsum(axis=-1)
            falling = np.minimum.accumulate(survivals, axis=-1)
            limits = thresholds * (dearness[request_class] / dearness[leading])
            held = (falling[:, family, :] >= limits[:, None]).sum(axis=-1) - 1
            held = np.maximum(held, 0) * is_possible
            columns = slice(request_class * len(SKILLS), (request_class + 1) * len(SKILLS))
            sizes[1:, columns] = held.T
            gains[1:, columns] = expected[np.arange(len(SKILLS))[:, None], family, held].T
        places = {(int(f), int(n)): place for place, (f, n) in enumerate(zip(family, size, strict=True), 1)}
        places[PLAIN_KEY] = 0
        return cls(
            families,
            np.concatenate(([0], family)),
            np.stack((sizes, sizes > 0.0, gains, 1.0 / gains)),
            np.arange(num),
            places,
        )

    @property
    def sizes(self) -> FloatArray:
        """Nodes by candidate and kind."""
        sizes: FloatArray = self.per_request[0]
        return sizes

    def level_rows(self, kinds: FloatArray) -> FloatArray:
        """Rows of every draft level with so many requests of each kind: [num_candidates, max_depth]."""
        sizes, trees = self.per_request[:2]
        most = sizes[:, kinds > 0.0].max(axis=1, initial=0.0).astype(np.int64)
        rows: FloatArray = self.families.level_widths[self.family, most] * (trees @ kinds)[:, None]
        return rows

    def spread(self, nodes: FloatArray, trees: FloatArray) -> FloatArray | None:
        """Trees of fixed shapes hold as many nodes as they should."""
        return None

    def tree_share(self, kinds: FloatArray) -> FloatArray:
        """Chance that any request of a step holds a node: [num_candidates]."""
        share: FloatArray = (self.sizes @ kinds > 0.0).astype(np.float64)
        return share

    @property
    def deep_places(self) -> tuple[int, ...]:
        """Of trees that end where the draft has no confidence: there are none here."""
        return ()

    def detours(self, best: int, score: FloatArray, nodes: FloatArray) -> list[int]:
        """The best tree with far more nodes and the one with far fewer than the best of all, if there are any."""
        possible, own = score > -np.inf, float(nodes[best])
        found = []
        for others in (
            possible & (nodes > DETOUR_FACTOR * own) & (nodes <= DETOUR_FACTOR**2 * own),
            possible & (nodes < own / DETOUR_FACTOR) & (nodes > 0.0),
        ):
            if others.any():
                places = others.nonzero()[0]
                found.append(int(places[score[places].argmax()]))
        return found

    def candidate(self, place: int) -> Candidate:
        """One of them."""
        if place == 0:
            return PLAIN
        known = self._known.get(place)
        if known is None:
            sizes = tuple(map(int, self.sizes[place].tolist()))
            shape = self.families.shapes[self.family[place]].truncated(max(sizes))
            key = (int(self.family[place]), int(self.families.size[place - 1]))
            known = self._known[place] = Candidate(shape, sizes, tuple(self.per_request[2, place].tolist()), key)
        return known


def counted(kinds: Sequence[int]) -> tuple[int, ...]:
    """How many requests are of each kind."""
    counts = [0] * NUM_KINDS
    for kind in kinds:
        counts[kind] += 1
    return tuple(counts)


def leading_class(kinds: Sequence[int]) -> RequestClass:
    """The class that most requests belong to."""
    counts = [sum(kinds[each * len(SKILLS) : (each + 1) * len(SKILLS)]) for each in RequestClass]
    return RequestClass(counts.index(max(counts)))
