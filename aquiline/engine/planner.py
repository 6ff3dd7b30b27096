"""How much to speculate in a step.

    rate(tree) = committed tokens expected in a step / time of that step

Every step compares plain decoding with some dozen shapes (`tree_families`) by what they are expected to commit
(`acceptance`) and to cost (`cost_model`). All requests of a step share one shape; each holds its first nodes, as many
as its own acceptance justifies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from aquiline.config import Objective
from aquiline.engine.acceptance import SKILLS, USUAL_SKILL, AcceptanceEstimator, AcceptancePrior
from aquiline.engine.cost_model import StepCosts
from aquiline.engine.draft_debt import DebtPolicy, num_pending
from aquiline.engine.forecast import Forecast, Situation, nodes_of
from aquiline.engine.plan import StepLoad, StepPlan, StepReport
from aquiline.engine.tree_families import Candidate, TreeBounds, TreeFamily, candidates_of, grow_families
from aquiline.request import Request
from aquiline.speculation import NO_TREE, StaticTree

# A better choice must be better by this much before it replaces the current one; more to begin or end speculating.
MARGIN = 0.01
SWITCH_MARGIN = 0.02
# A switch to trees must earn back what the draft has to catch up with within so many steps.
PAYBACK_STEPS = 50
# Share of the time that may go to trees grown only to learn.
PROBE_SHARE = 0.005
PROBE_SIZE = 4
MOST_PROBE_SLOWDOWN = 1.1
# Rates are read anew after so many accepted paths, and shapes grown anew when a rate has moved by more than this.
FIRST_REFRESH = 4
LONGEST_REFRESH = 256
RATE_CHANGE = 0.08
# What a draft must have shown before it may be found useless, and how often a request is followed all the same.
TRIALS_TO_JUDGE = 24
ALONE_CONTEXT = 256
PROBED_REQUESTS = 8
MOST_KNOWN_LOADS = 64
# After so many plain steps in a row, drafts follow few of the new requests.
STEPS_TO_SETTLE = 256
MOST_COUNTED_ROWS = 2**14
PLAIN = Candidate(NO_TREE, (0,) * len(SKILLS), (1.0,) * len(SKILLS), ())


@dataclass(frozen=True)
class PlannerSettings:
    """How an AutoPlanner decides."""

    bounds: TreeBounds
    objective: Objective = field(default_factory=Objective)
    prior: AcceptancePrior = field(default_factory=AcceptancePrior)
    debt: DebtPolicy = field(default_factory=DebtPolicy)


class AutoPlanner:
    """Chooses by measured cost and learnt acceptance.

    Args:
        estimator: what is known of the draft already; None begins with the prior.

    Attributes:
        last: forecast of the last plan, for those who want to see why.
    """

    def __init__(
        self, costs: StepCosts, settings: PlannerSettings, estimator: AcceptanceEstimator | None = None
    ) -> None:
        self.costs = costs
        self.bounds = settings.bounds
        self.learns = True
        self.estimator = estimator or AcceptanceEstimator(settings.prior)
        self.last: Forecast | None = None
        self._objective = settings.objective
        self._debt = settings.debt
        self._families: list[TreeFamily] = []
        self._candidates: list[Candidate] = []
        self._current = PLAIN
        self._grown_rates: list[list[float]] = []
        self._refresh_at = 0
        self._probe_credit = 0.0
        self._probed: str | None = None
        self._num_probes = 0
        self._num_requests = 0
        self._num_plain_steps = 0
        # Times by candidate and size, for each load; and of the draft's levels by candidate and number of trees.
        self._step_seconds: dict[tuple[int, int, int], dict[tuple[int, int], float]] = {}
        self._level_seconds: dict[tuple[int, int], float] = {}
        self._decisions: dict[object, Forecast] = {}
        self._detours: dict[object, Forecast] = {}
        self._known_version = costs.version
        self.is_hopeless = False
        self._refresh()

    def plan(self, load: StepLoad) -> StepPlan:
        """See `StepPlanner`."""
        if self.estimator.num_observed >= self._refresh_at:
            self._refresh()
        if not load.growing:
            return self._debt.plan(load, StepPlan(), self._spare_seconds(load), self.costs, self.is_hopeless)
        skills = {request.request_id: self.estimator.skill(request.request_id) for request in load.growing}
        situation = self._situation(load, list(skills.values()))
        best = self._choose(situation)
        self.last = best
        plan = self._plan_of(best.candidate, skills)
        self._num_plain_steps = self._num_plain_steps + 1 if best.candidate is PLAIN else 0
        if best.candidate is PLAIN:
            plan = self._probe(situation, best) or plan
        elif (detour := self._detour(situation, best)) is not None:
            plan = self._plan_of(detour, skills)
        return self._debt.plan(load, plan, best.seconds, self.costs, self.is_hopeless)

    def forecasts(self, load: StepLoad) -> list[Forecast]:
        """Every candidate's forecast, plain decoding first: what a plan for `load` chooses from."""
        skills = [self.estimator.skill(request.request_id) for request in load.growing]
        situation = self._situation(load, skills)
        return [self._forecast(candidate, situation) for candidate in (PLAIN, *self._candidates)]

    def _plan_of(self, candidate: Candidate, skills: Mapping[str, int]) -> StepPlan:
        if candidate is PLAIN:
            return StepPlan(NO_TREE, {}, {})
        sizes = candidate.num_draft_tokens
        held = {request_id: sizes[skill] for request_id, skill in skills.items() if sizes[skill]}
        for request_id, skill in skills.items():
            if not sizes[skill]:
                self.estimator.fade(request_id)
        most = max(held.values(), default=0)
        return StepPlan(candidate.shape.truncated(most), held, {})

    def _situation(self, load: StepLoad, skills: list[int]) -> Situation:
        costs = self.costs
        counts = [(skill, skills.count(skill)) for skill in sorted(set(skills))]
        other = costs.verify_seconds(load.num_other_rows, 0, 0) if load.num_other_rows else 0.0
        behind = self._debt.num_behind(load) if self._current is PLAIN else 0
        # To the next power of two, so that situations stay the same for a while.
        entry = costs.draft_seconds(1 << (behind - 1).bit_length(), ()) / PAYBACK_STEPS if behind else 0.0
        if costs.version != self._known_version or len(self._step_seconds) > MOST_KNOWN_LOADS:
            self._known_version = costs.version
            self._forget_seconds()
        key = (load.num_roots, load.num_other_rows // 16, load.context // (32 * max(1, load.num_roots)))
        return Situation(load, counts, other, entry, key, self._step_seconds.setdefault(key, {}))

    def _choose(self, situation: Situation) -> Forecast:
        """The best candidate; asked again in the same situation, the same as before."""
        limit = min(situation.load.max_draft_tokens, MOST_COUNTED_ROWS)
        same = (situation.key, situation.entry_seconds, limit, self._current.key)
        key = (*same, len(situation.load.growing), *situation.skills)
        chosen = self._decisions.get(key)
        if chosen is None:
            chosen = self._decisions[key] = self._best(situation, limit)
        self._current = chosen.candidate
        return chosen

    def _best(self, situation: Situation, limit: int) -> Forecast:
        best = current = PLAIN
        best_score = plain_score = self._score(PLAIN, situation)
        current_score = plain_score if self._current is PLAIN else None
        for candidate in self._candidates:
            score = self._score(candidate, situation)
            if score <= best_score and candidate.key != self._current.key:
                continue
            if nodes_of(candidate, situation.skills) > limit:
                continue
            if candidate.key == self._current.key:
                current, current_score = candidate, score
            if score > best_score:
                best, best_score = candidate, score
        if current_score is not None:
            margin = SWITCH_MARGIN if (best is PLAIN) != (current is PLAIN) else MARGIN
            if best_score <= current_score + margin * abs(current_score):
                best, best_score = current, current_score
        return self._forecast(best, situation)

    def _score(self, candidate: Candidate, situation: Situation) -> float:
        load = situation.load
        nodes = trees = 0
        expected = per_token = float(load.num_roots - len(load.growing))
        sizes, gains = candidate.num_draft_tokens, candidate.expected
        for skill, count in situation.skills:
            size, gain = sizes[skill], gains[skill]
            if size:
                nodes += size * count
                trees += count
            expected += gain * count
            per_token += count / gain
        key = (id(candidate), nodes)
        seconds = situation.seconds.get(key)
        if seconds is None:
            seconds = situation.seconds[key] = self._seconds_of(candidate, nodes, trees, expected, load)
        if nodes:
            seconds += situation.entry_seconds
        own_seconds = max(seconds - situation.other_seconds, 1e-9)
        return self._objective.score(expected / own_seconds, seconds * per_token / max(1, load.num_roots))

    def _forecast(self, candidate: Candidate, situation: Situation) -> Forecast:
        load, sizes, gains = situation.load, candidate.num_draft_tokens, candidate.expected
        num_idle = load.num_roots - len(load.growing)
        nodes = nodes_of(candidate, situation.skills)
        score = self._score(candidate, situation)
        expected = num_idle + sum(count * gains[skill] for skill, count in situation.skills)
        per_token = num_idle + sum(count / gains[skill] for skill, count in situation.skills)
        trees = sum(count for skill, count in situation.skills if sizes[skill])
        seconds = self._seconds_of(candidate, nodes, trees, expected, load)
        return Forecast(candidate, nodes, expected, seconds, seconds * per_token / max(1, load.num_roots), score)

    def _seconds_of(self, candidate: Candidate, nodes: int, trees: int, expected: float, load: StepLoad) -> float:
        costs, roots = self.costs, load.num_roots
        row_context = load.context + nodes * (load.context // max(1, roots))
        seconds = costs.verify_seconds(roots + nodes + load.num_other_rows, load.context, row_context)
        seconds += costs.other_seconds(roots + nodes, roots)
        if not nodes:
            return seconds
        key = (id(candidate), trees)
        levels = self._level_seconds.get(key)
        if levels is None:
            levels = costs.draft_seconds(0, [width * trees for width in candidate.level_widths])
            self._level_seconds[key] = levels
        return seconds + levels + costs.draft_seconds(round(expected - roots) + trees, ())

    def _forget_seconds(self) -> None:
        self._step_seconds.clear()
        self._level_seconds.clear()
        self._decisions.clear()
        self._detours.clear()

    def _spare_seconds(self, load: StepLoad) -> float:
        return self.costs.verify_seconds(load.num_roots + load.num_other_rows, load.context, load.context)

    def _probe(self, situation: Situation, plain: Forecast) -> StepPlan | None:
        """Now and then one small tree, so that a draft that has become useful is noticed.

        The probed request is asked for until it has caught up with its draft rows and grown its tree.
        """
        load = situation.load
        shape = self._families[-1].shape.truncated(self._probe_size(load, plain.seconds))
        if self._probed is None or all(request.request_id != self._probed for request in load.growing):
            self._probed = None
            self._probe_credit += PROBE_SHARE * plain.seconds
            request = load.growing[self._num_probes % len(load.growing)]
            if self._probe_credit < self._probe_seconds(shape, num_pending(request), load) - plain.seconds:
                return None
            self._probe_credit = 0.0
            self._num_probes += 1
            self._probed = request.request_id
        return StepPlan(shape, {self._probed: shape.num_draft_tokens}, {}) if shape.num_draft_tokens else None

    def _detour(self, situation: Situation, best: Forecast) -> Candidate | None:
        """Now and then a plain step or a larger tree: what is never run would be judged by old times for ever."""
        self._probe_credit += PROBE_SHARE * best.seconds
        is_larger = self._num_probes % 2 == 1
        key = (situation.key, is_larger, best.candidate.key, *situation.skills)
        forecast = self._detours.get(key)
        if forecast is None:
            detour = PLAIN
            if is_larger:
                larger = (c for c in self._candidates if nodes_of(c, situation.skills) > 1.5 * best.num_draft_tokens)
                detour = min(larger, key=lambda c: nodes_of(c, situation.skills), default=PLAIN)
            forecast = self._detours[key] = self._forecast(detour, situation)
        lost = forecast.seconds - forecast.expected * best.seconds / best.expected
        if self._probe_credit < lost or forecast.num_draft_tokens > situation.load.max_draft_tokens:
            return None
        self._probe_credit = 0.0
        self._num_probes += 1
        return forecast.candidate

    def _probe_size(self, load: StepLoad, plain_seconds: float) -> int:
        """As large as it may be without standing out among plain steps; 1 in any case, if there are rows."""
        size = min(PROBE_SIZE, load.max_draft_tokens)
        shape = self._families[-1].shape
        while size > 1 and self._probe_seconds(shape.truncated(size), 1, load) > MOST_PROBE_SLOWDOWN * plain_seconds:
            size -= 1
        return size

    def _probe_seconds(self, shape: StaticTree, num_new_rows: int, load: StepLoad) -> float:
        size, roots = shape.num_draft_tokens, load.num_roots
        row_context = load.context + size * (load.context // roots)
        seconds = self.costs.verify_seconds(roots + size + load.num_other_rows, load.context, row_context)
        seconds += self.costs.other_seconds(roots + size, roots)
        return seconds + self.costs.draft_seconds(num_new_rows, shape.level_widths)

    def wants_draft(self, request: Request) -> bool:
        """See `StepPlanner`."""
        self._num_requests += 1
        is_off = self.is_hopeless or self._num_plain_steps >= STEPS_TO_SETTLE
        return not is_off or self._num_requests % PROBED_REQUESTS == 0

    @property
    def speculates(self) -> bool:
        """See `StepPlanner`."""
        return self._num_plain_steps == 0

    def observe(self, report: StepReport) -> None:
        """See `StepPlanner`."""
        if report.seconds is not None:
            self.costs.observe(report.size, report.seconds)
        if any(outcome.request_id == self._probed for outcome in report.outcomes):
            self._probed = None
        if isinstance(report.shape, StaticTree):
            for outcome in report.outcomes:
                self.estimator.observe(
                    outcome.request_id, report.shape, outcome.num_draft_tokens, outcome.accepted, outcome.is_usual
                )

    def forget(self, request_id: str) -> None:
        """See `StepPlanner`."""
        self.estimator.forget(request_id)

    def _refresh(self) -> None:
        """Take over what was learnt about acceptance: cheap numbers often, new shapes when rates have really moved."""
        estimator = self.estimator
        estimator.refresh()
        interval = min(LONGEST_REFRESH, max(FIRST_REFRESH, estimator.num_observed // 2))
        self._refresh_at = estimator.num_observed + interval
        if self._have_rates_moved():
            self._families = grow_families(estimator, self.bounds)
            self._grown_rates = [list(row) for row in estimator.rates]
        else:
            for family in self._families:
                family.refresh(estimator)
        self._candidates = candidates_of(self._families)
        self._forget_seconds()
        self._judge()

    def _have_rates_moved(self) -> bool:
        if not self._grown_rates:
            return True
        # Ranks that are hardly ever accepted may move as they like.
        pairs = [
            (new, old)
            for new_row, old_row in zip(self.estimator.rates, self._grown_rates, strict=True)
            for new, old in zip(new_row, old_row, strict=True)
            if max(new, old) > 0.02
        ]
        return any(abs(new - old) > RATE_CHANGE * max(new, old) + 0.01 for new, old in pairs)

    def _judge(self) -> None:
        """Find the draft hopeless when it would not even help a request that has the machine for itself."""
        if self.estimator.num_trials < TRIALS_TO_JUDGE:
            return
        load = StepLoad(1, (), (), ALONE_CONTEXT)
        plain = self._seconds_of(PLAIN, 0, 0, 1.0, load)
        best = 0.0
        for candidate in self._candidates:
            size, gain = candidate.num_draft_tokens[USUAL_SKILL], candidate.expected[USUAL_SKILL]
            best = max(best, gain * plain / self._seconds_of(candidate, size, 1, gain, load))
        self.is_hopeless = best < 1.0
