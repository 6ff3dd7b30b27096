"""Which draft rows are written when nobody needs them yet: a draft may fall behind, by a bounded number of rows.

A step that grows no tree needs no draft. The features that its rows would read wait with the request, and when trees
grow again, the rows are written in batches that hardly lengthen a step.

    num_draft_rows 40, num_computed_tokens 100: 60 rows behind, features h40..h99 are kept

Rows of the prompt are written soon while trees grow: other requests can share a prompt only with them. While the draft
rests they wait like all others, and a request whose prompt another could share gives up its draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from aquiline.engine.cache import BlockCache
from aquiline.engine.cost_model import StepCosts
from aquiline.engine.plan import StepLoad, StepPlan
from aquiline.request import Request

# A request that is behind by no more than this catches up in the very step that grows its tree.
ROWS_AT_ONCE = 16
# Catching up may lengthen a step by this share.
CATCH_UP_SHARE = 0.08
LEAST_CATCH_UP_ROWS = 8
# A request gives up its draft, while that rests, to let another share so many of its tokens.
LEAST_SHARED_TOKENS = 32


class DraftUse(Enum):
    """What the draft is good for at the present load."""

    GROWS = "trees grow, or may soon"
    RESTS = "plain decoding is better"
    HOPELESS = "no tree will grow again, as far as one can see"


@dataclass(frozen=True, slots=True)
class Debt:
    """How far the draft is behind.

    Attributes:
        most_pending: rows of the request that is furthest behind.
        num_behind: rows that the requests which could grow trees have to catch up with first, beyond the usual few.
    """

    most_pending: int
    num_behind: int


def debt_of(load: StepLoad) -> Debt:
    """The debt of a step's requests; those that have only just been prefilled catch up in any case."""
    most = max([request.num_computed_tokens - request.num_draft_rows for request in load.speculating], default=0)
    if most <= ROWS_AT_ONCE:
        return Debt(most, 0)
    behind = 0
    for request in load.growing:
        pending = request.num_computed_tokens - request.num_draft_rows
        if pending > ROWS_AT_ONCE and not _has_just_begun(request):
            behind += pending
    return Debt(most, behind)


@dataclass(frozen=True)
class DebtPolicy:
    """Bounds of the debt, which keep its memory within what a part of the K/V cache takes.

    Attributes:
        max_rows: most rows that one request may be behind.
        max_total_rows: shared out evenly among the requests that the draft follows, the same for all of them together.
    """

    max_rows: int = 2048
    max_total_rows: int = 32768

    def most_pending(self, load: StepLoad) -> int:
        """Most rows that each request of a step may be behind."""
        return min(self.max_rows, self.max_total_rows // max(1, len(load.speculating)))

    def plan(
        self, load: StepLoad, plan: StepPlan, debt: Debt, step_seconds: float, costs: StepCosts, use: DraftUse
    ) -> StepPlan:
        """Settle which draft rows a step writes, and which trees have to wait for theirs.

        Args:
            plan: names the requests that should hold trees.
            step_seconds: of the step without any catching up.
        """
        wanted = plan.num_draft_tokens or {}
        most_pending = self.most_pending(load)
        if not wanted and use is not DraftUse.GROWS and debt.most_pending <= most_pending:
            return StepPlan(plan.shape, {}, {})
        trees: dict[str, int] = {}
        late: list[Request] = []
        gives_up: list[Request] = []
        for request in load.speculating:
            pending = request.num_computed_tokens - request.num_draft_rows
            if pending <= 0:
                continue
            size = wanted.get(request.request_id, 0)
            if size and (pending <= ROWS_AT_ONCE or (use is DraftUse.GROWS and _has_just_begun(request))):
                trees[request.request_id] = size
            elif use is not DraftUse.GROWS and not size:
                # To follow a request that far would cost each step about as much as a tree, for nothing.
                if pending > most_pending:
                    gives_up.append(request)
            elif size or pending > most_pending or (use is DraftUse.GROWS and _lacks_prompt_rows(request)):
                late.append(request)
        if len(trees) == len(wanted) and not late and not gives_up:
            return replace(plan, num_draft_tokens=trees, num_new_draft_rows={})
        rows = self._catch_up(late, step_seconds, costs) if late else {}
        most = max(trees.values(), default=0)
        return StepPlan(plan.shape.truncated(most), trees, rows, gives_up)

    def _catch_up(self, late: Sequence[Request], step_seconds: float, costs: StepCosts) -> dict[str, int]:
        """Rows for those nearest to the end of their debt first, so that some can grow trees soon."""
        left = _rows_within(CATCH_UP_SHARE * step_seconds, costs)
        rows = {}
        for request in sorted(late, key=num_pending):
            rows[request.request_id] = min(left, num_pending(request))
            left -= rows[request.request_id]
            if left <= 0:
                break
        return rows


def follows_plan(request: Request) -> bool:
    """Whether the draft follows a request, in trees as the planner wants them."""
    return request.speculate and request.own_shape is None


def give_up_to_share(request: Request, running: Sequence[Request], cache: BlockCache) -> None:
    """While the draft rests: publish blocks that wait for its rows, where `request` could share them."""
    for holder in running:
        least = max(LEAST_SHARED_TOKENS, holder.num_draft_rows + 1)
        if follows_plan(holder) and _num_in_common(request, holder, cache.block_size) >= least:
            holder.speculate = False
            cache.publish(holder)


def _num_in_common(request: Request, holder: Request, block_size: int) -> int:
    """Tokens of whole computed blocks of `holder` with which `request` begins."""
    common, most = 0, min(request.num_tokens - 1, holder.num_computed_tokens) - block_size
    while common <= most and (
        request.token_ids[common : common + block_size] == holder.token_ids[common : common + block_size]
    ):
        common += block_size
    return common


def num_pending(request: Request) -> int:
    """Draft rows that could be written and are not."""
    return request.num_computed_tokens - request.num_draft_rows


def _has_just_begun(request: Request) -> bool:
    return request.num_computed_tokens <= request.num_prompt_tokens


def _lacks_prompt_rows(request: Request) -> bool:
    return request.num_draft_rows < request.num_prompt_tokens - 1


def _rows_within(seconds: float, costs: StepCosts) -> int:
    rows = LEAST_CATCH_UP_ROWS
    while rows < 4096 and costs.draft_seconds(2 * rows, ()) <= seconds:
        rows *= 2
    return rows
