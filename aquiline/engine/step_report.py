"""Tells the planner what a step was like: its size, its time, and what became of its trees."""

from __future__ import annotations

from collections.abc import Mapping

from aquiline.engine.acceptance_prior import class_of, has_hidden_rules
from aquiline.engine.commit import AcceptedRun
from aquiline.engine.cost_model import StepSeconds, StepSize
from aquiline.engine.cut_tree import CutTree
from aquiline.engine.forecast_tally import ForecastTally
from aquiline.engine.inputs import StepLayout
from aquiline.engine.plan import StepPlanner, StepReport, TreeOutcome
from aquiline.engine.planner import AutoPlanner
from aquiline.engine.schedule import ScheduledRequest
from aquiline.engine.stats import PhaseClock
from aquiline.engine.tree import DraftTree
from aquiline.speculation import DynamicTree, StaticTree, TreeShape

STEPS_TO_WARM_UP = 2


class StepObserver:
    """Watches the steps of one engine for its planner; costs next to nothing where the planner does not learn.

    Attributes:
        tally: compares forecasts with what came of them; None: nothing does.
    """

    def __init__(self, planner: StepPlanner, clock: PhaseClock) -> None:
        self._planner = planner
        self._clock = clock
        self._before: dict[str, float] = {}
        self._num_new_rows = 0
        self._num_decoding = 0
        self.tally: ForecastTally | None = None

    def start(self, step: StepLayout) -> None:
        """A step is laid out, and none of its phases is over."""
        if self._planner.learns:
            self._before = self._clock.seconds.copy()
            self._num_new_rows = sum([scheduled.num_due_draft_rows for scheduled in step.ordered])

    def finish(
        self, step: StepLayout, shape: TreeShape, tree: DraftTree | None, runs: Mapping[str, AcceptedRun]
    ) -> None:
        """All phases of the step are over.

        Args:
            shape: that the step's trees were asked to have.
            tree: of the drawing requests, as it was verified; None: no request had one.
        """
        is_usual = self._is_usual(step)
        # Plans say nothing of what was looked up.
        if is_usual and not any(scheduled.known.num_draft_tokens for scheduled in step.tree_requests):
            num_accepted = 0 if tree is None else num_accepted_drafts(step, shape, tree, runs)
            self._planner.glance(self._clock.elapsed - self._planner.planning_seconds, num_accepted)
        if not self._planner.learns:
            if self.tally is not None and not step.prefill_requests:
                self.tally.add_unread(shape)
            return
        seconds = self._seconds() if is_usual else None
        size = step_size(step, shape, tree, self._num_new_rows)
        outcomes = tree_outcomes(step, shape, tree, runs)
        report = StepReport(shape, size, seconds, outcomes)
        if self.tally is not None and isinstance(self._planner, AutoPlanner):
            self.tally.add(self._planner.last, report)
        self._planner.observe(report)

    def _is_usual(self, step: StepLayout) -> bool:
        """Whether the time of a step says something about others.

        A prefill attends in another way, trees of other shapes are drafted apart from those of the step's, and the
        steps behind a prefill find nothing in the processor's caches.
        """
        self._num_decoding = 0 if step.prefill_requests else self._num_decoding + 1
        is_warm = self._num_decoding > STEPS_TO_WARM_UP
        return is_warm and all(scheduled.request.own_shape is None for scheduled in step.growing_requests)

    def _seconds(self) -> StepSeconds:
        now, before = self._clock.seconds, self._before
        # Planning is no part of it: the plan was made for more steps than this, whatever grows in them.
        schedule = now["schedule"] - before["schedule"] - self._planner.planning_seconds
        host = max(0.0, schedule) + now["commit"] - before["commit"]
        return StepSeconds(
            now["verify"] - before["verify"],
            now["draft"] - before["draft"],
            now["sample"] - before["sample"],
            host,
            now["grammar"] - before["grammar"],
        )


def num_accepted_drafts(step: StepLayout, shape: TreeShape, tree: DraftTree, runs: Mapping[str, AcceptedRun]) -> int:
    """Accepted tokens of all requests that the draft model proposed."""
    total = 0
    for index, scheduled in enumerate(step.growing_requests):
        run = runs.get(scheduled.request.request_id)
        if run is not None and run.nodes:
            total += len(_grown_nodes(run, _num_held(scheduled, index, shape, tree)))
    return total


def _grown_nodes(run: AcceptedRun, num_held: int) -> tuple[int, ...]:
    """Accepted nodes that the draft model grew.

    Nodes of a path are numbered downwards, and looked-up ones behind all that grew: where the path leaves the grown
    nodes, the draft model has missed.
    """
    nodes = run.nodes
    return nodes if not nodes or nodes[-1] <= num_held else tuple([node for node in nodes if node <= num_held])


def _num_held(scheduled: ScheduledRequest, index: int, shape: TreeShape, tree: DraftTree | None) -> int:
    if isinstance(shape, StaticTree):
        return scheduled.num_held(shape)
    return len(tree.survivals[index]) - 1 if tree is not None and tree.survivals is not None else 0


def tree_outcomes(
    step: StepLayout, shape: TreeShape, tree: DraftTree | None, runs: Mapping[str, AcceptedRun]
) -> list[TreeOutcome]:
    """What became of the trees that the draft model grew in the step's shape."""
    outcomes = []
    parents = depths = None
    survivals = None if tree is None else tree.survivals
    if survivals is not None and tree is not None:
        parents, depths = tree.parents.tolist(), tree.depths.tolist()
    for index, scheduled in enumerate(step.growing_requests):
        request = scheduled.request
        run = runs.get(request.request_id)
        if request.own_shape is not None or run is None:
            continue
        held, grown = _num_held(scheduled, index, shape, tree), None
        nodes = _grown_nodes(run, held)
        if survivals is not None and parents is not None and depths is not None:
            end = held + 1
            own_parents, own_depths = tuple(parents[index][1:end]), tuple(depths[index][1:end])
            grown = CutTree(survivals[index][1:], own_parents, own_depths, nodes, scheduled.grown_depth)
        elif isinstance(shape, DynamicTree) and tree is None:
            grown = CutTree((), (), (), (), scheduled.grown_depth)
        is_usual, request_class = not has_hidden_rules(request.params), class_of(request.params)
        outcomes.append(TreeOutcome(request.request_id, held, nodes, is_usual, grown, request_class))
    return outcomes


def step_size(step: StepLayout, shape: TreeShape, tree: DraftTree | None, num_new_rows: int) -> StepSize:
    """Size of a step that has just run; its context is that after the step, a few tokens more than before."""
    context = row_context = num_drawn = num_masked = 0
    num_rows = len(step.plain_requests)
    for scheduled in step.plain_requests:
        context += scheduled.request.num_computed_tokens
        num_masked += scheduled.request.params.guided is not None
    row_context, num_drawn = context, num_rows
    for scheduled in step.tree_requests:
        rows = step.num_rows(scheduled)
        num_rows += rows
        num_drawn += rows
        context += scheduled.request.num_computed_tokens
        row_context += rows * scheduled.request.num_computed_tokens
        num_masked += rows * (scheduled.request.params.guided is not None)
    for scheduled in step.prefill_requests:
        num_rows += scheduled.num_new_tokens
        num_drawn += scheduled.draws_token
        num_masked += scheduled.draws_token and scheduled.request.params.guided is not None
    num_trees = len(step.growing_requests)
    if isinstance(shape, StaticTree):
        level_rows = tuple(width * num_trees for width in shape.level_widths) if num_trees else ()
    else:
        level_rows = (tree.level_rows if tree is not None else None) or (num_trees,)
    return StepSize(
        num_rows=num_rows,
        num_drawn_rows=num_drawn,
        num_requests=len(step.ordered),
        context=context,
        row_context=row_context,
        num_new_rows=num_new_rows,
        level_rows=level_rows,
        num_masked_rows=num_masked,
    )
