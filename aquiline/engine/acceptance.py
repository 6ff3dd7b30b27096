"""How likely draft tokens are to be accepted: learnt from every step, shared by the requests of a class, bent to each.

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
from dataclasses import dataclass, field

from aquiline.engine.acceptance_prior import (
    MAX_LEARNT_DEPTH,
    MAX_LEARNT_RANK,
    MOST_CERTAIN,
    AcceptancePrior,
    AcceptancePriors,
    RequestClass,
    class_of,
)
from aquiline.engine.cut_tally import GREEDY_SHARE, SAMPLED_SHARE, CutTally
from aquiline.engine.cut_tree import CutTree, CutTrials
from aquiline.request import Request
from aquiline.speculation import DynamicTree, StaticTree

# Trials of the shared estimate fade with this half-life, so that it follows the traffic.
FADING = 0.5 ** (1 / 800)
PRIOR_TRIALS = 12.0
# A request's own trials fade within an answer; its prior weighs as many trials as this.
OWN_FADING = 0.97
IDLE_FADING = 0.995  # per step without a tree
OWN_PRIOR_TRIALS = 8.0
TRIALS_TO_JUDGE_ONE = 4.0
SKILL_MARGIN = 1.2
# Deeper nodes are expected to fare as much better or worse than foretold as those above them, within bounds.
MOST_CHANGE = 2.0
# Requests are sorted by how much better or worse than usual their drafts fare, as a factor of the odds.
SKILLS = (0.07, 0.3, 1.0, 3.0)
USUAL_SKILL = SKILLS.index(1.0)
# A kind is a class and a skill; kinds are numbered class by class.
NUM_KINDS = len(RequestClass) * len(SKILLS)


@dataclass(slots=True)
class _Path:
    """An accepted path in a tree, and how often it was seen since the last refresh.

    Attributes:
        trials: depth (from 0), how many ranks were tried, and which was right, -1 for none.
        hits: accepted nodes on it.
        foretold: that the shared estimate foretold, in sum over the trials.
    """

    trials: tuple[tuple[int, int, int], ...]
    hits: int
    foretold: float
    count: int = 0


@dataclass(slots=True)
class _ShapePaths:
    """Paths seen in one shape, by how many of its nodes were held and which were accepted."""

    shape: StaticTree
    paths: dict[tuple[int, tuple[int, ...]], _Path] = field(default_factory=dict)


class RateTable:
    """Rates of one class by depth and rank.

    Deeper rates lean on those above them: what was seen at depth 1 says much about a depth that was never tried.

    Attributes:
        num_observed: accepted paths seen so far.
        rates: rate of every depth (row 0 is depth 1) and rank, as of the last `refresh`.
        version: changes whenever `rates` do.
    """

    def __init__(self, prior: AcceptancePrior) -> None:
        self._prior = prior.rows()
        self._trials = [[0.0] * MAX_LEARNT_RANK for _ in range(MAX_LEARNT_DEPTH)]
        self._hits = [[0.0] * MAX_LEARNT_RANK for _ in range(MAX_LEARNT_DEPTH)]
        # By identity, which stays a shape's own as long as it is kept here.
        self._seen: dict[int, _ShapePaths] = {}
        self.num_observed = 0
        self.version = 0
        self.rates: list[list[float]] = []
        self.refresh()

    @property
    def num_trials(self) -> float:
        """Weight of what was seen of first children of roots, as of the last `refresh`."""
        return self._trials[0][0]

    def path(self, shape: StaticTree, num_draft_tokens: int, accepted: tuple[int, ...]) -> _Path:
        """What an accepted path says; the same record until the next `refresh`."""
        seen = self._seen.get(id(shape))
        if seen is None:
            seen = self._seen[id(shape)] = _ShapePaths(shape)
        path = seen.paths.get((num_draft_tokens, accepted))
        if path is None:
            path = seen.paths[num_draft_tokens, accepted] = self._new_path(shape, num_draft_tokens, accepted)
        return path

    def _new_path(self, shape: StaticTree, num_draft_tokens: int, accepted: tuple[int, ...]) -> _Path:
        num_children = shape.truncated(num_draft_tokens).num_children
        trials, parent, foretold = [], 0, 0.0
        for depth in range(min(len(accepted) + 1, MAX_LEARNT_DEPTH)):
            num_ranks = min(num_children[parent], MAX_LEARNT_RANK)
            if not num_ranks:
                break
            is_hit = depth < len(accepted)
            trials.append((depth, num_ranks, shape.ranks[accepted[depth]] if is_hit else -1))
            foretold += sum(self.rates[depth][:num_ranks])
            if not is_hit:
                break
            parent = accepted[depth]
        return _Path(tuple(trials), sum(hit >= 0 for _, _, hit in trials), foretold)

    def refresh(self) -> None:
        """Bring `rates` up to what was observed."""
        for seen in self._seen.values():
            for path in seen.paths.values():
                if path.count:
                    self._take(path)
        self._seen.clear()
        self.version += 1
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

    def _take(self, path: _Path) -> None:
        # So many trials one after the other: each fades those before it.
        kept = FADING**path.count
        added = (1.0 - kept) / (1.0 - FADING)
        for depth, num_ranks, hit in path.trials:
            trials, hits = self._trials[depth], self._hits[depth]
            for rank in range(num_ranks):
                trials[rank] = trials[rank] * kept + added
                hits[rank] = hits[rank] * kept + (added if rank == hit else 0.0)


@dataclass(slots=True)
class _OwnTrials:
    """Of one request: trials, hits, the hits foretold by the shared estimate, and what share of those comes true."""

    request_class: RequestClass
    trials: float = 0.0
    hits: float = 0.0
    foretold: float = 0.0
    hit_rate: float = 1.0
    skill: int = USUAL_SKILL

    @property
    def kind(self) -> int:
        return self.request_class * len(SKILLS) + self.skill

    def add(self, num_trials: int, hits: int, foretold: float, hit_rate: float = 1.0) -> None:
        """Trials one after the other; earlier ones fade.

        Args:
            hit_rate: what share of all that was foretold comes true in requests of this class.
        """
        kept = OWN_FADING**num_trials
        self.trials = self.trials * kept + num_trials
        self.hits = self.hits * kept + hits
        self.foretold = self.foretold * kept + foretold
        self.hit_rate = hit_rate
        self.skill = _skill_of(self)


class AcceptanceEstimator:
    """Rates of every class, and the skill of each request.

    Attributes:
        tables: by class, of trees with fixed shapes.
        cut: by class, of trees that end where the draft has no confidence.
        num_trees: that grew, those of requests with rules that the draft cannot see included.
        num_foretold: tokens that were expected of them; trees without any teach nothing.
    """

    def __init__(self, priors: AcceptancePriors | None = None) -> None:
        given = priors or AcceptancePriors()
        self.tables = tuple(RateTable(given.of(each)) for each in RequestClass)
        self.cut = tuple(_cut_tally(given, each) for each in RequestClass)
        self.num_trees = 0
        self.num_foretold = 0.0
        self._own: dict[str, _OwnTrials] = {}

    def successor(self) -> AcceptanceEstimator:
        """One for the requests of another engine that knows, and goes on learning, the same rates."""
        other = AcceptanceEstimator.__new__(AcceptanceEstimator)
        other.tables, other.cut, other._own = self.tables, self.cut, {}
        other.num_trees, other.num_foretold = self.num_trees, self.num_foretold
        return other

    @property
    def num_observed(self) -> int:
        """Accepted paths that the shared estimates have seen."""
        return sum([table.num_observed for table in self.tables]) + sum([tally.num_observed for tally in self.cut])

    @property
    def num_changes(self) -> int:
        """How often a class's drafts have changed so much that what was seen before says nothing."""
        return sum([tally.num_changes for tally in self.cut])

    def kind(self, request: Request) -> int:
        """Class and skill of a request in one number; the usual skill where little is known of it."""
        own = self._own.get(request.request_id)
        if own is None:
            own = self._own[request.request_id] = _OwnTrials(class_of(request.params))
        return own.kind

    def skill(self, request_id: str) -> int:
        """Which of SKILLS describes a request best."""
        own = self._own.get(request_id)
        return USUAL_SKILL if own is None else own.skill

    def observe(
        self,
        request_id: str,
        shape: StaticTree,
        num_draft_tokens: int,
        accepted: tuple[int, ...],
        is_usual: bool = True,
        request_class: RequestClass = RequestClass.GREEDY,
    ) -> None:
        """Learn from the path that one tree got accepted; `refresh` of the table makes it count.

        Args:
            num_draft_tokens: the request held the first so many nodes of `shape`.
            accepted: accepted nodes from the root's child down.
            is_usual: False for a request with rules that the draft cannot see: only its own skill learns.
            request_class: of a request that has ended, of which nothing is kept.
        """
        self.num_trees += 1
        own = self._own.get(request_id) or _OwnTrials(request_class)
        table = self.tables[own.request_class]
        path = table.path(shape, num_draft_tokens, accepted)
        own.add(len(path.trials), path.hits, path.foretold)
        self.num_foretold += path.foretold
        if is_usual:
            path.count += 1
            table.num_observed += 1

    def observe_cut(
        self,
        request_id: str,
        shape: DynamicTree,
        tree: CutTree,
        is_usual: bool = True,
        request_class: RequestClass = RequestClass.GREEDY,
    ) -> None:
        """Learn from a tree that was cut where `shape` says; `refresh` of the tally makes it count.

        Args:
            is_usual, request_class: as in `observe`.
        """
        self.num_trees += 1
        own = self._own.get(request_id) or _OwnTrials(request_class)
        tally = self.cut[own.request_class]
        trials = CutTrials(tree)
        chances, hits = trials.foretold, trials.hits
        if chances:
            foretold = sum(chances)
            self.num_foretold += foretold
            if is_usual:
                tally.count_trials(hits, foretold)
            own.add(len(chances), hits, foretold, tally.hit_rate)
        if is_usual:
            tally.observe(shape, tree)

    def fade(self, request_id: str, num_steps: int = 1) -> None:
        """Let a request that grew no tree for some steps come back to the usual skill, little by little."""
        own = self._own.get(request_id)
        if own is not None and own.skill != USUAL_SKILL:
            kept = IDLE_FADING**num_steps
            own.trials *= kept
            own.hits *= kept
            own.foretold *= kept
            own.skill = _skill_of(own)

    def forget(self, request_id: str) -> None:
        """Drop what is known of a request that has ended."""
        self._own.pop(request_id, None)

    @property
    def num_requests(self) -> int:
        """Requests of which something is kept."""
        return len(self._own)


def _cut_tally(priors: AcceptancePriors, request_class: RequestClass) -> CutTally:
    """A draft is as sure of a text that is drawn at random, but less often right."""
    share = SAMPLED_SHARE if request_class is RequestClass.SAMPLED else GREEDY_SHARE
    return CutTally(priors.greedy.rows()[0][0], share)


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
    if own.trials < TRIALS_TO_JUDGE_ONE:
        return USUAL_SKILL
    foretold = min(MOST_CERTAIN, own.hit_rate * own.foretold / own.trials)
    seen = (own.hits + OWN_PRIOR_TRIALS * foretold) / (own.trials + OWN_PRIOR_TRIALS)
    odds = seen * (1.0 - foretold) / max(1e-6, (1.0 - seen) * foretold)
    skill = bisect(_SKILL_BORDERS, odds)
    if abs(skill - own.skill) == 1:
        # A neighbour only if it fits clearly better: every change asks the planner anew.
        firmer = odds / SKILL_MARGIN if skill > own.skill else odds * SKILL_MARGIN
        skill = skill if bisect(_SKILL_BORDERS, firmer) == skill else own.skill
    return skill


def _blended(hits: float, trials: float, expected: float) -> float:
    return (hits + PRIOR_TRIALS * expected) / (trials + PRIOR_TRIALS)


# Halfway, as factors go, between neighbours.
_SKILL_BORDERS = tuple((low * high) ** 0.5 for low, high in itertools.pairwise(SKILLS))
