"""What the planner is asked for a step, and when it need not be asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aquiline.engine.host_tree import HostTree
from aquiline.engine.lookup_policy import LookupPolicy
from aquiline.engine.plan import StepLoad, StepPlan, StepPlanner
from aquiline.engine.request_limits import RequestLimits
from aquiline.engine.tree_shares import num_nodes
from aquiline.request import Request

# Of the step's rows, one in so many is kept for prefill while any is pending.
PREFILL_SHARE = 4
ROUNDED_ROWS = 64


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A plan, and how many nodes the draft model should grow for each request if there are rows and blocks enough."""

    plan: StepPlan
    held: Mapping[str, int]


class StepPlanning:
    """Asks the planner.

    Args:
        max_batched_tokens: most rows of a step.
    """

    def __init__(
        self, planner: StepPlanner, lookup: LookupPolicy, limits: RequestLimits, max_batched_tokens: int
    ) -> None:
        self._planner = planner
        self._lookup = lookup
        self._limits = limits
        self._max_batched_tokens = max_batched_tokens
        self._is_settled = False

    @property
    def is_settled(self) -> bool:
        """Whether the last plan was for those that run, all of which decode and follow the planner."""
        return self._is_settled

    def forget(self) -> None:
        """Other requests run than those that the last plan was for."""
        self._is_settled = False

    def plan(self, running: Sequence[Request], num_roots: int, known: Mapping[str, HostTree]) -> PlannedStep:
        """The plan of the next step; the last one once more where the planner has nothing to add.

        Args:
            num_roots: running requests that decode.
            known: what was looked up.
        """
        if self._is_settled:
            plan = self._planner.rest()
            if plan is not None:
                return PlannedStep(plan, held_by(plan, self.growing(running, known)) if plan.num_draft_tokens else {})
        # What is looked up comes and goes from step to step. The planner chooses as if it added to all trees: so its
        # choice stays, and those for which it suffices go without afterwards.
        growing = self.growing(running, {})
        plan = self._planner.plan(self._load(running, num_roots, known, growing))
        self._is_settled = num_roots == len(running) and all(request.own_shape is None for request in growing)
        return PlannedStep(plan, held_by(plan, self.growing(running, known) if known else growing))

    def _load(
        self, running: Sequence[Request], num_roots: int, known: Mapping[str, HostTree], growing: Sequence[Request]
    ) -> StepLoad:
        num_pending = sum(request.num_uncomputed_tokens for request in running) - num_roots
        num_own_nodes = sum(request.own_shape.num_draft_tokens for request in growing if request.own_shape is not None)
        num_other_nodes = num_nodes(known) + num_own_nodes
        left = self._max_batched_tokens - num_roots - num_other_nodes
        least_prefill = min(num_pending, max(1, self._max_batched_tokens // PREFILL_SHARE))
        return StepLoad(
            num_roots=num_roots,
            growing=[request for request in growing if request.own_shape is None],
            speculating=[request for request in running if request.speculate and request.own_shape is None],
            context=sum(request.num_computed_tokens for request in running if request.decodes),
            num_other_rows=min(num_pending, max(0, left)) + num_other_nodes,
            max_draft_tokens=_rounded(max(0, left - least_prefill)),
        )

    def growing(self, running: Sequence[Request], known: Mapping[str, HostTree]) -> list[Request]:
        """Running requests for which the draft model is asked for a tree."""
        return [request for request in running if self._grows(request, known.get(request.request_id))]

    def _grows(self, request: Request, tree: HostTree | None) -> bool:
        is_known = tree is not None and self._lookup.suffices(request.request_id)
        return self._limits.most_grown_depth(request) > 0 and not is_known


def held_by(plan: StepPlan, growing: Sequence[Request]) -> dict[str, int]:
    """Nodes that the draft model should grow for each request; those that hold none are left out."""
    held = {request.request_id: plan.num_draft_tokens_of(request) for request in growing}
    return {request_id: size for request_id, size in held.items() if size}


def _rounded(num_rows: int) -> int:
    """Many rows to a multiple of `ROUNDED_ROWS`: to the planner, steps with a few looked-up nodes more are alike."""
    return num_rows if num_rows < 2 * ROUNDED_ROWS else num_rows - num_rows % ROUNDED_ROWS
