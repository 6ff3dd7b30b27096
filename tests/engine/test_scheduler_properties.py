"""Random workloads: every request gets what it would get alone, whatever it shares the engine with."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aquiline.engine.cache import BlockCache
from aquiline.errors import ConsistencyError
from aquiline.request import FinishReason, Request
from tests.engine.scheduler_simulator import END_TOKEN, Job, Limits, Phase, Simulator, solo_stream

PHASES: list[Phase] = ["queued", "scheduled", "drafted", "verified", "committed"]
SHAPES = [
    "off",
    "auto",
    "chain:3",
    "tree:2x2",
    "paths:0,1,2,00",
    "dynamic:steps=3,topk=2,nodes=5",
    "dynamic:steps=3,topk=2,nodes=5,survival=0.02",
]
BEGINNINGS = [(0, 1, 2, 0, 0, 1, 1, 2, 2, 0, 1, 0, 2, 1, 0, 0, 2, 2, 1, 1), (0, 1, 2, 0, 2, 2, 2, 2, 1, 0) * 2]


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    block_size = draw(st.sampled_from([1, 2, 4, 16]))
    max_num_seqs = draw(st.integers(1, 5))
    return Limits(
        num_blocks=-(-draw(st.integers(24, 90)) // block_size),
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + draw(st.integers(0, 24)),
        max_model_len=draw(st.integers(23, 60)),
        draft_max_position=draw(st.sampled_from([None, None, 2, 9, 25])),
        speculate=(shape := draw(st.sampled_from(SHAPES))),
        enable_prefix_cache=draw(st.sampled_from([True, True, True, False])),
        lookup=draw(st.sampled_from(("off", "auto") if shape == "off" else ("off", "auto", "on"))),
    )


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    beginning = draw(st.sampled_from(BEGINNINGS))[: draw(st.integers(0, 20))]
    tail = draw(st.lists(st.integers(0, 2), min_size=not beginning, max_size=2))
    return Job(
        prompt=(*beginning, *tail),
        max_tokens=draw(st.one_of(st.none(), st.integers(1, 24))),
        priority=draw(st.integers(0, 2)),
        speculate=draw(st.sampled_from([True, True, False])),
        prompt_logprobs=draw(st.sampled_from([False, False, False, True])),
        arrival_step=draw(st.integers(0, 12)),
        abort_step=draw(st.one_of(st.none(), st.none(), st.integers(0, 20))),
        abort_phase=draw(st.sampled_from(PHASES)),
        ends_early=draw(st.booleans()),
    )


def check_outcome(job: Job, request: Request, max_request_tokens: int) -> None:
    expected = solo_stream(job, max_request_tokens)
    if request.finish_reason is FinishReason.ABORT:
        assert request.output_token_ids == expected[: request.num_output_tokens]
        return
    assert request.output_token_ids == expected
    ended = FinishReason.STOP if expected[-1] == END_TOKEN else FinishReason.LENGTH
    assert request.finish_reason is ended


@given(limits(), st.lists(jobs(), min_size=1, max_size=9), st.integers(0, 1000))
@settings(max_examples=200, deadline=None)
def test_every_request_equals_its_solo_run(limits: Limits, jobs: list[Job], seed: int) -> None:
    simulator = Simulator(limits, seed)
    requests = simulator.run(jobs, max_steps=30 + 100 * len(jobs) ** 2)
    for job, request in zip(jobs, requests, strict=True):
        assert request.is_finished and not request.block_ids and request.row == -1
        assert not job.prompt_logprobs or request.num_cached_tokens == 0
        check_outcome(job, request, simulator.scheduler.max_request_tokens)
    assert simulator.cache.num_free_blocks == limits.num_blocks
    assert simulator.lookup.num_requests == 0
    assert limits.enable_prefix_cache or simulator.cache.num_cached_blocks == 0


class CacheThatIgnoresDraftRows(BlockCache):
    def acquire_prefix(self, request: Request) -> int:
        raise NotImplementedError

    def admit(self, request: Request, num_slots: int, num_spare_blocks: int = 0) -> bool:
        speculates, request.speculate = request.speculate, False
        admitted = super().admit(request, num_slots, num_spare_blocks)
        request.speculate = speculates
        return admitted


class CacheThatPublishesEarly(BlockCache):
    def publish(self, request: Request) -> None:
        request.num_computed_tokens += self.block_size
        if self.blocks_for(request.num_computed_tokens) <= len(request.block_ids):
            super().publish(request)
        request.num_computed_tokens -= self.block_size


class CacheThatForgetsSharing(BlockCache):
    def free(self, request: Request) -> None:
        self._ref_counts = [min(count, 1) for count in self._ref_counts]
        super().free(request)


@pytest.mark.parametrize("faulty", [CacheThatIgnoresDraftRows, CacheThatPublishesEarly, CacheThatForgetsSharing])
def test_the_simulator_notices(faulty: type[BlockCache]) -> None:
    prompt = BEGINNINGS[0]
    workload = [
        Job(prompt, speculate=False),
        Job(prompt, arrival_step=3),
        Job(prompt, arrival_step=4, speculate=False),
        Job(prompt, arrival_step=4, speculate=False),
    ]
    limits = Limits(num_blocks=40)
    Simulator(limits).run(workload, max_steps=100)
    with pytest.raises((AssertionError, ConsistencyError)):
        Simulator(limits, cache=faulty(limits.num_blocks, limits.block_size, True)).run(workload, max_steps=100)
