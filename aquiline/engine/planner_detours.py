"""When a step goes another way than the best, so that it is known what comes of that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aquiline.engine.cost_model import StepCosts
from aquiline.engine.forecast import Forecast
from aquiline.engine.plan import StepLoad, StepPlan, TreeOutcome
from aquiline.engine.planner_bursts import BURST_STEPS, Burst
from aquiline.engine.planner_candidates import PLAIN
from aquiline.engine.planner_decisions import Decision, is_close
from aquiline.engine.planner_hindsight import Hindsight
from aquiline.engine.planner_probes import LEAST_DETOUR_SHARE, Probes, regret_of
from aquiline.engine.planner_shares import plan_of

# A burst begins when the load has been what it is for so many steps.
STEPS_BEFORE_A_BURST = 12


@dataclass(frozen=True, slots=True)
class Situated:
    """The choice of a step, and whose.

    Attributes:
        kinds: of the growing requests of `load`.
        num_steps: for which this one stands, those before it that rested and itself.
    """

    load: StepLoad
    decision: Decision
    kinds: Sequence[int]
    num_steps: int


@dataclass(frozen=True, slots=True)
class Detour:
    """What a step does instead of the best.

    Attributes:
        forecast: of a step of a burst; None: a single step, from whose reports the planner learns.
    """

    plan: StepPlan
    forecast: Forecast | None = None


class Detours:
    """Chooses steps that go another way, one by one or several in a row.

    Args:
        hindsight: knows which sorts of steps have run.
        reads_confidence: trees end where the draft has none.
    """

    def __init__(self, costs: StepCosts, hindsight: Hindsight, reads_confidence: bool) -> None:
        self._costs = costs
        self._hindsight = hindsight
        self._reads_confidence = reads_confidence
        self._probes = Probes()
        self._burst: Burst | None = None
        self._num_roots = self._num_at_load = 0

    def see_load(self, num_roots: int, num_steps: int) -> None:
        """So many requests decode in the next step; the last plan has served `num_steps`."""
        self._num_at_load = self._num_at_load + num_steps if num_roots == self._num_roots else 0
        self._num_roots = num_roots

    def next_of(self, step: Situated) -> Detour | None:
        """What the next step does instead of the best; None: nothing."""
        if self._burst is not None and not self._burst.goes_on(step.load.growing):
            self._burst = None
        single = self._single(step) if self._burst is None else None
        if self._burst is not None:
            return Detour(self._burst.wanted, self._burst.forecast)
        return None if single is None else Detour(single)

    def end(self) -> None:
        """No request can grow a tree."""
        self._burst = None

    def follow(self, plan: StepPlan) -> None:
        """The step runs with this plan, in which drafts that are behind may hold no trees yet."""
        if self._burst is not None:
            self._burst.follow(plan)

    @property
    def burst(self) -> Burst | None:
        """Steps in a row that run now."""
        return self._burst

    def observe(self, outcomes: Sequence[TreeOutcome]) -> None:
        """A step has run."""
        self._probes.observe(outcomes)

    def _single(self, step: Situated) -> StepPlan | None:
        """A single step; None: there is none, or a burst has begun."""
        decision, growing = step.decision, step.load.growing
        seconds = step.num_steps * decision.best.seconds
        if decision.probe is not None:
            return self._probes.tree_among_plain(step.load, seconds, decision.probe, self._costs)
        may_burst = decision.may_burst and self._num_at_load >= STEPS_BEFORE_A_BURST
        is_unknown = may_burst and self._is_unknown(decision)
        detour = decision.seen.forecast(decision.detours[0] if is_unknown else self._probes.next_of(decision.detours))
        is_burst = may_burst and (detour.candidate is PLAIN) != (decision.best.candidate is PLAIN)
        if not is_unknown and not self._probes.detour(seconds, self._lost_by(detour, decision, is_burst)):
            return None
        if is_burst:
            self._burst = Burst.of(detour, growing, step.kinds)
            return None
        return plan_of(detour, growing, step.kinds)

    def _lost_by(self, detour: Forecast, decision: Decision, is_burst: bool) -> float:
        """Seconds that a detour is reckoned to lose, all its steps together."""
        lost = regret_of(decision.best, detour)
        if self._reads_confidence:
            lost = max(lost, LEAST_DETOUR_SHARE * decision.best.seconds)
        return max(decision.lost_seconds, lost * BURST_STEPS if is_burst else lost)

    def _is_unknown(self, decision: Decision) -> bool:
        """Whether the other sort of steps was never seen at this load, and is nearly as good."""
        other = decision.seen.forecast(decision.detours[0])
        grows = other.candidate is not PLAIN
        return not self._hindsight.has_seen(self._num_roots, grows) and is_close(other, decision.best)
