"""How likely draft tokens are to be accepted: learnt from every step, shared by all requests, bent to each.

The rate of a child is the chance that the target draws it where its parent was accepted. Children of one node exclude
each other, so their rates add up to at most 1. The survival of a node is the product of the rates on its path: the
chance that it is committed.

Worked example, rates .6 (rank 0) and .2 (rank 1) at depth 1, .5 (rank 0) at depth 2:

    node        0    1    00
    survival   .6   .2   .3       expected committed tokens of this tree: 1 + .6 + .2 + .3 = 2.1, with the bonus token
"""

from __future__ import annotations

import itertools
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from aquiline.errors import InvalidParameterError
from aquiline.speculation import StaticTree

MAX_LEARNT_DEPTH = 8
MAX_LEARNT_RANK = 8
# Trials of the shared estimate fade with this half-life, so that it follows the traffic.
FADING = 0.5 ** (1 / 800)
PRIOR_TRIALS = 12.0
# A request's own trials fade within an answer; its prior weighs as many trials as this.
OWN_FADING = 0.97
IDLE_FADING = 0.99  # per step without a tree
OWN_PRIOR_TRIALS = 4.0
MOST_CERTAIN = 0.98
# Deeper nodes are expected to fare as much better or worse than foretold as those above them, within bounds.
MOST_CHANGE = 2.0
DEPTH_FACTOR = 0.95
# Requests are sorted by how much better or worse than usual their drafts fare, as a factor of the odds.
SKILLS = (0.07, 0.3, 1.0, 3.0)
USUAL_SKILL = SKILLS.index(1.0)


@dataclass(frozen=True)
class AcceptancePrior:
    """What is expected of a draft before anything was seen of it.

    Attributes:
        depth_rank: rate of each rank, best first, for every depth from 1; deeper ones fall by DEPTH_FACTOR each.
    """

    depth_rank: tuple[tuple[float, ...], ...] = ((0.55, 0.12, 0.06, 0.04, 0.03, 0.02, 0.015, 0.01),)

    def __post_init__(self) -> None:
        is_sound = bool(self.depth_rank) and all(
            row and all(0.0 <= rate <= 1.0 for rate in row) and sum(row) <= 1.0 + 1e-6 for row in self.depth_rank
        )
        if not is_sound:
            raise InvalidParameterError(
                f"the acceptance prior is {self.depth_rank}; it must hold rates by depth and rank, which lie between 0"
                " and 1 and add up to at most 1 at each depth"
            )

    def rows(self) -> list[list[float]]:
        """Rates of every learnt depth and rank."""
        found: list[list[float]] = []
        for depth in range(MAX_LEARNT_DEPTH):
            if depth < len(self.depth_rank):
                given = self.depth_rank[depth][:MAX_LEARNT_RANK]
                found.append([*given, *[0.0] * (MAX_LEARNT_RANK - len(given))])
            else:
                found.append([rate * DEPTH_FACTOR for rate in found[-1]])
        return found


@dataclass(slots=True)
class _OwnTrials:
    """Of one request: trials, hits, and the hits that the shared estimate foretold."""

    trials: float = 0.0
    hits: float = 0.0
    foretold: float = 0.0
    skill: int = USUAL_SKILL


class AcceptanceEstimator:
    """Rates by depth and rank, and the skill of each request.

    Deeper rates lean on those above them: what was seen at depth 1 says much about a depth that was never tried.

    Attributes:
        num_observed: accepted paths that the shared estimate has seen.
        rates: rate of every depth (row 0 is depth 1) and rank, as of the last `refresh`.
    """

    def __init__(self, prior: AcceptancePrior | None = None) -> None:
        self._prior = (prior or AcceptancePrior()).rows()
        self._trials = [[0.0] * MAX_LEARNT_RANK for _ in range(MAX_LEARNT_DEPTH)]
        self._hits = [[0.0] * MAX_LEARNT_RANK for _ in range(MAX_LEARNT_DEPTH)]
        self._own: dict[str, _OwnTrials] = {}
        self.num_observed = 0
        self.rates: list[list[float]] = []
        self.refresh()

    @property
    def num_trials(self) -> float:
        """Weight of what was seen of first children of roots."""
        return self._trials[0][0]

    def rate(self, depth: int, rank: int) -> float:
        """Rate of one child at `depth` (from 1); depths beyond what is learnt continue the last, ranks have none."""
        return self.rates[min(depth, MAX_LEARNT_DEPTH) - 1][rank] if rank < MAX_LEARNT_RANK else 0.0

    def observe(
        self, request_id: str, shape: StaticTree, num_draft_tokens: int, accepted: Sequence[int], is_usual: bool = True
    ) -> None:
        """Learn from the path that one tree got accepted; `refresh` makes it count.

        Args:
            num_draft_tokens: the request held the first so many nodes of `shape`.
            accepted: accepted nodes from the root's child down.
            is_usual: False for a request with rules that the draft cannot see: only its own skill learns.
        """
        own = self._own.get(request_id)
        if own is None:
            own = self._own[request_id] = _OwnTrials()
        self.num_observed += is_usual
        num_children = shape.truncated(num_draft_tokens).num_children
        parent = 0
        for depth in range(min(len(accepted) + 1, MAX_LEARNT_DEPTH)):
            num_ranks = num_children[parent]
            if not num_ranks:
                break
            is_hit = depth < len(accepted)
            own.trials = own.trials * OWN_FADING + 1.0
            own.hits = own.hits * OWN_FADING + is_hit
            own.foretold = own.foretold * OWN_FADING + sum(self.rates[depth][:num_ranks])
            if is_usual:
                self._count(depth, num_ranks, shape.ranks[accepted[depth]] if is_hit else -1)
            if not is_hit:
                break
            parent = accepted[depth]
        own.skill = _skill_of(own)

    def _count(self, depth: int, num_ranks: int, hit: int) -> None:
        trials, hits = self._trials[depth], self._hits[depth]
        for rank in range(min(num_ranks, MAX_LEARNT_RANK)):
            trials[rank] = trials[rank] * FADING + 1.0
            hits[rank] = hits[rank] * FADING + (rank == hit)

    def refresh(self) -> None:
        """Bring `rates` up to what was observed."""
        self.rates, change = [], 1.0
        for trials, hits, expected in zip(self._trials, self._hits, self._prior, strict=True):
            first = _blended(hits[0], trials[0], min(expected[0] * change, MOST_CERTAIN))
            # How the other ranks fare was seen less often; they are taken to rise and fall with the first.
            change = min(first / expected[0], MOST_CHANGE) if expected[0] else 1.0
            row, left = [first], 1.0 - first
            for rank in range(1, MAX_LEARNT_RANK):
                row.append(min(_blended(hits[rank], trials[rank], min(expected[rank] * change, left)), left))
                left -= row[-1]
            self.rates.append(row)

    def skill(self, request_id: str) -> int:
        """Which of SKILLS describes a request best; the usual one where little is known of it."""
        own = self._own.get(request_id)
        return USUAL_SKILL if own is None else own.skill

    def fade(self, request_id: str) -> None:
        """Let a request that grows no tree come back to the usual skill, little by little."""
        own = self._own.get(request_id)
        if own is not None:
            own.trials *= IDLE_FADING
            own.hits *= IDLE_FADING
            own.foretold *= IDLE_FADING
            own.skill = _skill_of(own)

    def forget(self, request_id: str) -> None:
        """Drop what is known of a request that has ended."""
        self._own.pop(request_id, None)


def with_skill(rates: Sequence[float], skill: float) -> list[float]:
    """Rates of the children of one node for a request whose odds of any of them being accepted are `skill` times those.

    Worked example: rates .4 and .1 have odds 1 together; skill 2 makes that 2, so 2/3 in sum: .533 and .133.
    """
    total = sum(rates)
    if total <= 0.0 or skill == 1.0:
        return [*rates]
    certain = min(total, MOST_CERTAIN)
    bent = certain * skill / (1.0 - certain + certain * skill)
    return [rate * bent / total for rate in rates]


def _skill_of(own: _OwnTrials) -> int:
    if own.trials < 2.0:
        return USUAL_SKILL
    foretold = own.foretold / own.trials
    seen = (own.hits + OWN_PRIOR_TRIALS * foretold) / (own.trials + OWN_PRIOR_TRIALS)
    odds = seen * (1.0 - foretold) / max(1e-6, (1.0 - seen) * foretold)
    return bisect(_SKILL_BORDERS, odds)


def _blended(hits: float, trials: float, expected: float) -> float:
    return (hits + PRIOR_TRIALS * expected) / (trials + PRIOR_TRIALS)


# Halfway, as factors go, between neighbours.
_SKILL_BORDERS = tuple((low * high) ** 0.5 for low, high in itertools.pairwise(SKILLS))
