"""An engine without tensors: plays every step the scheduler plans and checks what each cache slot holds.

A slot's content is the history it was computed from, the tokens 0..j of its request. A block that is handed out anew is
poisoned: its slots hold nothing until somebody writes them. Every read checks that it finds exactly its own history.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass, field
from typing import Literal

from aquiline.config import LookupMode, SchedulerConfig, SpeculativeConfig
from aquiline.engine.cache import BlockCache
from aquiline.engine.lookup_policy import LookupPolicy
from aquiline.engine.plan import StepPlanner
from aquiline.engine.planner_choice import bounds_of, planner_for
from aquiline.engine.request_limits import RequestLimits
from aquiline.engine.schedule import ScheduledBatch, ScheduledRequest
from aquiline.engine.scheduler import Scheduler
from aquiline.engine.step_planning import PREFILL_SHARE
from aquiline.request import FinishReason, Request, SamplingParams
from aquiline.speculation import NO_TREE, parse_speculation

History = tuple[int, ...]
Phase = Literal["queued", "scheduled", "drafted", "verified", "committed"]

END_TOKEN = 9


@dataclass(frozen=True)
class Limits:
    """Sizes of a simulated engine."""

    num_blocks: int = 64
    block_size: int = 4
    max_num_seqs: int = 4
    max_num_batched_tokens: int = 32
    max_model_len: int = 128
    draft_max_position: int | None = None
    speculate: str = "tree:2x1"
    enable_prefix_cache: bool = True
    lookup: LookupMode = "off"


@dataclass(frozen=True)
class Job:
    """One request of a workload and when it arrives or is aborted, in steps."""

    prompt: tuple[int, ...]
    max_tokens: int | None = 8
    priority: int = 0
    speculate: bool = True
    prompt_logprobs: bool = False
    arrival_step: int = 0
    abort_step: int | None = None
    abort_phase: Phase = "queued"
    ends_early: bool = False
    own: str = "auto"

    def request(self, request_id: str, arrival: int) -> Request:
        params = SamplingParams(
            max_tokens=self.max_tokens,
            prompt_logprobs=0 if self.prompt_logprobs else None,
            ignore_eos=not self.ends_early,
        )
        return Request(
            request_id,
            self.prompt,
            params,
            seed=0,
            eos_token_ids=frozenset({END_TOKEN}),
            priority=self.priority,
            arrival=arrival,
            speculate=self.speculate and self.own != "off",
            looks_up=self.speculate and self.own != "off",
            own_shape=parse_speculation(self.own).shape,
        )


def next_token(history: History, ends_early: bool) -> int:
    """What the simulated target draws: a function of the history alone."""
    noise = zlib.crc32(bytes(history))
    return END_TOKEN if ends_early and noise % 13 == 0 else noise % 3


def solo_stream(job: Job, max_request_tokens: int) -> list[int]:
    """The output of a request that has the engine for itself, without speculation."""
    tokens = list(job.prompt)
    most = max_request_tokens
    if job.max_tokens is not None:
        most = min(most, len(tokens) + job.max_tokens)
    while len(tokens) < most:
        tokens.append(next_token(tuple(tokens), job.ends_early))
        if tokens[-1] == END_TOKEN:
            break
    return tokens[len(job.prompt) :]


def num_equal(first: list[int], second: list[int]) -> int:
    """Length of the common beginning."""
    differs = (index for index, (one, other) in enumerate(zip(first, second, strict=False)) if one != other)
    return next(differs, min(len(first), len(second)))


@dataclass
class Pending:
    """What the simulated engine keeps per running request."""

    block_ids: list[int]
    features: dict[int, History] = field(default_factory=dict)


class Simulator:
    """Runs requests step by step; raises AssertionError or ConsistencyError at the first fault."""

    def __init__(
        self, limits: Limits, seed: int = 0, cache: BlockCache | None = None, planner: StepPlanner | None = None
    ) -> None:
        self.limits = limits
        self.cache = cache or BlockCache(limits.num_blocks, limits.block_size, limits.enable_prefix_cache)
        speculative = SpeculativeConfig(parse_speculation(limits.speculate), lookup=limits.lookup, lookup_tokens=6)
        self.lookup = LookupPolicy(speculative, has_draft=True)
        self.scheduler = Scheduler(
            SchedulerConfig(limits.max_num_seqs, limits.max_num_batched_tokens),
            self.cache,
            planner or planner_for(speculative, bounds_of(speculative, 100)),
            RequestLimits(limits.max_model_len, self.cache, limits.draft_max_position),
            self.lookup,
        )
        self.batches: list[ScheduledBatch] = []
        self._random = random.Random(seed)
        self._target_rows: dict[int, History] = {}
        self._draft_rows: dict[int, History] = {}
        self._block_features: dict[int, History] = {}
        self._pending: dict[str, Pending] = {}

    def run(self, jobs: list[Job], max_steps: int) -> list[Request]:
        """Play a workload to its end; the requests, in the order of the jobs."""
        requests = [job.request(f"r{index}", index) for index, job in enumerate(jobs)]
        last_arrival = max(job.arrival_step for job in jobs)
        for step in range(max_steps):
            for job, request in zip(jobs, requests, strict=True):
                if job.arrival_step == step:
                    self.scheduler.add(request)
            aborts: dict[Phase, list[str]] = {}
            for job, request in zip(jobs, requests, strict=True):
                if job.abort_step == step:
                    aborts.setdefault(job.abort_phase, []).append(request.request_id)
            self.step(aborts)
            if step >= last_arrival and not self.scheduler.has_unfinished:
                return requests
        raise AssertionError(f"not finished after {max_steps} steps")

    def run_alone(self, job: Job, request_id: str) -> Request:
        """Play one more request to its end."""
        request = job.request(request_id, arrival=0)
        self.scheduler.add(request)
        while self.scheduler.has_unfinished:
            self.step()
        return request

    def step(self, aborts: dict[Phase, list[str]] | None = None) -> ScheduledBatch:
        """One engine step, with requests aborted after each phase as told."""
        aborts = aborts or {}
        self._abort(aborts, "queued")
        running_before = [request for request in self.scheduler._running]
        batch = self.scheduler.schedule()
        self.batches.append(batch)
        self.scheduler.check_integrity()
        self._check_batch(batch)
        self._check_fairness(batch, running_before)
        self._take_over(batch)
        self._abort(aborts, "scheduled")
        for scheduled in batch.requests:
            self._extend_draft(scheduled)
        self._abort(aborts, "drafted")
        runs = {s.request.request_id: self._verify(s) for s in batch.requests if not s.request.is_finished}
        self._abort(aborts, "verified")
        for scheduled in batch.requests:
            if not scheduled.request.is_finished:
                self._commit(scheduled, runs[scheduled.request.request_id])
        self._abort(aborts, "committed")
        self.scheduler.check_integrity()
        return batch

    def _abort(self, aborts: dict[Phase, list[str]], phase: Phase) -> None:
        for request_id in aborts.get(phase, []):
            aborted = self.scheduler.abort(request_id)
            assert aborted is None or (aborted.is_finished and aborted.finish_reason is FinishReason.ABORT)
            self._pending.pop(request_id, None)

    def _check_batch(self, batch: ScheduledBatch) -> None:
        limits = self.limits
        assert bool(batch.requests) == self.scheduler.has_unfinished, "a step without progress"
        ids = [s.request.request_id for s in batch.requests]
        assert len(set(ids)) == len(ids) and len(ids) <= limits.max_num_seqs
        assert not set(ids) & {request.request_id for request in batch.preempted}
        num_growing = sum(s.grown_depth > 0 and s.request.own_shape is None for s in batch.requests)
        num_rows = sum(s.num_new_tokens + s.known.num_draft_tokens for s in batch.requests)
        num_rows += sum(s.num_held(s.request.own_shape or batch.tree) for s in batch.requests)
        assert num_rows <= limits.max_num_batched_tokens, f"{num_rows} rows in a step"
        assert (batch.tree == NO_TREE) == (num_growing == 0) == (batch.tree.num_draft_tokens == 0)
        decodes = [s.draws_token and s.num_new_tokens == 1 for s in batch.requests]
        assert decodes == sorted(decodes, reverse=True), "prefill before decode"
        for scheduled in batch.requests:
            self._check_scheduled(scheduled, batch)

    def _check_scheduled(self, scheduled: ScheduledRequest, batch: ScheduledBatch) -> None:
        request, depth = scheduled.request, scheduled.max_draft_depth
        assert 1 <= scheduled.num_new_tokens <= request.num_uncomputed_tokens
        assert scheduled.draws_token == (scheduled.num_new_tokens == request.num_uncomputed_tokens)
        end = request.num_computed_tokens + scheduled.num_new_tokens + depth
        assert len(request.block_ids) * self.limits.block_size >= end, "a slot without a block"
        assert 0 <= scheduled.grown_depth <= (request.own_shape or batch.tree).depth
        assert depth == max(scheduled.grown_depth, scheduled.known.depth)
        if depth:
            assert request.num_uncomputed_tokens == 1
            assert request.num_tokens + depth + 1 <= self.scheduler.max_request_tokens
            assert depth + 1 <= self.scheduler.num_remaining_tokens(request)
        if scheduled.grown_depth:
            assert request.speculate
            if self.limits.draft_max_position is not None:
                assert request.num_computed_tokens + scheduled.grown_depth - 1 < self.limits.draft_max_position
        if scheduled.known.num_draft_tokens:
            assert request.looks_up and self.limits.lookup != "off"

    def _check_fairness(self, batch: ScheduledBatch, running_before: list[Request]) -> None:
        rows = {s.request.request_id: s.num_new_tokens for s in batch.requests}
        kept = [request for request in running_before if request not in batch.preempted]
        decoding = [request for request in kept if request.num_uncomputed_tokens == 1]
        assert all(request.request_id in rows for request in decoding), "a decoding request was passed over"
        prefilling = [request for request in kept if request.num_uncomputed_tokens > 1]
        budget = self.limits.max_num_batched_tokens
        promised = min(
            sum(request.num_uncomputed_tokens for request in prefilling),
            max(1, budget // PREFILL_SHARE),
            budget - len(decoding),
        )
        num_prefill_rows = sum(rows.values()) - len(decoding)
        assert num_prefill_rows >= promised, "prefill was starved"

    def _take_over(self, batch: ScheduledBatch) -> None:
        """Poison blocks that were handed out, and start the pending features of admitted requests."""
        for request in batch.preempted:
            self._pending.pop(request.request_id, None)
        for request in self.scheduler._running:
            pending = self._pending.get(request.request_id)
            if pending is None:
                pending = self._admit(request)
            for block_id in request.block_ids[num_equal(request.block_ids, pending.block_ids) :]:
                for slot in range(block_id * self.limits.block_size, (block_id + 1) * self.limits.block_size):
                    self._target_rows.pop(slot, None)
                    self._draft_rows.pop(slot, None)
                self._block_features.pop(block_id, None)
            pending.block_ids = list(request.block_ids)

    def _admit(self, request: Request) -> Pending:
        num_found = request.num_computed_tokens
        assert num_found % self.limits.block_size == 0 and num_found < request.num_tokens
        pending = Pending(request.block_ids[: num_found // self.limits.block_size])
        self._pending[request.request_id] = pending
        self._check_rows(request)
        if request.speculate and num_found:
            last_block = pending.block_ids[-1]
            assert self._block_features.get(last_block) == tuple(request.token_ids[:num_found])
            pending.features[num_found - 1] = self._block_features[last_block]
            assert request.num_draft_rows == num_found - 1
        return pending

    def _check_rows(self, request: Request) -> None:
        tokens = tuple(request.token_ids)
        for position in range(request.num_computed_tokens):
            assert self._target_rows.get(self._slot(request, position)) == tokens[: position + 1], "wrong target row"
        for position in range(1, request.num_draft_rows + 1):
            assert self._draft_rows.get(self._slot(request, position)) == tokens[: position + 1], "wrong draft row"

    def _slot(self, request: Request, position: int) -> int:
        index, offset = divmod(position, self.limits.block_size)
        return request.block_ids[index] * self.limits.block_size + offset

    def _extend_draft(self, scheduled: ScheduledRequest) -> None:
        request, due = scheduled.request, scheduled.num_due_draft_rows
        if request.is_finished or not request.speculate:
            return
        features = self._pending[request.request_id].features
        for position in range(request.num_draft_rows + 1, request.num_draft_rows + due + 1):
            if self.limits.draft_max_position is not None:
                assert position - 1 < self.limits.draft_max_position, "a draft row beyond the draft's positions"
            assert features.pop(position - 1) == tuple(request.token_ids[:position]), "a feature of another history"
            self.cache.assert_writable(request, position, position)
            self._draft_rows[self._slot(request, position)] = tuple(request.token_ids[: position + 1])
        request.num_draft_rows += due
        if scheduled.grown_depth:
            assert request.num_draft_rows == request.num_computed_tokens, "a tree without the draft row of its root"
        self._check_rows(request)

    def _run_length(self, most: int) -> int:
        return self._random.randint(1, most)

    def _verify(self, scheduled: ScheduledRequest) -> list[int]:
        """Compute the rows of one request; returns the accepted run, not yet cut by the stop rules."""
        request = scheduled.request
        self._check_rows(request)
        tokens = list(request.token_ids)
        run: list[int] = []
        if scheduled.draws_token:
            ends_early = not request.params.ignore_eos
            for _ in range(self._run_length(scheduled.max_draft_depth + 1)):
                run.append(next_token((*tokens, *run), ends_early))
        first = request.num_computed_tokens
        last = first + scheduled.num_new_tokens - 1 + max(0, len(run) - 1)
        self.cache.assert_writable(request, first, last)
        for position in range(first, last + 1):
            history = (*tokens, *run)[: position + 1]
            self._target_rows[self._slot(request, position)] = history
            if request.speculate:
                self._pending[request.request_id].features[position] = history
                if (position + 1) % self.limits.block_size == 0:
                    self._block_features[request.block_ids[position // self.limits.block_size]] = history
        return run

    def _commit(self, scheduled: ScheduledRequest, run: list[int]) -> None:
        request = scheduled.request
        for token in run:
            request.token_ids.append(token)
            if token == END_TOKEN:
                request.finish_reason = FinishReason.STOP
            elif self.scheduler.num_remaining_tokens(request) == 0:
                request.finish_reason = FinishReason.LENGTH
            if request.finish_reason is not None:
                break
        num_computed = request.num_computed_tokens + scheduled.num_new_tokens
        request.num_computed_tokens = request.num_tokens - 1 if run else num_computed
        self.cache.publish(request)
        if request.finish_reason is not None:
            self.scheduler.finish(request)
            self.scheduler.finish(request)
            self._pending.pop(request.request_id)
