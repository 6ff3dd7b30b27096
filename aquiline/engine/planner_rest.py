"""When steps need no thought: behind some that were planned alike, the next few repeat them.

While the same requests decode on, a plan mostly says again what the last one said. So a step under a planner costs what
it costs an engine without one, but for one in a few.
"""

from __future__ import annotations

from dataclasses import dataclass

from aquiline.engine.plan import StepPlan
from aquiline.speculation import NO_TREE

# After so many plans in a row that ask for the same, so many steps repeat them, and later more and more.
PLANS_BEFORE_REST = 2
STEPS_OF_THE_FIRST_REST = 2

IDLE_PLAN = StepPlan(NO_TREE, {}, {})


@dataclass(frozen=True, slots=True)
class Lessons:
    """How many trees and steps must be known for one of `num_steps` steps to suffice for learning."""

    num_trees: int
    num_known_steps: int
    num_steps: int


LESSONS = (Lessons(1024, 512, 16), Lessons(512, 256, 8), Lessons(128, 96, 4), Lessons(48, 32, 2))
# Reports are read several at once, and until then there is nothing new to plan with: so many steps repeat any plan.
STEPS_OF_A_SHORT_REST = 3
# Where much is known, one of so many resting steps with trees teaches.
RESTS_OF_A_LESSON = 2
# So many steps in a row that take so many times what was foretold end a rest: nobody tries a bad choice 31 times.
SURPRISING_RATIO = 1.4
SURPRISES_THAT_END_A_REST = 3
# After so many of them in a row, one of so many suffices for learning, however little is known of the draft.
PLAIN_STEPS_TO_SETTLE = 48
STEPS_OF_A_PLAIN_LESSON = 4


def steps_per_lesson(num_trees: int, num_known_steps: int, num_plain_steps: int = 0) -> int:
    """Every step teaches at first, and later fewer and fewer.

    Args:
        num_trees, num_known_steps: trees and steps from which the planner has learnt. Trees that foretell less than one
            token in the mean count as one for each token.
        num_plain_steps: those in a row up to now for which nothing better was found than plain decoding.
    """
    known = (each for each in LESSONS if num_trees >= each.num_trees and num_known_steps >= each.num_known_steps)
    least = STEPS_OF_A_PLAIN_LESSON if num_plain_steps >= PLAIN_STEPS_TO_SETTLE else 1
    return max(least, next((each.num_steps for each in known), 1))


def most_rest(per_lesson: int, is_alert: bool = False) -> int:
    """How many steps may repeat a plan where one of `per_lesson` teaches.

    Args:
        is_alert: steps are not what was foretold of them.
    """
    return STEPS_OF_A_SHORT_REST if is_alert or per_lesson == 1 else 2 * per_lesson - 1


def rests_of_a_lesson(plan: StepPlan, per_lesson: int, is_alert: bool = False) -> int:
    """Of so many steps that repeat a plan, one teaches; 0: none."""
    if is_alert:
        return 1
    if not plan.num_draft_tokens:
        return 0
    return 1 if per_lesson == 1 else RESTS_OF_A_LESSON


class Rests:
    """Counts plans that ask for the same.

    Worked example, all plans idle, at most seven steps of rest: two plans and two steps of rest, a plan and four steps,
    and from then on a plan and seven in turn.

    Attributes:
        plan: the last one.
        num_rested: steps that repeated it.
        teaches: whether something is to be learnt from the last step that repeated it.
    """

    def __init__(self) -> None:
        self.plan = IDLE_PLAN
        self.num_rested = 0
        self.teaches = False
        self._per_lesson = 0
        self._num_alike = 0
        self._num_left = 0
        self._length = STEPS_OF_THE_FIRST_REST
        self._num_surprises = 0

    def count(self, plan: StepPlan, most: int, per_lesson: int = 0) -> None:
        """A plan was made.

        Args:
            most: steps that may repeat it; 0: the next step has to be planned, whatever this one says.
            per_lesson: the `rests_of_a_lesson`.
        """
        self.num_rested, self._per_lesson = 0, per_lesson
        # Requests that come and go are planned for at once; what is asked for them stays the same.
        is_alike, self.plan, self._num_left = plan.shape == self.plan.shape, plan, 0
        asks_for_more = bool(plan.num_new_draft_rows or plan.gives_up)
        # Where much is known, a new tree or a new request is no reason to think of the next steps one by one.
        if not most or (most <= STEPS_OF_A_SHORT_REST and (asks_for_more or not is_alike)):
            self._num_alike, self._length = 0, STEPS_OF_THE_FIRST_REST
        if asks_for_more:
            return
        self._num_alike += 1
        if self._num_alike >= PLANS_BEFORE_REST:
            self._num_left = min(most, self._length)
            self._length = min(2 * self._length, max(STEPS_OF_THE_FIRST_REST, most))

    def pause(self) -> None:
        """A step went another way, to learn; the plans around it may ask for the same all the while."""
        self.num_rested = self._num_left = 0

    def see(self, seconds: float, foretold: float) -> None:
        """A step has run as it was planned."""
        self._num_surprises = self._num_surprises + 1 if seconds > SURPRISING_RATIO * foretold else 0
        if self.is_surprised:
            self._num_left = 0

    @property
    def is_surprised(self) -> bool:
        """Whether the last steps have taken far longer than they should."""
        return self._num_surprises >= SURPRISES_THAT_END_A_REST

    def take(self) -> bool:
        """Whether one more step may repeat the last plan; counts it."""
        if self._num_left == 0:
            return False
        self._num_left -= 1
        self.num_rested += 1
        self.teaches = self._per_lesson > 0 and self.num_rested % self._per_lesson == 0
        return True
