"""Who runs in a step, with how many tokens: continuous batching over integers only."""

from __future__ import annotations

import heapq
from bisect import insort_left, insort_right

from aquiline.config import SchedulerConfig, SpeculativeConfig
from aquiline.engine.cache import BlockCache
from aquiline.engine.draft_debt import follows_plan, give_up_to_share
from aquiline.engine.host_tree import NO_NODES, HostTree
from aquiline.engine.lookup_policy import LookupPolicy
from aquiline.engine.plan import StepPlan, StepPlanner
from aquiline.engine.request_limits import RequestLimits
from aquiline.engine.schedule import ScheduledBatch, ScheduledRequest
from aquiline.engine.step_planning import PREFILL_SHARE, PlannedStep, StepPlanning, held_by
from aquiline.engine.tree_shares import FittedTrees, fitted, known_within, num_nodes, share_within, within_shape
from aquiline.errors import ConsistencyError, InvalidParameterError
from aquiline.request import FinishReason, Request, RequestStatus
from aquiline.speculation import NO_TREE


class Scheduler:
    """Shares the rows of a step and the blocks of the cache between requests.

    More urgent means a lower (priority, arrival). The rules of a step, in order:

    1. Every running request that decodes gets one row for its root and a slot for it, the most urgent first. When no
       block is free, blocks that earlier trees reserved and did not fill are taken back; when there are none, the least
       urgent running request is preempted: it loses blocks and device row, keeps its tokens, and waits where its
       arrival puts it.
    2. Prefill gets the rows that roots and full draft trees leave over. When that is less than a quarter of the step
       (`PREFILL_SHARE`), the trees of this step shrink, or go, until prefill has its quarter or all it can use. So
       neither can stop the other: each decoding request gets a token every step, and pending prefill gets at least
       min(pending, max(1, max_num_batched_tokens // 4), max_num_batched_tokens - roots) rows.
    3. Waiting requests are admitted strictly by urgency while rows are left for them, one device row is free, and
       blocks for all their known tokens are free with one to spare per running request. Nobody is admitted in a step
       that preempted. A running prefill therefore never needs another block.
    4. The rows that remain go first to draft tokens that were looked up, every one of which promises to pay, and are
       then divided as the planner says; where they do not suffice, no request gets more than its equal share. The most
       urgent takes blocks first, and trees end at the depth for which blocks are free.

    When a request's next root lies beyond the positions of the draft, or only one token can ever be drawn, its
    `speculate` is cleared: then it costs no draft work and shares all cached blocks. Tokens are looked up all the same.

    Attributes:
        max_request_tokens: most tokens, prompt and output, that a request may ever hold; a request that holds as many
            has to end with FinishReason.LENGTH.
        num_preemptions: how often a request lost its blocks to another.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        cache: BlockCache,
        planner: StepPlanner,
        limits: RequestLimits,
        lookup: LookupPolicy | None = None,
    ) -> None:
        """Without `lookup` no tokens are looked up."""
        self._max_batched_tokens = config.max_num_batched_tokens
        self._cache = cache
        self._planner = planner
        self._limits = limits
        self._lookup = lookup or LookupPolicy(SpeculativeConfig(lookup="off"), has_draft=True)
        self.max_request_tokens = self._limits.max_request_tokens
        self.num_preemptions = 0
        self._requests: dict[str, Request] = {}
        self._waiting: list[Request] = []
        # In admission order.
        self._running: list[Request] = []
        self._planning = StepPlanning(planner, self._lookup, limits, config.max_num_batched_tokens)
        self._max_num_seqs = config.max_num_seqs
        self._free_rows = list(range(config.max_num_seqs))

    @property
    def has_unfinished(self) -> bool:
        return bool(self._requests)

    @property
    def running(self) -> tuple[Request, ...]:
        """Requests that hold a device row, in admission order."""
        return tuple(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def num_remaining_tokens(self, request: Request) -> int:
        """Tokens the request may still receive before it has to end with FinishReason.LENGTH."""
        return self._limits.num_remaining_tokens(request)

    def add(self, request: Request) -> None:
        """Let a new request wait for admission.

        Raises:
            InvalidParameterError: another unfinished request has this id.
            PromptError: the prompt is empty, or leaves no room for one output token in the context or the cache.
        """
        if request.request_id in self._requests:
            raise InvalidParameterError(
                f"request_id {request.request_id!r} belongs to a request that is not finished; use another id"
            )
        self._limits.check_prompt(request)
        if self.num_remaining_tokens(request) == 1 or not self._is_followed(request):
            request.speculate = False
        self._stop_speculating_beyond_draft(request)
        self._requests[request.request_id] = request
        insort_right(self._waiting, request, key=_urgency)

    def _is_followed(self, request: Request) -> bool:
        return request.speculate and (request.own_shape is not None or self._planner.wants_draft(request))

    def _stop_speculating_beyond_draft(self, request: Request) -> None:
        if self._limits.is_beyond_draft(request):
            request.speculate = False

    def abort(self, request_id: str) -> Request | None:
        """End a request with FinishReason.ABORT, in any phase, unless it has ended by itself; then only free it.

        Returns:
            The request; None when no request with that id waits or runs.
        """
        request = self._requests.get(request_id)
        if request is not None:
            if not request.is_finished:
                request.finish_reason = FinishReason.ABORT
            self.finish(request)
        return request

    def finish(self, request: Request) -> None:
        """Give back the request's blocks and device row at once; nothing happens when it has none of them any more."""
        if self._requests.get(request.request_id) is not request:
            return
        del self._requests[request.request_id]
        self._lookup.forget(request)
        self._planner.forget(request.request_id)
        if request in self._running:
            self._release(request)
        else:
            self._waiting.remove(request)
        request.status = RequestStatus.FINISHED

    def _release(self, request: Request) -> None:
        self._planning.forget()
        self._running.remove(request)
        self._cache.free(request)
        heapq.heappush(self._free_rows, request.row)
        request.row = -1

    def schedule(self) -> ScheduledBatch:
        """Choose the next step; empty only when nothing is unfinished.

        Everything the step may write is reserved when this returns: see ScheduledRequest for the slots.
        """
        for request in self._running:
            self._stop_speculating_beyond_draft(request)
        preempted = self._reserve_roots()
        num_roots = sum(request.decodes for request in self._running)
        known = self._look_up()
        planned = self._planning.plan(self._running, num_roots, known)
        for request in planned.plan.gives_up:
            request.speculate = False
        num_prefill_rows = self._most_prefill_rows(num_roots, sum(planned.held.values()) + num_nodes(known))
        if not preempted:
            self._admit_waiting(num_prefill_rows)
        chunks = self._cut_chunks(num_roots, num_prefill_rows)
        trees = self._reserve_trees(planned.plan, self._fit_trees(planned, known, chunks))
        return self._batch(chunks, trees, planned.plan, preempted)

    def _reserve_roots(self) -> list[Request]:
        preempted: list[Request] = []
        for request in sorted(self._running, key=_urgency):
            if request.status is not RequestStatus.RUNNING:
                continue
            while not self._cache.grow(request, request.num_tokens):
                if self._take_back_unfilled_blocks():
                    continue
                victim = max(reversed(self._running), key=_urgency)
                self._preempt(victim)
                preempted.append(victim)
                if victim is request:
                    break
        return preempted

    def _take_back_unfilled_blocks(self) -> int:
        return sum(self._cache.trim(request, request.num_tokens) for request in self._running)

    def _preempt(self, request: Request) -> None:
        self._release(request)
        request.num_computed_tokens = 0
        request.num_draft_rows = 0
        request.num_preemptions += 1
        self.num_preemptions += 1
        request.status = RequestStatus.WAITING
        insort_left(self._waiting, request, key=_urgency)

    def _look_up(self) -> dict[str, HostTree]:
        known = self._lookup.look_up(self._running, self._limits, self._max_batched_tokens)
        return {name: within_shape(tree, self._requests[name].own_shape) for name, tree in known.items()}

    def _most_prefill_rows(self, num_roots: int, num_tree_rows: int) -> int:
        left_by_roots = self._max_batched_tokens - num_roots
        left_by_trees = left_by_roots - num_tree_rows
        return max(left_by_trees, min(left_by_roots, max(1, self._max_batched_tokens // PREFILL_SHARE)))

    def _admit_waiting(self, num_prefill_rows: int) -> None:
        num_pending = sum(request.num_uncomputed_tokens for request in self._running if not request.decodes)
        while self._waiting and self._free_rows and num_pending < num_prefill_rows:
            request = self._waiting[0]
            if self._admits_better_without_draft(request):
                request.speculate = False
            if not self._cache.admit(request, request.num_tokens, num_spare_blocks=len(self._running)):
                return
            del self._waiting[0]
            request.status = RequestStatus.RUNNING
            request.row = heapq.heappop(self._free_rows)
            self._planning.forget()
            self._running.append(request)
            num_pending += request.num_uncomputed_tokens

    def _admits_better_without_draft(self, request: Request) -> bool:
        if self._planner.speculates or not follows_plan(request):
            return False
        give_up_to_share(request, self._running, self._cache)
        return self._cache.finds_more_without_draft(request)

    def _cut_chunks(self, num_roots: int, num_prefill_rows: int) -> dict[str, int]:
        """Rows of every request that prefills, the most urgent first; `num_roots` as it was before admission."""
        num_new_roots = sum(request.decodes for request in self._running) - num_roots
        num_left = num_prefill_rows - num_new_roots
        chunks: dict[str, int] = {}
        for request in sorted(self._running, key=_urgency):
            if not request.decodes and num_left > 0:
                chunks[request.request_id] = min(request.num_uncomputed_tokens, num_left)
                num_left -= chunks[request.request_id]
        return chunks

    def _fit_trees(self, planned: PlannedStep, known: dict[str, HostTree], chunks: dict[str, int]) -> FittedTrees:
        num_roots = sum(request.decodes for request in self._running)
        num_left = self._max_batched_tokens - num_roots - sum(chunks.values())
        known = known_within(known, num_left)
        held = planned.held
        if known or not self._planning.is_settled:
            # Asked again, since a request that was just admitted may decode at once.
            held = held_by(planned.plan, self._planning.growing(self._running, known))
        return FittedTrees(fitted(held, num_left - num_nodes(known)), known)

    def _reserve_trees(self, plan: StepPlan, trees: FittedTrees) -> dict[str, ScheduledRequest]:
        """The requests with a tree, with blocks reserved for it."""
        scheduled: dict[str, ScheduledRequest] = {}
        holders = trees.held.keys() | trees.known.keys()
        for request in sorted((each for each in self._running if each.request_id in holders), key=_urgency):
            most_slots = (len(request.block_ids) + self._cache.num_free_blocks) * self._cache.block_size
            room = most_slots - request.num_tokens
            known = trees.known.get(request.request_id, NO_NODES)
            known = known.within(known.num_draft_tokens, room)
            limit = min(self._limits.most_grown_depth(request), room)
            share = share_within(plan.shape_of(request), trees.held.get(request.request_id, 0), limit)
            depth = max(share.depth, known.depth)
            if depth > 0:
                reserved = self._cache.grow(request, request.num_tokens + depth)
                assert reserved, f"{request.request_id} has no block for a tree that was cut to fit"
                new_rows = None if share.depth else plan.draft_rows_of(request)
                scheduled[request.request_id] = ScheduledRequest(
                    request, 1, True, depth, share.depth, known, share.num_draft_tokens, new_rows
                )
        return scheduled

    def _batch(
        self, chunks: dict[str, int], trees: dict[str, ScheduledRequest], plan: StepPlan, preempted: list[Request]
    ) -> ScheduledBatch:
        roots = [
            trees.get(request.request_id)
            or ScheduledRequest(request, 1, True, 0, num_new_draft_rows=plan.draft_rows_of(request))
            for request in self._running
            if request.decodes
        ]
        prefills = [
            ScheduledRequest(
                request, rows, rows == request.num_uncomputed_tokens, 0, num_new_draft_rows=plan.draft_rows_of(request)
            )
            for request in self._running
            if (rows := chunks.get(request.request_id, 0))
        ]
        planned = [scheduled for scheduled in roots if scheduled.request.own_shape is None]
        most = max((scheduled.num_held(plan.shape) for scheduled in planned), default=0)
        shape = plan.shape.truncated(most) if most else NO_TREE
        return ScheduledBatch((*roots, *prefills), shape, tuple(preempted))

    def check_integrity(self) -> None:
        """Check queues, device rows and the cache against each other.

        Raises:
            ConsistencyError: they do not agree.
        """
        rows = sorted([*self._free_rows, *(request.row for request in self._running)])
        if rows != list(range(self._max_num_seqs)):
            raise ConsistencyError(f"scheduler: free and used device rows are {rows}")
        if any(request.block_ids or request.row != -1 for request in self._waiting):
            raise ConsistencyError("scheduler: a waiting request holds blocks or a device row")
        if sorted(self._requests) != sorted(request.request_id for request in (*self._waiting, *self._running)):
            raise ConsistencyError("scheduler: a request is lost, or both waits and runs")
        if self._waiting != sorted(self._waiting, key=_urgency):
            raise ConsistencyError("scheduler: the waiting requests are out of order")
        self._cache.check_integrity(self._running)


def _urgency(request: Request) -> tuple[int, int]:
    return request.priority, request.arrival
