"""What one step will do, as integers: the record that the scheduler hands to every later stage."""

from __future__ import annotations

from dataclasses import dataclass

from aquiline.engine.host_tree import NO_NODES, HostTree
from aquiline.request import Request
from aquiline.speculation import TreeShape


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
    """

    request: Request
    num_new_tokens: int
    draws_token: bool
    max_draft_depth: int
    grown_depth: int = 0
    known: HostTree = NO_NODES


@dataclass(frozen=True, slots=True)
class ScheduledBatch:
    """One step.

    Attributes:
        requests: decoding requests (one new token, the root) first, then prefill chunks; in admission order.
        tree: the shape that every request with `grown_depth > 0` grows; NO_TREE when none does.
        preempted: requests that lost their blocks to make room; they wait again.
    """

    requests: tuple[ScheduledRequest, ...]
    tree: TreeShape
    preempted: tuple[Request, ...]

    @property
    def num_tree_requests(self) -> int:
        return sum(scheduled.max_draft_depth > 0 for scheduled in self.requests)
