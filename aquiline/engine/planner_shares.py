"""From the planner's choice to the nodes of each request."""

from __future__ import annotations

from collections.abc import Sequence

from aquiline.engine.draft_debt import ROWS_AT_ONCE, num_pending
from aquiline.engine.forecast import Forecast
from aquiline.engine.plan import StepPlan
from aquiline.engine.planner_candidates import PLAIN, Candidate
from aquiline.engine.planner_rest import IDLE_PLAN
from aquiline.request import Request


def plan_of(choice: Forecast, growing: Sequence[Request], kinds: Sequence[int]) -> StepPlan:
    """The plan that a choice stands for; `kinds` of the growing requests."""
    candidate = choice.candidate
    if candidate is PLAIN:
        return IDLE_PLAN
    sizes = candidate.num_draft_tokens
    if choice.room:
        held = _within_room(candidate, choice.room, growing, kinds)
    else:
        held = {request.request_id: sizes[kind] for request, kind in zip(growing, kinds, strict=True) if sizes[kind]}
    return StepPlan(candidate.shape.truncated(max(held.values())), held, {}) if held else IDLE_PLAN


def holds_all(plan: StepPlan, wanted: StepPlan) -> bool:
    """Whether a plan holds all trees that are wanted; while drafts have to catch up, some are missing."""
    return len(plan.num_draft_tokens or ()) == len(wanted.num_draft_tokens or ())


def _within_room(candidate: Candidate, room: int, growing: Sequence[Request], kinds: Sequence[int]) -> dict[str, int]:
    """Nodes by request when all together may hold no more than `room`.

    Those come first whose drafts need not catch up, for they held nodes before, then those that draft best, then the
    oldest.
    """
    held, left = {}, room
    ranks = [
        (num_pending(request) > ROWS_AT_ONCE, -candidate.expected[kind], place)
        for place, (request, kind) in enumerate(zip(growing, kinds, strict=True))
    ]
    for _, _, place in sorted(ranks):
        size = min(left, candidate.num_draft_tokens[kinds[place]])
        if size:
            held[growing[place].request_id] = size
            left -= size
    return held
