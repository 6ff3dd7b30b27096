"""Tells the planner what a step was like: its size, its time, and what became of its trees."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import takewhile
from operator import ge

from aquiline.engine.commit import AcceptedRun
from aquiline.engine.cost_model import StepSeconds, StepSize
from aquiline.engine.forecast_tally import ForecastTally
from aquiline.engine.inputs import StepLayout
from aquiline.engine.plan import StepPlanner, StepReport, TreeOutcome
from aquiline.engine.planner import AutoPlanner
from aquiline.engine.stats import PhaseClock
from aquiline.speculation import StaticTree, TreeShape


class StepObserver:
    """Watches the steps of one engine for its planner; costs nothing where the planner does not learn.

    Attributes:
        tally: compares forecasts with what came of them; None: nothing does.
    """

    def __init__(self, planner: StepPlanner, clock: PhaseClock) -> None:
        self._planner = planner
        self._clock = clock
        self._before: dict[str, float] = {}
        self._num_new_rows = 0
        self.tally: ForecastTally | None = None

    def start(self, step: StepLayout) -> None:
        """A step is laid out, and none of its phases is over."""
        if self._planner.learns:
            self._before = dict(self._clock.seconds)
            self._num_new_rows = sum(scheduled.num_due_draft_rows for scheduled in step.ordered)

    def finish(self, step: StepLayout, shape: TreeShape, runs: Mapping[str, AcceptedRun]) -> None:
        """All phases of the step are over."""
        if not self._planner.learns:
            return
        outcomes = []
        for scheduled in step.growing_requests:
            request, held = scheduled.request, scheduled.num_held(shape)
            if request.own_shape is not None:
                continue
            run = runs.get(request.request_id)
            if run is not None:
                # A path that leaves the grown nodes for looked-up ones is a miss of the draft model.
                accepted = tuple(takewhile(partial(ge, held), run.nodes))
                outcomes.append(TreeOutcome(request.request_id, held, accepted, request.params.guided is None))
        # A prefill attends in another way, and trees of other shapes are drafted apart from those of the step's.
        is_usual = not step.prefill_requests and all(s.request.own_shape is None for s in step.growing_requests)
        seconds = self._seconds() if is_usual else None
        size = step_size(step, shape, self._num_new_rows)
        report = StepReport(shape, size, seconds, outcomes)
        if self.tally is not None and isinstance(self._planner, AutoPlanner):
            self.tally.add(self._planner.last, report)
        self._planner.observe(report)

    def _seconds(self) -> StepSeconds:
        spent = {phase: seconds - self._before[phase] for phase, seconds in self._clock.seconds.items()}
        host = spent["schedule"] + spent["grammar"] + spent["commit"]
        return StepSeconds(spent["verify"], spent["draft"], spent["sample"], host)


def step_size(step: StepLayout, shape: TreeShape, num_new_rows: int) -> StepSize:
    """Size of a step that has just run; its context is that after the step, a few tokens more than before."""
    context = row_context = num_rows = num_drawn = 0
    for scheduled in step.ordered:
        rows = step.num_rows(scheduled)
        num_rows += rows
        if scheduled.num_new_tokens == 1 and scheduled.draws_token:
            context += scheduled.request.num_computed_tokens
            row_context += rows * scheduled.request.num_computed_tokens
            num_drawn += rows
        else:
            num_drawn += scheduled.draws_token
    num_trees = len(step.growing_requests)
    widths = shape.level_widths if isinstance(shape, StaticTree) else ()
    return StepSize(
        num_rows=num_rows,
        num_drawn_rows=num_drawn,
        num_requests=len(step.ordered),
        context=context,
        row_context=row_context,
        num_new_rows=num_new_rows,
        level_rows=tuple(width * num_trees for width in widths) if num_trees else (),
    )
