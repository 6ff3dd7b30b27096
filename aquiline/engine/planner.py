"""How much to speculate in a step.

    rate(tree) = committed tokens expected in a step / time of that step

Every step compares plain decoding with some hundred shapes (`tree_families`) by what they are expected to commit
(`acceptance`) and to cost (`cost_model`). All requests of a step share one shape; each holds its first nodes, as many
as its own acceptance justifies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from aquiline.config import Objective
from aquiline.engine.acceptance import NUM_KINDS, SKILLS, USUAL_SKILL, AcceptanceEstimator
from aquiline.engine.acceptance_prior import AcceptancePriors, RequestClass
from aquiline.engine.cost_model import StepCosts
from aquiline.engine.cut_candidates import CUTS, Cut
from aquiline.engine.draft_debt import DebtPolicy, DraftUse, debt_of
from aquiline.engine.forecast import MOST_COUNTED_ROWS, Forecast, Outlook, Situation, outlook
from aquiline.engine.plan import StepLoad, StepPlan, StepReport, TreeOutcome
from aquiline.engine.planner_attention import Attention
from aquiline.engine.planner_candidates import PLAIN, counted, leading_class
from aquiline.engine.planner_knowledge import DraftKnowledge
from aquiline.engine.planner_probes import Probes, ProbeTree, cut_probe, probe_tree
from aquiline.engine.planner_reports import observe_times
from aquiline.engine.planner_rest import IDLE_PLAN, Rests
from aquiline.engine.planner_shares import plan_of
from aquiline.engine.tree_families import TreeBounds
from aquiline.request import Request
from aquiline.speculation import StaticTree, TreeShape

# A better choice must be better by this much before it replaces the current one; more to begin or end speculating.
MARGIN = 0.01
SWITCH_MARGIN = 0.02
# Plain decoding teaches nothing of the draft, so a few unlucky steps shall not lead to it.
EARLY_MARGIN = 0.06
EARLY_PATHS = 24
EARLY_TREES = 48
# A switch to trees must earn back what the draft has to catch up with within so many steps.
PAYBACK_STEPS = 50
# What a draft must have shown before it may be found useless, and how often a request is followed all the same.
TRIALS_TO_JUDGE = 24
ALONE_CONTEXT = 256
PROBED_REQUESTS = 8
MOST_DECISIONS = 256
# So many reports are read at once, when so many accepted paths were seen, or steps are plain.
REPORTS_READ_AT_ONCE = 8
PATHS_READ_AT_ONCE = 64
# Steps whose trees end where the draft has no confidence have many sizes; so many stand for all.
MOST_SIZES = 3
# After so many accepted paths every fourth step is enough to learn from.
PATHS_KNOWN_WELL = 192
STEPS_PER_LESSON = 4
# After so many plain steps in a row, drafts follow few of the new requests.
STEPS_TO_SETTLE = 256
# Where no tree promises anything, probes are small.
PROBE_PLACE = 1 + CUTS.index(Cut(1, 5))
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
class _Decision:
    """The choice in one situation, and what steps that only learn may do there instead.

    Attributes:
        detours: from a tree: a plain step, and a larger and a smaller tree where there are such.
        probe: of a plain step; None for trees.
    """

    best: Forecast
    detours: tuple[Forecast, ...]
    probe: ProbeTree | None


@dataclass(slots=True)
class _Choice:
    """What was chosen for some requests, and for how many steps it has held."""

    situation: tuple[int, ...]
    growing: Sequence[Request]
    kinds: Sequence[int]
    decision: _Decision
    plan: StepPlan
    num_steps: int = 1


class AutoPlanner:
    """Chooses by measured cost and learnt acceptance.

    Args:
        estimator: what is known of the draft already; None begins with the priors.

    Attributes:
        knowledge: of the draft, as steps ask for it.
        last: forecast of the last plan, for those who want to see why.
        num_outlooks: how often all candidates were reckoned.
    """

    def __init__(
        self, costs: StepCosts, settings: PlannerSettings, estimator: AcceptanceEstimator | None = None
    ) -> None:
        self.costs = costs
        self.bounds = settings.bounds
        self.learns = True
        self.estimator = estimator or AcceptanceEstimator(settings.priors)
        self.last: Forecast | None = None
        self.num_outlooks = 0
        self.is_hopeless = False
        self.knowledge = DraftKnowledge(self.estimator, settings.bounds)
        self._objective = settings.objective
        self._debt = settings.debt
        self._probes = Probes()
        self._rests = Rests()
        self._attention = Attention()
        # Whether the last plan is what `last` foretells.
        self._is_best = True
        self._current = (*PLAIN.key, 0)
        self._num_requests = 0
        self._num_plain_steps = self._num_plans = 0
        self._decisions: dict[object, _Decision] = {}
        self._last_choice: _Choice | None = None
        self._reports: list[StepReport] = []
        # Every single one at first, since each says much.
        self._num_read_at_once = 1
        self._known_version = costs.version

    def plan(self, load: StepLoad) -> StepPlan:
        """See `StepPlanner`."""
        knows_well = self.estimator.num_observed >= PATHS_KNOWN_WELL
        self._num_plans += 1
        is_lesson = self._num_plans % STEPS_PER_LESSON == 0
        self.learns = is_lesson or not knows_well or self._attention.is_alert
        self._is_best = True
        plan = self._new_plan(load)
        self._rests.count(plan)
        return plan

    def rest(self) -> StepPlan | None:
        """See `StepPlanner`."""
        if self._attention.is_alert or not self._rests.take():
            return None
        self.learns = False
        return IDLE_PLAN

    def _new_plan(self, load: StepLoad) -> StepPlan:
        if len(self._reports) >= self._num_read_at_once:
            self._read_reports()
        debt = debt_of(load)
        if not load.growing:
            plan, seconds = IDLE_PLAN, self._spare_seconds(load)
            whole = seconds + self.costs.other_seconds(load.num_roots, load.num_roots)
            self.last = Forecast(PLAIN, 0, float(load.num_roots), whole, whole, 0.0)
            return self._debt.plan(load, plan, debt, seconds, self.costs, self._use(load, None))
        choice = self._choose(load, debt.num_behind)
        decision = choice.decision
        best = self.last = decision.best
        self._current = best.key
        plan = choice.plan
        if decision.probe is not None:
            num_steps = 1 + self._rests.num_rested
            self._num_plain_steps += num_steps
            probe = self._probes.tree_among_plain(load, num_steps * best.seconds, decision.probe, self.costs)
            if probe is not None:
                plan, self.learns, self._is_best = probe, True, False
        else:
            self._num_plain_steps = 0
            detour = self._probes.next_of(decision.detours)
            if self._probes.detour(best, detour):
                plan, self.learns, self._is_best = plan_of(detour, load.growing, choice.kinds), True, False
        return self._debt.plan(load, plan, debt, best.seconds, self.costs, self._use(load, best))

    def _choose(self, load: StepLoad, num_behind: int) -> _Choice:
        """As in the last step, as long as the same requests are in the same situation."""
        situation = self._situation_key(load, num_behind)
        last = self._last_choice
        if last is not None and last.situation == situation and last.growing == load.growing:
            last.num_steps += 1 + self._rests.num_rested
            return last
        self._settle_last_choice()
        kinds = [self.estimator.kind(request) for request in load.growing]
        decision = self._decide(load, kinds, situation)
        plan = plan_of(decision.best, load.growing, kinds)
        self._last_choice = _Choice(situation, load.growing, kinds, decision, plan)
        return self._last_choice

    def _settle_last_choice(self) -> None:
        """Requests that grew no tree while others did come back to the usual skill, little by little."""
        last, self._last_choice = self._last_choice, None
        if last is not None and last.plan.num_draft_tokens:
            for request in last.growing:
                if request.request_id not in last.plan.num_draft_tokens:
                    self.estimator.fade(request.request_id, last.num_steps)

    def _use(self, load: StepLoad, best: Forecast | None) -> DraftUse:
        """Whether draft rows are worth writing soon: at the load that there will be when all prompts are computed."""
        if self.is_hopeless:
            return DraftUse.HOPELESS
        if best is None or len(load.speculating) > len(load.growing):
            if not load.speculating:
                return DraftUse.GROWS
            num_requests = max(load.num_roots, len(load.speculating))
            context = sum(request.num_tokens for request in load.speculating)
            future = StepLoad(num_requests, load.speculating, load.speculating, context)
            kinds = [self.estimator.kind(request) for request in load.speculating]
            best = self._decide(future, kinds, self._situation_key(future, 0)).best
        return DraftUse.RESTS if best.candidate is PLAIN else DraftUse.GROWS

    def forecasts(self, load: StepLoad) -> list[Forecast]:
        """Every candidate's forecast, plain decoding first: what a plan for `load` chooses from."""
        kinds = [self.estimator.kind(request) for request in load.growing]
        seen = self._outlook(self._situation(load, counted(kinds), 0.0))
        return [seen.forecast(index) for index in range(len(seen.place))]

    def _situation_key(self, load: StepLoad, num_behind: int) -> tuple[int, ...]:
        """What tells a situation from others; steps like those before fall into the same one."""
        roots = max(1, load.num_roots)
        is_plain = self._current[:2] == PLAIN.key
        behind = _rounded(num_behind, 0) if is_plain and num_behind else 0
        limit = min(load.max_draft_tokens, MOST_COUNTED_ROWS)
        return (load.num_roots, load.num_other_rows // 16, _rounded(load.context // roots, 1), limit, behind)

    def _decide(self, load: StepLoad, kinds: Sequence[int], situation: tuple[int, ...]) -> _Decision:
        """The best candidate; asked again in the same situation, the same as before."""
        counts = counted(kinds)
        key = (*counts, *situation, *self._current)
        decision = self._decisions.get(key)
        if decision is None:
            if len(self._decisions) >= MOST_DECISIONS:
                self._decisions.clear()
            behind = situation[-1]
            entry = self.costs.draft_seconds(behind, ()) / PAYBACK_STEPS if behind else 0.0
            decision = self._decisions[key] = self._decision(self._situation(load, counts, entry))
        return decision

    def _situation(self, load: StepLoad, counts: tuple[int, ...], entry_seconds: float) -> Situation:
        for kind, count in enumerate(counts):
            if count:
                self.knowledge.meet(RequestClass(kind // len(SKILLS)))
        other = self.costs.verify_seconds(load.num_other_rows, 0, 0) if load.num_other_rows else 0.0
        return Situation(load, counts, other, entry_seconds, min(load.max_draft_tokens, MOST_COUNTED_ROWS))

    def _outlook(self, situation: Situation) -> Outlook:
        self.num_outlooks += 1
        table = self.knowledge.table(leading_class(situation.kinds))
        return outlook(table, situation, self.costs, self._objective)

    def _decision(self, situation: Situation) -> _Decision:
        seen = self._outlook(situation)
        score = seen.score
        best, current = int(score.argmax()), seen.find(self._current)
        if best and self.estimator.num_observed < EARLY_TREES:
            # Deep trees teach of all that are shallower, but not the other way round.
            best = seen.best_deep_tree or best
        elif current is not None:
            margin = SWITCH_MARGIN if (best == 0) != (current == 0) else MARGIN
            if best == 0 and self.estimator.num_observed < EARLY_PATHS:
                margin = EARLY_MARGIN
            if score[best] <= score[current] + margin * abs(score[current]):
                best = current
        detours = [seen.forecast(index) for index in seen.detours(best)] if best else []
        probe = None
        if best == 0:
            probe = self._probe(situation, seen)
        return _Decision(seen.forecast(best), tuple(detours), probe)

    def _probe(self, situation: Situation, seen: Outlook) -> ProbeTree | None:
        """What one request may grow among plain steps."""
        leading = leading_class(situation.kinds)
        if not self.bounds.reads_confidence:
            widest = self.knowledge.families(leading).shapes[-1]
            return probe_tree(widest, situation.load, situation.max_draft_tokens, self.costs)
        best = seen.best_tree
        candidate = self.knowledge.table(leading).candidate(PROBE_PLACE if best is None else int(seen.place[best]))
        return cut_probe(candidate, leading * len(SKILLS) + USUAL_SKILL, situation.load, self.costs)

    def _spare_seconds(self, load: StepLoad) -> float:
        return self.costs.verify_seconds(load.num_roots + load.num_other_rows, load.context, load.context)

    def wants_draft(self, request: Request) -> bool:
        """See `StepPlanner`."""
        self._num_requests += 1
        is_off = self.is_hopeless or self._num_plain_steps >= STEPS_TO_SETTLE
        return not is_off or self._num_requests % PROBED_REQUESTS == 0

    @property
    def speculates(self) -> bool:
        """See `StepPlanner`."""
        return self._num_plain_steps == 0

    def glance(self, seconds: float) -> None:
        """See `StepPlanner`."""
        if self.last is not None:
            self._attention.see(seconds, self.last.seconds)

    def observe(self, report: StepReport) -> None:
        """See `StepPlanner`. Reports are read several at once, which takes far less time than one by one."""
        self._reports.append(report)
        if report.seconds is not None and self._is_best:
            self.glance(report.seconds.total)
        self._probes.observe(report.outcomes)

    def forget(self, request_id: str) -> None:
        """See `StepPlanner`."""
        if self._reports:
            self._read_reports()
        self._settle_last_choice()
        self.estimator.forget(request_id)

    def _read_reports(self) -> None:
        """Learn from the steps of late, and make choices anew where it matters."""
        self._settle_last_choice()
        observe_times(self._reports, self.costs, len(self._reports) if self._attention.is_alert else MOST_SIZES)
        for report in self._reports:
            self._learn_from(report.shape, report.outcomes)
        num_steps = len(self._reports)
        self._reports.clear()
        if self.estimator.num_observed >= PATHS_READ_AT_ONCE or self._num_plain_steps >= REPORTS_READ_AT_ONCE:
            self._num_read_at_once = REPORTS_READ_AT_ONCE
        has_moved = self.knowledge.refresh(num_steps, self._mask_share)
        if has_moved or self.costs.version != self._known_version:
            self._known_version = self.costs.version
            self._decisions.clear()
        if has_moved and self._num_plain_steps:
            self._judge()

    def _learn_from(self, shape: TreeShape, outcomes: Sequence[TreeOutcome]) -> None:
        observe, observe_cut = self.estimator.observe, self.estimator.observe_cut
        for each in outcomes:
            if isinstance(shape, StaticTree):
                observe(each.request_id, shape, each.num_draft_tokens, each.accepted, each.is_usual)
            elif each.tree is not None:
                observe_cut(each.request_id, shape, each.tree, each.is_usual)

    def _mask_share(self) -> float:
        costs = self.costs
        span = ROWS_OF_A_SLOPE - 1
        rows = costs.verify_seconds(ROWS_OF_A_SLOPE, 0, 0) - costs.verify_seconds(1, 0, 0)
        rows += costs.other_seconds(ROWS_OF_A_SLOPE, 1) - costs.other_seconds(1, 1)
        return costs.mask_seconds * span / max(rows, 1e-9)

    def _judge(self) -> None:
        """Find the draft hopeless when it would not even help a request that has the machine for itself."""
        judged = [each for each in RequestClass if self._num_trials(each) >= TRIALS_TO_JUDGE]
        self.is_hopeless = bool(judged) and not any(self._helps_alone(each) for each in judged)

    def _num_trials(self, request_class: RequestClass) -> float:
        if self.bounds.reads_confidence:
            return self.estimator.cut[request_class].num_trees
        return self.estimator.tables[request_class].num_trials

    def _helps_alone(self, request_class: RequestClass) -> bool:
        kinds = [0] * NUM_KINDS
        kinds[request_class * len(SKILLS) + USUAL_SKILL] = 1
        self.knowledge.meet(request_class)
        load = StepLoad(1, (), (), ALONE_CONTEXT)
        seen = outlook(
            self.knowledge.table(request_class),
            Situation(load, tuple(kinds), 0.0, 0.0, MOST_COUNTED_ROWS),
            self.costs,
            Objective(),
        )
        return bool(seen.score.max() > seen.score[0])


def _rounded(number: int, num_bits: int) -> int:
    """Up to a number with so many bits behind its first, so that steps of about the same size count as the same.

    Worked example, 1 bit, which makes two groups of every doubling: 65 to 96 become 96, 97 to 128 become 128.
    """
    shift = max(0, number.bit_length() - 1 - num_bits)
    return (number + (1 << shift) - 1) >> shift << shift
