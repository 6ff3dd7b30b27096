"""Some steps in a row that go another way than the best, so that it is seen at its usual speed.

A step with trees among plain steps finds neither the draft's weights nor its code in the processor's caches, so one
alone takes longer than those that follow each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aquiline.engine.forecast import Forecast
from aquiline.engine.plan import StepPlan
from aquiline.engine.planner_hindsight import STEPS_TO_WARM_UP
from aquiline.engine.planner_shares import holds_all, plan_of
from aquiline.request import Request

BURST_STEPS = 8
# A draft that is behind catches up first, within so many steps.
MOST_STEPS_BEFORE = 24


@dataclass
class Burst:
    """Steps of the same requests under one forecast.

    Attributes:
        wanted: what all of them ask for.
        plan: the last one that was made; None before the first.
    """

    forecast: Forecast
    growing: Sequence[Request]
    wanted: StepPlan
    plan: StepPlan | None = None
    _num_before: int = 0
    _num_run: int = 0

    @classmethod
    def of(cls, forecast: Forecast, growing: Sequence[Request], kinds: Sequence[int]) -> Burst:
        """One that begins with the next step; `kinds` of the growing requests."""
        return cls(forecast, growing, plan_of(forecast, growing, kinds))

    @property
    def is_running(self) -> bool:
        """Whether the last plan was all that is wanted."""
        return self._num_run > 0

    @property
    def is_warm(self) -> bool:
        """Whether steps take what they usually take."""
        return self._num_run > STEPS_TO_WARM_UP

    def follow(self, plan: StepPlan) -> None:
        """A step runs with this plan."""
        self.plan = plan
        if holds_all(plan, self.wanted):
            self._num_run += 1
        else:
            self._num_before += 1

    def goes_on(self, growing: Sequence[Request]) -> bool:
        """Whether the next step belongs to it as well, in which these requests can grow trees."""
        is_over = self._num_run >= BURST_STEPS or self._num_before >= MOST_STEPS_BEFORE
        return not is_over and growing == self.growing

    def repeated(self) -> StepPlan | None:
        """The last plan once more; None: the next step has to be planned."""
        if not self.is_running or self._num_run >= BURST_STEPS:
            return None
        self._num_run += 1
        return self.plan
