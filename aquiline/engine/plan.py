"""What the scheduler asks the planner, what it is told, and what the planner learns of each step: integers only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from aquiline.engine.acceptance_prior import RequestClass
from aquiline.engine.cost_model import StepSeconds, StepSize
from aquiline.engine.cut_tree import CutTree
from aquiline.request import Request
from aquiline.speculation import NO_TREE, TreeShape


@dataclass(frozen=True, slots=True)
class StepLoad:
    """The requests that the next step will hold, as far as they run already.

    Requests with a shape of their own are not planned: they count as requests without a tree, whose nodes are rows.

    Attributes:
        num_roots: requests that decode.
        growing: those of them that may grow a tree.
        speculating: every running request that the draft follows, those that prefill included.
        context: tokens in the pages of the decoding requests, summed.
        num_other_rows: of waiting prefill, at most what one step may hold, of looked-up nodes, and of trees with
            shapes of their own.
        max_draft_tokens: most nodes that all trees of the step may have together.
    """

    num_roots: int
    growing: Sequence[Request]
    speculating: Sequence[Request]
    context: int = 0
    num_other_rows: int = 0
    max_draft_tokens: int = 2**31


@dataclass(frozen=True, slots=True)
class StepPlan:
    """How much to speculate in one step.

    Attributes:
        shape: the tree of the request that grows most.
        num_draft_tokens: how many of its first nodes each request holds, by request id; requests that are not named
            hold none. None: every request that may grow holds all of it.
        num_new_draft_rows: draft rows that requests without a tree catch up with, by request id; what is not named
            waits. None: nothing waits.
        gives_up: requests that the draft need not follow any more.
    """

    shape: TreeShape = NO_TREE
    num_draft_tokens: Mapping[str, int] | None = None
    num_new_draft_rows: Mapping[str, int] | None = None
    gives_up: Sequence[Request] = ()

    def shape_of(self, request: Request) -> TreeShape:
        """The shape of which the request holds the first nodes: its own, or that of the step."""
        return self.shape if request.own_shape is None else request.own_shape

    def num_draft_tokens_of(self, request: Request) -> int:
        """Nodes that a request which may grow a tree should hold; all of its own shape, if it has one."""
        if request.own_shape is not None or self.num_draft_tokens is None:
            return self.shape_of(request).num_draft_tokens
        return self.num_draft_tokens.get(request.request_id, 0)

    def draft_rows_of(self, request: Request) -> int | None:
        """Draft rows that are due to a request without a tree of the draft; None: all."""
        if request.own_shape is not None:
            return None
        return None if self.num_new_draft_rows is None else self.num_new_draft_rows.get(request.request_id, 0)


@dataclass(slots=True)
class TreeOutcome:
    """What became of one request's tree.

    Attributes:
        accepted: accepted nodes from the root's child down; `num_draft_tokens` nodes of the step's shape were offered.
        is_usual: no rule that the draft cannot see held the request.
        tree: as it grew, where the draft's confidence shaped it.
        request_class: the request may have ended with this step, so that nobody knows it any more.
    """

    request_id: str
    num_draft_tokens: int
    accepted: tuple[int, ...]
    is_usual: bool = True
    tree: CutTree | None = None
    request_class: RequestClass = RequestClass.GREEDY


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step that ran.

    Attributes:
        seconds: None where they say nothing about other steps.
    """

    shape: TreeShape
    size: StepSize
    seconds: StepSeconds | None
    outcomes: Sequence[TreeOutcome] = field(default_factory=tuple)


class StepPlanner(Protocol):
    """Decides how much every step speculates.

    Attributes:
        learns: whether it wants to be told of steps that ran.
        planning_seconds: that planning took for the last step; 0 where that repeats a plan.
    """

    learns: bool
    planning_seconds: float

    @property
    def speculates(self) -> bool:
        """Whether trees grow at the present load; if not, a longer known beginning is worth more than a draft."""

    def plan(self, load: StepLoad) -> StepPlan:
        """The plan of the next step."""

    def rest(self) -> StepPlan | None:
        """The last plan once more, where there is nothing to add for the next step.

        Asked instead of `plan` while the same requests decode on; None: plan it.
        """

    def wants_draft(self, request: Request) -> bool:
        """Whether the draft should follow a request that is about to be admitted."""

    def glance(self, seconds: float, num_accepted: int) -> None:
        """A step ran in which nothing was looked up; it may be reported in full too.

        Args:
            seconds: that it took without planning.
            num_accepted: tokens of the draft model that were committed.
        """

    def observe(self, report: StepReport) -> None:
        """Learn from a step that ran."""

    def forget(self, request_id: str) -> None:
        """A request has ended."""
