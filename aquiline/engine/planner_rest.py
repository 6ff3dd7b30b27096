"""When steps need no thought: behind some that were planned alike, the next few repeat them.

While the same requests decode on, a plan mostly says again what the last one said. So a step under a planner costs what
it costs an engine without one, but for one in a few.
"""

from __future__ import annotations

from aquiline.engine.plan import StepPlan
from aquiline.speculation import NO_TREE

# After so many plans in a row that ask for the same, one step repeats them, and later so many; more where trees grow.
PLANS_BEFORE_REST = 4
MOST_STEPS_OF_A_REST = 2
MOST_STEPS_WITH_TREES = 7

IDLE_PLAN = StepPlan(NO_TREE, {}, {})


class Rests:
    """Counts plans that ask for the same.

    Worked example, all plans idle: four plans, one step of rest, and from then on a plan and two steps of
    rest in turn.

    Attributes:
        plan: the last one.
        num_rested: steps that repeated it.
    """

    def __init__(self) -> None:
        self.plan = IDLE_PLAN
        self.num_rested = 0
        self._num_alike = 0
        self._num_left = 0
        self._length = 1

    def count(self, plan: StepPlan, may_rest: bool) -> None:
        """A plan was made.

        Args:
            may_rest: False: the next step has to be planned, whatever this one says.
        """
        self.num_rested = 0
        # Requests that come and go are planned for at once; what is asked for them stays the same.
        is_alike, self.plan, self._num_left = plan.shape == self.plan.shape, plan, 0
        asks_for_more = bool(plan.num_new_draft_rows or plan.gives_up)
        if not is_alike or not may_rest or asks_for_more:
            self._num_alike, self._length = 0, 1
        if asks_for_more:
            return
        self._num_alike += 1
        if self._num_alike >= PLANS_BEFORE_REST:
            self._num_left = self._length
            most = MOST_STEPS_WITH_TREES if plan.num_draft_tokens else MOST_STEPS_OF_A_REST
            self._length = min(2 * self._length, most)

    def pause(self) -> None:
        """A step went another way, to learn; the plans around it may ask for the same all the while."""
        self.num_rested = self._num_left = 0

    def take(self) -> bool:
        """Whether one more step may repeat the last plan; counts it."""
        if self._num_left == 0:
            return False
        self._num_left -= 1
        self.num_rested += 1
        return True
