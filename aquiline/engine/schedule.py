"""What one step will do, as integers: the record that the scheduler hands to every later stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aquiline.engine.host_tree import NO_NODES, HostTree
from aquiline.request import Request
from aquiline.speculation import StaticTree, TreeShape


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """One request's share of a step.

    Attributes:
        num_new_tokens: target rows taken from `request.token_ids[num_computed_tokens:]`, at least 1.
        draws_token: these rows reach the last known token, so the step draws at least one new one.
        max_draft_depth: deepest tree node that could still be committed (length and context limits, speculation
            switched off, prefill); 0 means that this request has no tree in this step. Its blocks cover
            `num_computed_tokens + num_new_tokens + max_draft_depth` slots.
        grown_depth: deepest node that the draft model may grow; 0: it grows no tree for this request.
        known: nodes whose tokens the host knows; they join what the draft model grows.
        num_grown: nodes of the step's shape that the draft model grows for this request, its first ones; None: all
            within `grown_depth`.
        num_new_draft_rows: draft rows that this step writes for the request; None: all that can be written.
    """

    request: Request
    num_new_tokens: int
    draws_token: bool
    max_draft_depth: int
    grown_depth: int = 0
    known: HostTree = NO_NODES
    num_grown: int | None = None
    num_new_draft_rows: int | None = None

    @property
    def num_due_draft_rows(self) -> int:
        """Draft rows to write, none for a request that the draft does not follow."""
        request = self.request
        pending = request.num_computed_tokens - request.num_draft_rows
        if not request.speculate or pending <= 0:
            return 0
        return pending if self.num_new_draft_rows is None else min(pending, self.num_new_draft_rows)

    def num_held(self, shape: TreeShape) -> int:
        """How many nodes of `shape` the draft model grows for this request, the root not counted."""
        if self.grown_depth == 0:
            return 0
        most = shape.num_draft_tokens if self.num_grown is None else self.num_grown
        return min(most, shape.num_within(self.grown_depth)) if isinstance(shape, StaticTree) else most


@dataclass(frozen=True, slots=True)
class TreeGroup:
    """Requests for which the draft model grows trees of one shape; each holds its first nodes."""

    shape: TreeShape
    requests: tuple[ScheduledRequest, ...]


def tree_groups(growing: Sequence[ScheduledRequest], shape: TreeShape) -> list[TreeGroup]:
    """Requests that grow trees by their shapes, those that take the step's shape first."""
    members: dict[TreeShape | None, list[ScheduledRequest]] = {None: []}
    for scheduled in growing:
        members.setdefault(scheduled.request.own_shape, []).append(scheduled)
    groups = []
    for own_shape, requests in members.items():
        if own_shape is None:
            grown = shape
        else:
            grown = own_shape.truncated(max(scheduled.num_held(own_shape) for scheduled in requests))
        if requests:
            groups.append(TreeGroup(grown, tuple(requests)))
    return groups


@dataclass(frozen=True, slots=True)
class ScheduledBatch:
    """One step.

    Attributes:
        requests: decoding requests (one new token, the root) first, then prefill chunks; in admission order.
        tree: the shape of which every request with `grown_depth > 0` and no shape of its own grows its part; NO_TREE
            when none does.
        preempted: requests that lost their blocks to make room; they wait again.
    """

    requests: tuple[ScheduledRequest, ...]
    tree: TreeShape
    preempted: tuple[Request, ...]

    @property
    def num_tree_requests(self) -> int:
        return sum(scheduled.max_draft_depth > 0 for scheduled in self.requests)
