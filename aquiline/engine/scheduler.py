"""Who runs in a step, with how many tokens: continuous batching over integers only."""

from __future__ import annotations

import heapq
from bisect import insort_left, insort_right

from aquiline.config import SchedulerConfig
from aquiline.engine.cache import BlockCache
from aquiline.engine.planner import Planner
from aquiline.engine.schedule import ScheduledBatch, ScheduledRequest
from aquiline.errors import ConsistencyError, InvalidParameterError, PromptError
from aquiline.request import FinishReason, Request, RequestStatus
from aquiline.speculation import NO_TREE, TreeShape

# Of the step's rows, one in so many is kept for prefill while any is pending.
PREFILL_SHARE = 4


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
    4. The rows that remain are divided equally between the decoding requests that may grow a tree, the most urgent
       takes blocks first, and trees end at the depth for which blocks are free.

    When a request's next root lies beyond the positions of the draft, or only one token can ever be drawn, its
    `speculate` is cleared: then it costs no draft work and shares all cached blocks.

    Attributes:
        max_request_tokens: most tokens, prompt and output, that a request may ever hold; a request that holds as many
            has to end with FinishReason.LENGTH.
        num_preemptions: how often a request lost its blocks to another.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        cache: BlockCache,
        planner: Planner,
        max_model_len: int,
        draft_max_position: int | None = None,
    ) -> None:
        """`max_model_len` is the settled limit in tokens; the draft has rotary positions 0..draft_max_position - 1."""
        self._max_batched_tokens = config.max_num_batched_tokens
        self._cache = cache
        self._planner = planner
        self._max_model_len = max_model_len
        self._draft_max_position = draft_max_position
        self.max_request_tokens = min(max_model_len, cache.num_blocks * cache.block_size)
        self.num_preemptions = 0
        self._requests: dict[str, Request] = {}
        self._waiting: list[Request] = []
        # In admission order.
        self._running: list[Request] = []
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
        remaining = self.max_request_tokens - request.num_tokens
        if request.params.max_tokens is not None:
            remaining = min(remaining, request.params.max_tokens - request.num_output_tokens)
        return remaining

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
        self._check_prompt(request)
        if self.num_remaining_tokens(request) == 1:
            request.speculate = False
        self._stop_speculating_beyond_draft(request)
        self._requests[request.request_id] = request
        insort_right(self._waiting, request, key=_urgency)

    def _check_prompt(self, request: Request) -> None:
        if not request.num_prompt_tokens:
            raise PromptError("the prompt has no tokens; give at least one")
        if request.num_prompt_tokens < self.max_request_tokens:
            return
        given = f"the prompt has {request.num_prompt_tokens} tokens; at most {self.max_request_tokens - 1} are allowed"
        if self.max_request_tokens == self._max_model_len:
            raise PromptError(
                f"{given}, for a request may hold {self._max_model_len} with its output; shorten the prompt"
                " or raise max_model_len if the model allows it"
            )
        raise PromptError(
            f"{given}, for the cache holds {self.max_request_tokens} tokens"
            f" ({self._cache.num_blocks} blocks of {self._cache.block_size}); shorten the prompt or enlarge the cache"
            " (num_blocks or kv_cache_gb)"
        )

    def _stop_speculating_beyond_draft(self, request: Request) -> None:
        # Worked example, draft_max_position 4 (rotary positions 0..3; a draft row has one less than its slot): with the
        # tokens a b c d the root d is in slot 3 and a child's draft row at rotary position 3. With a b c d e it would
        # be at 4, which the draft cannot take now or later.
        if self._draft_max_position is not None and request.num_tokens > self._draft_max_position:
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
        if request in self._running:
            self._release(request)
        else:
            self._waiting.remove(request)
        request.status = RequestStatus.FINISHED

    def _release(self, request: Request) -> None:
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
        num_roots = sum(_decodes(request) for request in self._running)
        shape = self._planner.choose(num_roots)
        num_prefill_rows = self._most_prefill_rows(num_roots, shape)
        if not preempted:
            self._admit_waiting(num_prefill_rows)
        chunks = self._cut_chunks(num_roots, num_prefill_rows)
        tree = self._fit_tree(shape, chunks)
        depths = self._reserve_trees(tree)
        return self._batch(chunks, depths, tree, preempted)

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

    def _most_prefill_rows(self, num_roots: int, shape: TreeShape) -> int:
        num_growing = sum(self._draft_limit(request) > 0 for request in self._running)
        left_by_roots = self._max_batched_tokens - num_roots
        left_by_trees = left_by_roots - num_growing * shape.num_draft_tokens
        return max(left_by_trees, min(left_by_roots, max(1, self._max_batched_tokens // PREFILL_SHARE)))

    def _admit_waiting(self, num_prefill_rows: int) -> None:
        num_pending = sum(request.num_uncomputed_tokens for request in self._running if not _decodes(request))
        while self._waiting and self._free_rows and num_pending < num_prefill_rows:
            request = self._waiting[0]
            if not self._cache.admit(request, request.num_tokens, num_spare_blocks=len(self._running)):
                return
            del self._waiting[0]
            request.status = RequestStatus.RUNNING
            request.row = heapq.heappop(self._free_rows)
            self._running.append(request)
            num_pending += request.num_uncomputed_tokens

    def _cut_chunks(self, num_roots: int, num_prefill_rows: int) -> dict[str, int]:
        """Rows of every request that prefills, the most urgent first; `num_roots` as it was before admission."""
        num_new_roots = sum(_decodes(request) for request in self._running) - num_roots
        num_left = num_prefill_rows - num_new_roots
        chunks: dict[str, int] = {}
        for request in sorted(self._running, key=_urgency):
            if not _decodes(request) and num_left > 0:
                chunks[request.request_id] = min(request.num_uncomputed_tokens, num_left)
                num_left -= chunks[request.request_id]
        return chunks

    def _fit_tree(self, shape: TreeShape, chunks: dict[str, int]) -> TreeShape:
        num_roots = sum(_decodes(request) for request in self._running)
        num_growing = sum(self._draft_limit(request) > 0 for request in self._running)
        num_left = self._max_batched_tokens - num_roots - sum(chunks.values())
        if num_growing == 0 or num_left < num_growing:
            return NO_TREE
        return shape.truncated(num_left // num_growing)

    def _draft_limit(self, request: Request) -> int:
        """Deepest tree node of this request that could be committed; 0 when it grows no tree.

        Worked example, 3 tokens may still be received: nodes at depth 1 and 2 and the bonus token fill them, so the
        limit is 2. And with draft_max_position 8 and 6 computed tokens: the root is in slot 6, the node at depth d has
        its draft row at rotary position 6 + d - 1, and 6 and 7 exist, so the limit is 2.
        """
        # With nothing computed there is no feature yet, and so no draft row that could propose anything.
        if not request.speculate or not _decodes(request) or request.num_computed_tokens == 0:
            return 0
        limit = self.num_remaining_tokens(request) - 1
        if self._draft_max_position is not None:
            limit = min(limit, self._draft_max_position - request.num_computed_tokens)
        return max(0, limit)

    def _reserve_trees(self, tree: TreeShape) -> dict[str, int]:
        """Depth of every request that grows a tree, with blocks reserved for it."""
        depths: dict[str, int] = {}
        for request in sorted(self._running, key=_urgency):
            most_slots = (len(request.block_ids) + self._cache.num_free_blocks) * self._cache.block_size
            depth = min(tree.depth, self._draft_limit(request), most_slots - request.num_tokens)
            if depth > 0:
                reserved = self._cache.grow(request, request.num_tokens + depth)
                assert reserved, f"{request.request_id} has no block for a tree that was cut to fit"
                depths[request.request_id] = depth
        return depths

    def _batch(
        self, chunks: dict[str, int], depths: dict[str, int], tree: TreeShape, preempted: list[Request]
    ) -> ScheduledBatch:
        roots = [
            ScheduledRequest(request, 1, draws_token=True, max_draft_depth=depths.get(request.request_id, 0))
            for request in self._running
            if _decodes(request)
        ]
        prefills = [
            ScheduledRequest(request, num_rows, num_rows == request.num_uncomputed_tokens, max_draft_depth=0)
            for request in self._running
            if (num_rows := chunks.get(request.request_id, 0))
        ]
        return ScheduledBatch((*roots, *prefills), tree if depths else NO_TREE, tuple(preempted))

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


def _decodes(request: Request) -> bool:
    return request.num_uncomputed_tokens == 1
