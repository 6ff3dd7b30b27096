"""When plain steps need no thought: behind some that were planned alike, the next few repeat them.

While trees do not pay, and the same requests decode on, a plan would say again what the last one said. So a plain step
under a planner costs what it costs an engine without one, but for every third.
"""

from __future__ import annotations

from aquiline.engine.plan import StepPlan
from aquiline.speculation import NO_TREE

# After so many plans in a row that ask for nothing, one step repeats them, and later so many.
PLANS_BEFORE_REST = 4
MOST_STEPS_OF_A_REST = 2

IDLE_PLAN = StepPlan(NO_TREE, {}, {})


class Rests:
    """Counts plans that ask for nothing.

    Worked example, all plans idle: four plans, one step of rest, and from then on a plan and two steps of
    rest in turn.

    Attributes:
        num_rested: steps that repeated the last plan.
    """

    def __init__(self) -> None:
        self.num_rested = 0
        self._num_idle = 0
        self._num_left = 0
        self._length = 1

    def count(self, plan: StepPlan) -> None:
        """A plan was made."""
        self.num_rested = 0
        if plan.num_draft_tokens or plan.num_new_draft_rows or plan.gives_up:
            self._num_idle, self._num_left, self._length = 0, 0, 1
            return
        self._num_idle += 1
        if self._num_idle >= PLANS_BEFORE_REST:
            self._num_left = self._length
            self._length = min(2 * self._length, MOST_STEPS_OF_A_REST)

    def take(self) -> bool:
        """Whether one more step may repeat the last plan; counts it."""
        if self._num_left == 0:
            return False
        self._num_left -= 1
        self.num_rested += 1
        return True
