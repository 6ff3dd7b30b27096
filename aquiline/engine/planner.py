"""How much to speculate in a step.

    rate(tree) = committed tokens expected in a step / time of that step

Every step compares plain decoding with some hundred choices by what they are expected to commit (`acceptance`) and to
cost (`cost_model`). Where the host sees the draft's confidence, these are places to end a tree (`cut_candidates`), the
same for all requests but those whose drafts fail, which hold none. Elsewhere they are fixed shapes (`tree_families`):
all requests of a step share one, and each holds its first nodes, as many as its own acceptance justifies.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from aquiline.engine.acceptance import AcceptanceEstimator
from aquiline.engine.cost_model import StepCosts
from aquiline.engine.draft_debt import DraftUse, debt_of
from aquiline.engine.forecast import Forecast
from aquiline.engine.plan import StepLoad, StepPlan, StepReport, TreeOutcome
from aquiline.engine.planner_attention import Attention
from aquiline.engine.planner_candidates import PLAIN
from aquiline.engine.planner_decisions import Decider, Decision, PlannerSettings, situation_key
from aquiline.engine.planner_detours import Detours, Situated
from aquiline.engine.planner_hindsight import Foretold
from aquiline.engine.planner_reports import observe_times
from aquiline.engine.planner_rest import IDLE_PLAN, Rests, most_rest, rests_of_a_lesson, steps_per_lesson
from aquiline.engine.planner_shares import holds_all, plan_of
from aquiline.request import Request
from aquiline.speculation import StaticTree, TreeShape

# How often a request is followed all the same when its draft is useless or rests.
PROBED_REQUESTS = 8
# So many reports are read at once, when so many accepted paths were seen, or steps are plain.
REPORTS_READ_AT_ONCE = 8
REPORTS_READ_EARLY = 4
PATHS_READ_AT_ONCE = 64
# Steps whose trees end where the draft has no confidence have many sizes; so many stand for all.
MOST_SIZES = 3
# After so many plain steps in a row, drafts follow few of the new requests.
STEPS_TO_SETTLE = 256


@dataclass(frozen=True, slots=True)
class _Glance:
    """A step that ran: its time without planning, the draft's tokens that were committed, and what was foretold.

    Attributes:
        is_best: its plan was that of the best choice.
    """

    seconds: float
    num_accepted: int
    foretold: Foretold | None
    is_best: bool


@dataclass(slots=True)
class _Choice:
    """What was chosen for some requests, and for how many steps it has held."""

    situation: tuple[int, ...]
    growing: Sequence[Request]
    kinds: Sequence[int]
    decision: Decision
    plan: StepPlan
    version: int
    num_steps: int = 1


class AutoPlanner:
    """Chooses by measured cost and learnt acceptance.

    Args:
        estimator: what is known of the draft already; None begins with the priors.

    Attributes:
        last: forecast of the last plan, for those who want to see why.
        decider: compares candidates.
    """

    def __init__(
        self, costs: StepCosts, settings: PlannerSettings, estimator: AcceptanceEstimator | None = None
    ) -> None:
        self.costs = costs
        self.bounds = settings.bounds
        self.learns = True
        self.planning_seconds = 0.0
        self.estimator = estimator or AcceptanceEstimator(settings.priors)
        self.last: Forecast | None = None
        self.is_hopeless = False
        self.decider = Decider(costs, settings, self.estimator)
        self._debt = settings.debt
        self._detours = Detours(costs, self.decider.hindsight, settings.bounds.reads_confidence)
        self._rests = Rests()
        self._attention = Attention()
        self._was_alert = False
        # Whether the last plan is what `last` foretells; and what is foretold of it, where all of it is planned.
        self._is_best = True
        self._foretold: Foretold | None = None
        self._current = (*PLAIN.key, 0)
        self._num_requests = 0
        self._num_roots = 0
        self._num_plain_steps = self._num_since_lesson = self._num_since_reading = 0
        self._last_choice: _Choice | None = None
        self._reports: list[StepReport] = []
        self._glances: list[_Glance] = []
        # Few at first, since each says much.
        self._num_read_at_once = REPORTS_READ_EARLY if settings.bounds.reads_confidence else 1

    def plan(self, load: StepLoad) -> StepPlan:
        """See `StepPlanner`."""
        start = time.perf_counter()
        self._attend()
        num_telling = min(self.estimator.num_trees, int(self.estimator.num_foretold))
        per_lesson = steps_per_lesson(num_telling, self.costs.num_observed, self._num_plain_steps)
        self._num_since_lesson += 1 + self._rests.num_rested
        self._num_since_reading += 1 + self._rests.num_rested
        is_due = self._num_since_lesson >= per_lesson
        self.learns = is_due or self._attention.is_alert or self._rests.is_surprised
        self._is_best, self._foretold = True, None
        plan = self._new_plan(load)
        if self.learns:
            self._num_since_lesson = 0
        if self._is_best:
            is_alert = self._attention.is_alert
            self._rests.count(plan, most_rest(per_lesson, is_alert), rests_of_a_lesson(plan, per_lesson, is_alert))
        else:
            self._rests.pause()
        self.planning_seconds = time.perf_counter() - start
        return plan

    def rest(self) -> StepPlan | None:
        """See `StepPlanner`."""
        burst = self._detours.burst
        if burst is not None:
            plan = burst.repeated()
            self.learns = plan is not None and burst.is_warm
        else:
            plan = self._rests.plan if self._rests.take() else None
            self.learns = plan is not None and self._rests.teaches
        self.planning_seconds = 0.0
        return plan

    def _new_plan(self, load: StepLoad) -> StepPlan:
        # Trees among plain steps are rare, and each says much.
        is_news = self._num_plain_steps > 0 and self._reports and self._reports[-1].outcomes
        if is_news or len(self._reports) >= self._num_read_at_once:
            self._read_reports()
        num_steps = 1 + self._rests.num_rested
        self._num_roots = load.num_roots
        self._detours.see_load(load.num_roots, num_steps)
        debt = debt_of(load)
        if not load.growing:
            plan, seconds = IDLE_PLAN, self._spare_seconds(load)
            whole = seconds + self.costs.other_seconds(load.num_roots, load.num_roots)
            self.last = Forecast(PLAIN, 0, float(load.num_roots), whole, whole, 0.0)
            self._detours.end()
            return self._debt.plan(load, plan, debt, seconds, self.costs, self._use(load, None))
        choice = self._choose(load, debt.num_behind)
        decision = choice.decision
        best = self.last = decision.best
        self._current = best.key
        plan = choice.plan
        self._num_plain_steps = self._num_plain_steps + num_steps if best.candidate is PLAIN else 0
        detour = self._detours.next_of(Situated(load, decision, choice.kinds, num_steps))
        shown: Forecast | None = best
        if detour is not None:
            plan, shown, self._is_best = detour.plan, detour.forecast, False
            self.learns = shown is None
        settled = self._debt.plan(load, plan, debt, best.seconds, self.costs, self._use(load, best))
        self._detours.follow(settled)
        if shown is not None and holds_all(settled, plan):
            grows = shown.candidate is not PLAIN
            self._foretold = Foretold(load.num_roots, grows, shown.seconds, shown.expected, shown.correction)
        return settled

    def _choose(self, load: StepLoad, num_behind: int) -> _Choice:
        """As in the last step, as long as the same requests are in the same situation."""
        situation = situation_key(load, num_behind, self._is_plain)
        last = self._last_choice
        is_same = last is not None and last.situation == situation and last.growing == load.growing
        if last is not None and is_same and last.version == self.decider.hindsight.version:
            last.num_steps += 1 + self._rests.num_rested
            return last
        self._settle_last_choice()
        kinds = [self.estimator.kind(request) for request in load.growing]
        decision = self.decider.decide(load, kinds, situation, self._current)
        plan = plan_of(decision.best, load.growing, kinds)
        self._last_choice = _Choice(situation, load.growing, kinds, decision, plan, self.decider.hindsight.version)
        return self._last_choice

    def _settle_last_choice(self) -> None:
        """Requests that grew no tree while others did come back to the usual skill, little by little."""
        last, self._last_choice = self._last_choice, None
        if last is not None and last.plan.num_draft_tokens:
            for request in last.growing:
                if request.request_id not in last.plan.num_draft_tokens:
                    self.estimator.fade(request.request_id, last.num_steps + self._rests.num_rested)

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
            situation = situation_key(future, 0, self._is_plain)
            best = self.decider.decide(future, kinds, situation, self._current).best
        return DraftUse.RESTS if best.candidate is PLAIN else DraftUse.GROWS

    def forecasts(self, load: StepLoad) -> list[Forecast]:
        """Every candidate's forecast, plain decoding first: what a plan for `load` chooses from."""
        return self.decider.forecasts(load, [self.estimator.kind(request) for request in load.growing])

    @property
    def _is_plain(self) -> bool:
        return self._current[:2] == PLAIN.key

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

    def glance(self, seconds: float, num_accepted: int) -> None:
        """See `StepPlanner`."""
        told = self._foretold or self.last
        if told is not None and not self.costs.learns:
            seconds = told.seconds
        self._glances.append(_Glance(seconds, num_accepted, self._foretold, self._is_best))
        if self._is_best and self.last is not None:
            self._rests.see(seconds, self.last.seconds)

    def _attend(self) -> None:
        """Compare the steps since the last plan with what was foretold."""
        hindsight, last, num_roots = self.decider.hindsight, self.last, self._num_roots
        for glance in self._glances:
            num_committed = num_roots + glance.num_accepted
            if glance.foretold is None:
                hindsight.interrupt()
            else:
                hindsight.see(glance.foretold, glance.seconds, num_committed)
            # Steps that go another way than the best, to learn, are no news.
            if glance.is_best and last is not None:
                grows = last.candidate is not PLAIN
                self._attention.see(glance.seconds, last.seconds, num_roots if grows else 0)
                if grows:
                    self._attention.see_tokens(num_committed, last.expected, num_roots)
        self._glances.clear()
        if self._attention.is_alert != self._was_alert:
            # Where an alert begins, steps take another time than before, and while it lasts, forecasts follow.
            self._was_alert = self._attention.is_alert
            hindsight.forget_times()
        hindsight.refresh()

    def observe(self, report: StepReport) -> None:
        """See `StepPlanner`. Reports are read several at once, which takes far less time than one by one."""
        self._reports.append(report)
        self._detours.observe(report.outcomes)

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
        num_changes = self.estimator.num_changes
        for report in self._reports:
            self._learn_from(report.shape, report.outcomes)
        if self.estimator.num_changes != num_changes:
            self.decider.hindsight.forget_gains()
        # Few of plain steps are reported, and those with trees among them shall count soon.
        num_steps = self._num_since_reading if self._num_plain_steps else len(self._reports)
        self._num_since_reading = 0
        self._reports.clear()
        if self.estimator.num_trees >= PATHS_READ_AT_ONCE or self._num_plain_steps >= REPORTS_READ_AT_ONCE:
            self._num_read_at_once = REPORTS_READ_AT_ONCE
        if self.decider.refresh(num_steps) and self._num_plain_steps:
            self.is_hopeless = self.decider.is_hopeless()

    def _learn_from(self, shape: TreeShape, outcomes: Sequence[TreeOutcome]) -> None:
        observe, observe_cut = self.estimator.observe, self.estimator.observe_cut
        for each in outcomes:
            if isinstance(shape, StaticTree):
                size, accepted = each.num_draft_tokens, each.accepted
                observe(each.request_id, shape, size, accepted, each.is_usual, each.request_class)
            elif each.tree is not None:
                observe_cut(each.request_id, shape, each.tree, each.is_usual, each.request_class)
