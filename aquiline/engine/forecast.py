"""What one step would be like under every candidate: all of them are reckoned at once."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from aquiline.config import Objective
from aquiline.engine.acceptance import SKILLS
from aquiline.engine.acceptance_prior import RequestClass
from aquiline.engine.cost_model import StepCosts
from aquiline.engine.cut_candidates import CutTable
from aquiline.engine.plan import StepLoad
from aquiline.engine.planner_candidates import Candidate, CandidateTable
from aquiline.engine.planner_hindsight import AS_FORETOLD, Correction

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Choices = CandidateTable | CutTable

# Trees may end below so many of the next stairs of the cost curve.
STAIRS_AHEAD = 2
NO_ROOM_LIMIT = 0
# Three points that have the mean and the spread of what they stand for: distances from the mean in spreads, weights.
SPREAD_DISTANCES = np.array([-1.2, 0.0, 1.2])
SPREAD_WEIGHTS = np.array([0.35, 0.3, 0.35])
# More rows than this no step has.
MOST_COUNTED_ROWS = 2**14
FIRST_GUIDED = RequestClass.GUIDED * len(SKILLS)


@dataclass(frozen=True, slots=True)
class Situation:
    """What all candidates of one step have in common.

    Attributes:
        kinds: how many of the growing requests are of each kind.
        other_seconds: of a forward over other rows alone, prefill and looked-up ones.
        entry_seconds: what the draft has to catch up with before trees can grow, per step of the payback time.
        max_draft_tokens: most nodes that all trees of the step may have together.
        correction: what hindsight says of forecasts at this load.
    """

    load: StepLoad
    kinds: tuple[int, ...]
    other_seconds: float
    entry_seconds: float
    max_draft_tokens: int
    correction: Correction = AS_FORETOLD


@dataclass(frozen=True, slots=True)
class Forecast:
    """What one candidate would do in a step.

    Attributes:
        num_draft_tokens: of all requests together.
        expected: committed tokens of all requests.
        wait: step time per committed token, averaged over the decoding requests.
        score: larger is better, under the objective.
        room: most nodes of all requests together, the first of whom hold what the candidate gives them and the others
            none; 0: all hold it.
        correction: that is in these figures.
    """

    candidate: Candidate
    num_draft_tokens: int
    expected: float
    seconds: float
    wait: float
    score: float
    room: int = NO_ROOM_LIMIT
    correction: Correction = AS_FORETOLD

    @property
    def key(self) -> tuple[int, int, int]:
        """Names the choice across changes of shapes; only that some requests go without, not how many."""
        return (*self.candidate.key, int(self.room != NO_ROOM_LIMIT))


@dataclass(frozen=True)
class Outlook:
    """All candidates of one step, and shares of them; the first is plain decoding.

    Attributes:
        place: of the candidate in the table.
        room: as in `Forecast`.
    """

    table: Choices
    place: IntArray  # [num_choices]
    room: IntArray  # [num_choices]
    num_draft_tokens: FloatArray  # [num_choices]
    expected: FloatArray  # [num_choices]
    seconds: FloatArray  # [num_choices]
    wait: FloatArray  # [num_choices]
    score: FloatArray  # [num_choices]
    correction: Correction = AS_FORETOLD
    _known: dict[int, Forecast] = field(default_factory=dict)

    def forecast(self, index: int) -> Forecast:
        """One of them."""
        known = self._known.get(index)
        if known is None:
            known = self._known[index] = Forecast(
                self.table.candidate(int(self.place[index])),
                round(float(self.num_draft_tokens[index])),
                float(self.expected[index]),
                float(self.seconds[index]),
                float(self.wait[index]),
                float(self.score[index]),
                int(self.room[index]),
                self.correction,
            )
        return known

    def detours(self, best: int) -> list[int]:
        """Plain decoding, and what steps may try beside the best tree to learn of others."""
        return [0, *self.table.detours(best, self.score, self.num_draft_tokens)]

    @property
    def best_tree(self) -> int | None:
        """The best choice but plain decoding; None where nothing can grow."""
        if len(self.score) < 2:
            return None
        best = 1 + int(self.score[1:].argmax())
        return best if self.score[best] > -np.inf else None

    @property
    def best_deep_tree(self) -> int | None:
        """The best choice among deep trees that end where the draft has no confidence; None: there is none."""
        places = [place for place in self.table.deep_places if self.score[place] > -np.inf]
        return max(places, key=lambda place: float(self.score[place]), default=None)

    def find(self, key: tuple[int, int, int]) -> int | None:
        """Which one has a key, the best of them if several have; None: none."""
        place = self.table.places.get(key[:2])
        if place is None:
            return None
        if key[2] == NO_ROOM_LIMIT and place < len(self.table.numbers) and self.score[place] > -np.inf:
            return place
        found = np.flatnonzero((self.place == place) & ((self.room != NO_ROOM_LIMIT) == bool(key[2])))
        found = found[self.score[found] > -np.inf]
        return int(found[self.score[found].argmax()]) if len(found) else None


def outlook(table: Choices, situation: Situation, costs: StepCosts, objective: Objective) -> Outlook:
    """Reckon all candidates.

    Where trees of all requests would just reach beyond a stair of the cost curve, or beyond the rows of the step, there
    is a second choice: only so many requests hold their nodes as stay below it.

    Worked example, 12 requests that would hold 1 node each and a stair behind 16 rows: with room for 4 nodes a third of
    the requests hold theirs, and the step commits a third of what the nodes would add.
    """
    load, kinds = situation.load, np.array(situation.kinds, dtype=np.float64)
    num_roots, num_idle = load.num_roots, load.num_roots - sum(situation.kinds)
    nodes, trees, expected, waits = table.per_request @ kinds
    expected += num_idle
    waits += num_idle
    level_rows, tree_share = table.level_rows(kinds), table.tree_share(kinds)
    num_guided = sum(situation.kinds[FIRST_GUIDED:])
    masked = num_guided + table.sizes[:, FIRST_GUIDED:] @ kinds[FIRST_GUIDED:] if num_guided else None
    place, room = table.numbers, np.zeros_like(table.numbers)
    for limit in _rooms(situation, costs) if table.can_share else ():
        over = np.flatnonzero(nodes[: len(table.numbers)] > limit)
        if not len(over):
            continue
        share = limit / nodes[over]
        nodes = np.append(nodes, np.full(len(over), float(limit)))
        trees = np.append(trees, np.ceil(trees[over] * share))
        expected = np.append(expected, num_roots + (expected[over] - num_roots) * share)
        waits = np.append(waits, num_roots + (waits[over] - num_roots) * share)
        level_rows = np.concatenate((level_rows, level_rows[over] * (trees[-len(over) :] / trees[over])[:, None]))
        tree_share = np.append(tree_share, tree_share[over])
        place, room = np.append(place, over), np.append(room, np.full(len(over), limit))
        if masked is not None:
            masked = np.append(masked, num_guided + (masked[over] - num_guided) * share)
    new_rows = np.rint(expected + (trees - num_roots))
    seconds = _seconds(load, nodes, tree_share, table.spread(nodes, trees), costs)
    seconds += costs.draft_seconds_of(new_rows, level_rows)
    if masked is not None:
        seconds += costs.mask_seconds * masked
    correction = situation.correction
    if correction is not AS_FORETOLD:
        grows = nodes > 0.0
        seconds = seconds * np.where(grows, correction.tree_seconds, correction.plain_seconds)
        corrected = num_roots + np.minimum(nodes, (expected - num_roots) * correction.tree_gain)
        waits, expected = waits * (expected / corrected), corrected
    entered = seconds
    if situation.entry_seconds:
        entered = seconds + situation.entry_seconds * (nodes > 0.0)
    wait = entered * waits / max(1, num_roots)
    rate = expected / np.maximum(entered - situation.other_seconds, 1e-9)
    score = scores(objective, rate, wait)
    is_possible = (nodes > 0.0) & (nodes <= situation.max_draft_tokens)
    is_possible[0] = True
    score = np.where(is_possible, score, -np.inf)
    return Outlook(table, place, room, nodes, expected, seconds, wait, score, correction)


def _seconds(
    load: StepLoad, nodes: FloatArray, tree_share: FloatArray, spread: FloatArray | None, costs: StepCosts
) -> FloatArray:
    """Of forwards and of everything but draft and grammar.

    Trees that end where the draft has no confidence may have no node at all, and such a step is a plain one; and their
    nodes are few in one step and many in the next, which costs more than the mean number wherever costs rise faster and
    faster.

    Args:
        spread: standard deviation of a step's nodes, as a share of their mean; None: their number is certain.
    """
    if spread is None:
        return _tree_seconds(load, nodes, costs)
    held = nodes / np.maximum(tree_share, 1e-9)
    factors = np.maximum(0.0, 1.0 + np.outer(SPREAD_DISTANCES, spread))  # [num_points, num_choices]
    # All in one call, behind a step without any node.
    seconds = _tree_seconds(load, np.concatenate(([0.0], (factors * held).ravel())), costs)
    mixed: FloatArray = SPREAD_WEIGHTS @ seconds[1:].reshape(factors.shape)
    mixed = mixed * tree_share + seconds[0] * (1.0 - tree_share)
    return mixed


def _tree_seconds(load: StepLoad, nodes: FloatArray, costs: StepCosts) -> FloatArray:
    row_context = load.context + nodes * (load.context // max(1, load.num_roots))
    seconds = costs.verify_seconds_of(nodes + (load.num_roots + load.num_other_rows), load.context, row_context)
    return seconds + costs.other_seconds_of(nodes + load.num_roots, load.num_roots)


def _rooms(situation: Situation, costs: StepCosts) -> list[int]:
    """Numbers of nodes at which trees of a step may end although some requests then go without."""
    load = situation.load
    taken = load.num_roots + load.num_other_rows
    rooms = (
        [stair - taken for stair in costs.stairs if stair > taken][:STAIRS_AHEAD] if sum(situation.kinds) > 1 else []
    )
    limit = situation.max_draft_tokens
    rooms = [room for room in rooms if room < limit]
    # Where the step has no rows for more, that is the last end.
    return [*rooms, limit] if 0 < limit < MOST_COUNTED_ROWS else rooms


def scores(objective: Objective, tokens_per_second: FloatArray, seconds_per_token: FloatArray) -> FloatArray:
    """How good steps would be; larger is better, and what breaks an `slo:` is below 0."""
    if objective.text == "latency":
        return 1.0 / seconds_per_token
    if objective.limit_seconds is None:
        return tokens_per_second
    return np.where(seconds_per_token > objective.limit_seconds, -seconds_per_token, tokens_per_second)
