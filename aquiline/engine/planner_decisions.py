"""Which candidate is best in a situation, and what steps that only learn may do there instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from aquiline.config import Objective
from aquiline.engine.acceptance import NUM_KINDS, SKILLS, USUAL_SKILL, AcceptanceEstimator
from aquiline.engine.acceptance_prior import AcceptancePriors, RequestClass
from aquiline.engine.cost_model import StepCosts
from aquiline.engine.cut_candidates import CUTS, Cut
from aquiline.engine.draft_debt import DebtPolicy
from aquiline.engine.forecast import MOST_COUNTED_ROWS, Forecast, Outlook, Situation, outlook
from aquiline.engine.plan import StepLoad
from aquiline.engine.planner_bursts import BURST_STEPS
from aquiline.engine.planner_candidates import counted, leading_class
from aquiline.engine.planner_hindsight import Hindsight
from aquiline.engine.planner_knowledge import DraftKnowledge
from aquiline.engine.planner_probes import LEAST_PROBE_SHARE, ProbeTree, cut_probe, probe_tree, regret_of
from aquiline.engine.tree_families import TreeBounds

# A better choice must be better by this much before it replaces the current one; more to begin or end speculating.
MARGIN = 0.01
SWITCH_MARGIN = 0.02
# The best of a hundred forecasts promises more than comes, and only plain steps have a single one.
TREES_DISCOUNT = 0.98
# Plain decoding teaches nothing of the draft, so a few unlucky steps shall not lead to it.
EARLY_MARGIN = 0.06
EARLY_PATHS = 24
EARLY_TREES = 48
# Nor are trees grown to learn that promise less than this share of the best.
EARLY_SHARE = 0.93
# Trees that promise so much of what plain steps do are tried in a row: forecasts of what hardly runs are that rough.
CLOSE_SHARE = 0.88
# With more requests than this, steps with trees among plain ones would stand out, and few of them tell much.
MOST_REQUESTS_OF_TREES_IN_A_ROW = 7
# A switch to trees must earn back what the draft has to catch up with within so many steps.
PAYBACK_STEPS = 50
# What a draft must have shown before it may be found useless.
TRIALS_TO_JUDGE = 24
ALONE_CONTEXT = 256
MOST_DECISIONS = 256
# Where no tree promises anything, probes are small.
PROBE_PLACE = 1 + CUTS.index(Cut(1, 1, 5))
# What a row costs is read off between one and so many.
ROWS_OF_A_SLOPE = 32


@dataclass(frozen=True)
class PlannerSettings:
    """How an AutoPlanner decides."""

    bounds: TreeBounds
    objective: Objective = field(default_factory=Objective)
    priors: AcceptancePriors = field(default_factory=AcceptancePriors)
    debt: DebtPolicy = field(default_factory=DebtPolicy)


@dataclass(frozen=True, slots=True)
class Decision:
    """The choice in one situation, and what steps that only learn may do there instead.

    Attributes:
        seen: all candidates.
        detours: places among them: from a tree, a plain step, and trees a little larger and smaller; from a plain
            step, the best tree, where that teaches more cheaply than a probe.
        probe: of a plain step; None: there are detours.
        lost_seconds: by a detour from a plain step, all of its steps together.
        may_burst: whether a detour to the other sort of steps may go on for a burst.
    """

    best: Forecast
    seen: Outlook
    detours: tuple[int, ...]
    probe: ProbeTree | None
    lost_seconds: float = 0.0
    may_burst: bool = False


class Decider:
    """Compares candidates, and remembers what it found as long as nothing was learnt.

    Attributes:
        knowledge: of the draft, as steps ask for it.
        hindsight: of what was chosen before.
        num_outlooks: how often all candidates were reckoned.
    """

    def __init__(self, costs: StepCosts, settings: PlannerSettings, estimator: AcceptanceEstimator) -> None:
        self.knowledge = DraftKnowledge(estimator, settings.bounds)
        self.hindsight = Hindsight(settings.bounds.reads_confidence)
        self.num_outlooks = 0
        self._costs = costs
        self._bounds = settings.bounds
        self._objective = settings.objective
        self._estimator = estimator
        self._decisions: dict[object, Decision] = {}
        self._outlooks: dict[object, Outlook] = {}
        self._known_versions = (costs.version, self.hindsight.version)

    def refresh(self, num_steps: int) -> bool:
        """Take over what was learnt in so many steps; returns whether the draft is seen in another light."""
        has_moved = self.knowledge.refresh(num_steps, self._mask_share)
        if has_moved:
            self._forget()
        return has_moved

    def _forget(self) -> None:
        self._decisions.clear()
        self._outlooks.clear()

    def decide(
        self, load: StepLoad, kinds: Sequence[int], situation: tuple[int, ...], current: tuple[int, int, int]
    ) -> Decision:
        """The best candidate; asked again in the same situation, the same as before.

        Args:
            kinds: of the growing requests.
            situation: the `situation_key`.
            current: key of the last choice.
        """
        versions = (self._costs.version, self.hindsight.version)
        if versions != self._known_versions:
            self._known_versions = versions
            self._forget()
        counts = counted(kinds)
        key = (*counts, *situation, *current)
        decision = self._decisions.get(key)
        if decision is None:
            if len(self._decisions) >= MOST_DECISIONS:
                self._forget()
            behind = situation[-1]
            entry = self._costs.draft_seconds(behind, ()) / PAYBACK_STEPS if behind else 0.0
            settled = self._situation(load, counts, entry)
            # All candidates are the same whatever the last choice was.
            seen = self._outlooks.get((counts, situation))
            if seen is None:
                seen = self._outlooks[counts, situation] = self._outlook(settled)
            decision = self._decisions[key] = self._decision(settled, seen, current)
        return decision

    def forecasts(self, load: StepLoad, kinds: Sequence[int]) -> list[Forecast]:
        """Every candidate's forecast, plain decoding first."""
        seen = self._outlook(self._situation(load, counted(kinds), 0.0))
        return [seen.forecast(index) for index in range(len(seen.place))]

    def _situation(self, load: StepLoad, counts: tuple[int, ...], entry_seconds: float) -> Situation:
        for kind, count in enumerate(counts):
            if count:
                self.knowledge.meet(RequestClass(kind // len(SKILLS)))
        other = self._costs.verify_seconds(load.num_other_rows, 0, 0) if load.num_other_rows else 0.0
        limit = min(load.max_draft_tokens, MOST_COUNTED_ROWS)
        return Situation(load, counts, other, entry_seconds, limit, self.hindsight.of(load.num_roots))

    def _outlook(self, situation: Situation) -> Outlook:
        self.num_outlooks += 1
        table = self.knowledge.table(leading_class(situation.kinds))
        return outlook(table, situation, self._costs, self._objective)

    def _decision(self, situation: Situation, seen: Outlook, current_key: tuple[int, int, int]) -> Decision:
        score = np.where(seen.score > 0.0, seen.score * TREES_DISCOUNT, seen.score)
        score[0] = seen.score[0]
        best, current = int(score.argmax()), seen.find(current_key)
        if best and self._estimator.num_trees < EARLY_TREES:
            # Deep trees teach of all that are shallower, but not the other way round.
            deep = seen.best_deep_tree
            best = deep if deep is not None and score[deep] > max(score[0], EARLY_SHARE * score[best]) else best
        elif current is not None:
            margin = SWITCH_MARGIN if (best == 0) != (current == 0) else MARGIN
            if best == 0 and self._estimator.num_trees < EARLY_PATHS:
                margin = EARLY_MARGIN
            if score[best] <= score[current] + margin * abs(score[current]):
                best = current
        if best:
            return Decision(seen.forecast(best), seen, tuple(seen.detours(best)), None, may_burst=True)
        return self._plain(situation, seen)

    def _plain(self, situation: Situation, seen: Outlook) -> Decision:
        """Plain decoding, and the cheaper way to learn of trees: one for all requests, or one for one of them."""
        plain, probe = seen.forecast(0), self._probe(situation, seen)
        best = seen.best_tree
        if best is not None and self._bounds.reads_confidence:
            tree = seen.forecast(best)
            lost = max(regret_of(plain, tree), LEAST_PROBE_SHARE * (tree.seconds - plain.seconds))
            entry = PAYBACK_STEPS * situation.entry_seconds
            may_burst = situation.load.num_roots <= MOST_REQUESTS_OF_TREES_IN_A_ROW and is_close(tree, plain)
            if probe is None or lost + entry <= probe.lost_seconds or may_burst:
                lost = lost * BURST_STEPS if may_burst else lost
                return Decision(plain, seen, (best,), None, lost + entry, may_burst)
        return Decision(plain, seen, (), probe)

    def _probe(self, situation: Situation, seen: Outlook) -> ProbeTree | None:
        """What one request may grow among plain steps."""
        leading = leading_class(situation.kinds)
        if not self._bounds.reads_confidence:
            widest = self.knowledge.families(leading).shapes[-1]
            return probe_tree(widest, situation.load, situation.max_draft_tokens, self._costs)
        best = seen.best_tree
        candidate = self.knowledge.table(leading).candidate(PROBE_PLACE if best is None else int(seen.place[best]))
        return cut_probe(candidate, leading * len(SKILLS) + USUAL_SKILL, situation.load, self._costs)

    def _mask_share(self) -> float:
        costs = self._costs
        span = ROWS_OF_A_SLOPE - 1
        rows = costs.verify_seconds(ROWS_OF_A_SLOPE, 0, 0) - costs.verify_seconds(1, 0, 0)
        rows += costs.other_seconds(ROWS_OF_A_SLOPE, 1) - costs.other_seconds(1, 1)
        return costs.mask_seconds * span / max(rows, 1e-9)

    def is_hopeless(self) -> bool:
        """Whether the draft would not even help a request that has the machine for itself."""
        judged = [each for each in RequestClass if self._num_trials(each) >= TRIALS_TO_JUDGE]
        return bool(judged) and not any(self._helps_alone(each) for each in judged)

    def _num_trials(self, request_class: RequestClass) -> float:
        if self._bounds.reads_confidence:
            return self._estimator.cut[request_class].num_trees
        return self._estimator.tables[request_class].num_trials

    def _helps_alone(self, request_class: RequestClass) -> bool:
        kinds = [0] * NUM_KINDS
        kinds[request_class * len(SKILLS) + USUAL_SKILL] = 1
        self.knowledge.meet(request_class)
        load = StepLoad(1, (), (), ALONE_CONTEXT)
        seen = outlook(
            self.knowledge.table(request_class),
            Situation(load, tuple(kinds), 0.0, 0.0, MOST_COUNTED_ROWS),
            self._costs,
            Objective(),
        )
        return bool(seen.score.max() > seen.score[0])


def is_close(other: Forecast, best: Forecast) -> bool:
    """Whether forecasts are too rough to tell which is the better one."""
    return other.score >= best.score - (1.0 - CLOSE_SHARE) * abs(best.score)


def situation_key(load: StepLoad, num_behind: int, is_plain: bool) -> tuple[int, ...]:
    """What tells a situation from others; steps like those before fall into the same one.

    Args:
        num_behind: draft rows that requests lag behind with, which matter where the last choice `is_plain`.
    """
    roots = max(1, load.num_roots)
    behind = _rounded(num_behind, 0) if is_plain and num_behind else 0
    limit = min(load.max_draft_tokens, MOST_COUNTED_ROWS)
    return (load.num_roots, load.num_other_rows // 16, _rounded(load.context // roots, 1), limit, behind)


def _rounded(number: int, num_bits: int) -> int:
    """Up to a number with so many bits behind its first, so that steps of about the same size count as the same.

    Worked example, 1 bit, which makes two groups of every doubling: 65 to 96 become 96, 97 to 128 become 128.
    """
    shift = max(0, number.bit_length() - 1 - num_bits)
    return (number + (1 << shift) - 1) >> shift << shift
