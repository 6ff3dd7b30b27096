"""Named scenarios: limits, fairness, preemption, aborts, leaks and what speculation may take."""

from __future__ import annotations

import pytest

from aquiline.engine.schedule import ScheduledBatch
from aquiline.errors import ConsistencyError, InvalidParameterError, PromptError
from aquiline.request import FinishReason, Request, RequestStatus
from aquiline.speculation import NO_TREE
from tests.engine.scheduler_simulator import Job, Limits, Phase, Simulator, solo_stream

PROMPT = tuple(position % 3 for position in range(40))


class RejectingSimulator(Simulator):
    """Every draft token is rejected."""

    def _run_length(self, most: int) -> int:
        return 1


def add(simulator: Simulator, *jobs: Job) -> list[Request]:
    """Add requests named a, b, c, ... in order of arrival."""
    requests = [job.request("abcdefgh"[index], index) for index, job in enumerate(jobs)]
    for request in requests:
        simulator.scheduler.add(request)
    return requests


def finish_all(simulator: Simulator) -> None:
    while simulator.scheduler.has_unfinished:
        simulator.step()


def rows(batch: ScheduledBatch) -> dict[str, int]:
    return {scheduled.request.request_id: scheduled.num_new_tokens for scheduled in batch.requests}


def depths(batch: ScheduledBatch) -> dict[str, int]:
    return {scheduled.request.request_id: scheduled.max_draft_depth for scheduled in batch.requests}


class TestLimits:
    @pytest.mark.parametrize(
        ("limits", "num_prompt_tokens", "message"),
        [
            (Limits(max_model_len=16), 16, "16 tokens; at most 15 .* max_model_len"),
            (Limits(max_model_len=128, num_blocks=4), 16, "16 tokens; at most 15 .*4 blocks of 4.* kv_cache_gb"),
            (Limits(), 0, "no tokens"),
        ],
        ids=["context", "cache", "empty"],
    )
    def test_a_prompt_that_can_never_run_is_refused(self, limits: Limits, num_prompt_tokens: int, message: str) -> None:
        simulator = Simulator(limits)
        with pytest.raises(PromptError, match=message) as refusal:
            add(simulator, Job(PROMPT[:num_prompt_tokens]))
        assert "\n" not in str(refusal.value)
        assert not simulator.scheduler.has_unfinished

    @pytest.mark.parametrize("limits", [Limits(max_model_len=16), Limits(num_blocks=4)], ids=["context", "cache"])
    def test_the_longest_prompt_that_fits_gets_one_token(self, limits: Limits) -> None:
        request = Simulator(limits).run_alone(Job(PROMPT[:15]), "a")
        assert request.num_output_tokens == 1
        assert request.finish_reason is FinishReason.LENGTH

    def test_a_request_that_outgrows_the_whole_cache_ends_by_length(self) -> None:
        simulator = Simulator(Limits(num_blocks=4, max_model_len=128))
        request = simulator.run_alone(Job(PROMPT[:5], max_tokens=None), "a")
        assert request.num_tokens == simulator.scheduler.max_request_tokens == 16
        assert request.finish_reason is FinishReason.LENGTH
        assert request.num_preemptions == 0

    @pytest.mark.parametrize("num_prompt_tokens", [20, 28, 31, 32, 33, 60])
    def test_a_draft_with_fewer_positions_than_the_target_stops_in_time(self, num_prompt_tokens: int) -> None:
        limits = Limits(max_model_len=128, draft_max_position=32, speculate="chain:4", max_num_batched_tokens=16)
        simulator = Simulator(limits)
        job = Job(PROMPT[:20] * 3, max_tokens=None)
        job = Job(job.prompt[:num_prompt_tokens], max_tokens=None)
        request = simulator.run_alone(job, "a")
        assert request.num_tokens == 128
        grown = [
            scheduled.request.num_prompt_tokens
            for batch in simulator.batches
            for scheduled in batch.requests
            if scheduled.max_draft_depth
        ]
        assert bool(grown) == (num_prompt_tokens < 32)
        assert request.speculate is False

    def test_the_draft_limit_in_numbers(self) -> None:
        simulator = Simulator(Limits(draft_max_position=10, speculate="chain:4"))
        add(simulator, Job(PROMPT[:7], max_tokens=50))
        simulator.step()
        assert depths(simulator.step()) == {"a": 3}

    @pytest.mark.parametrize(("num_prompt_tokens", "speculates"), [(10, True), (11, False)])
    def test_draft_work_ends_with_the_last_useful_position(self, num_prompt_tokens: int, speculates: bool) -> None:
        (request,) = add(Simulator(Limits(draft_max_position=10)), Job(PROMPT[:num_prompt_tokens]))
        assert request.speculate is speculates

    def test_the_last_tokens_grow_no_tree_they_cannot_keep(self) -> None:
        simulator = Simulator(Limits(speculate="chain:4"))
        add(simulator, Job(PROMPT[:4], max_tokens=4), Job(PROMPT[4:9], max_tokens=2))
        simulator.step()
        assert depths(simulator.step()) == {"a": 2, "b": 0}

    def test_an_id_can_be_used_again_only_after_its_request_finished(self) -> None:
        simulator = Simulator(Limits())
        add(simulator, Job(PROMPT[:4]))
        with pytest.raises(InvalidParameterError, match="'a'"):
            add(simulator, Job(PROMPT[:4]))
        finish_all(simulator)
        add(simulator, Job(PROMPT[:4]))
        finish_all(simulator)


class TestPrefixCache:
    @pytest.mark.parametrize("block_size", [1, 4, 16])
    @pytest.mark.parametrize("chunk", [7, 64])
    def test_hit_rate_is_the_same_with_and_without_speculation(self, block_size: int, chunk: int) -> None:
        found = {}
        for speculate in (True, False):
            simulator = Simulator(Limits(block_size=block_size, max_num_batched_tokens=chunk))
            job = Job(PROMPT, max_tokens=8, speculate=speculate)
            simulator.run_alone(job, "first")
            found[speculate] = simulator.run_alone(job, "second").num_cached_tokens
        assert found[True] == found[False] == 39 // block_size * block_size

    def test_a_speculating_request_does_not_read_draft_rows_that_nobody_wrote(self) -> None:
        simulator = Simulator(Limits())
        simulator.run_alone(Job(PROMPT, speculate=False), "plain")
        assert simulator.run_alone(Job(PROMPT), "speculating").num_cached_tokens == 0
        assert simulator.run_alone(Job(PROMPT), "again").num_cached_tokens == 36

    def test_requests_for_one_token_share_everything(self) -> None:
        simulator = Simulator(Limits())
        first = simulator.run_alone(Job(PROMPT, max_tokens=1), "first")
        assert first.speculate is False
        assert simulator.run_alone(Job(PROMPT, max_tokens=1), "second").num_cached_tokens == 36

    def test_a_found_prompt_decodes_with_a_tree_in_its_first_step(self) -> None:
        simulator = Simulator(Limits(block_size=4, speculate="chain:3"))
        simulator.run_alone(Job(PROMPT[:17]), "first")
        simulator.scheduler.add(Job(PROMPT[:17]).request("second", 1))
        batch = simulator.step()
        assert rows(batch) == {"second": 1}
        assert depths(batch) == {"second": 3}

    def test_the_next_turn_finds_the_answer_of_the_last(self) -> None:
        simulator = Simulator(Limits(block_size=1, speculate="chain:2"))
        first = simulator.run_alone(Job(PROMPT[:10], speculate=False), "first")
        turn = Job((*first.token_ids, 1, 2), speculate=False)
        assert simulator.run_alone(turn, "second").num_cached_tokens == first.num_tokens - 1


class TestFairness:
    def test_a_stream_of_long_prompts_does_not_starve_decoding(self) -> None:
        simulator = Simulator(Limits(num_blocks=128, max_num_seqs=4, max_num_batched_tokens=16))
        decoding = Job(PROMPT[:3], max_tokens=30)
        stream = [Job((*PROMPT[:38], index % 3, 1), max_tokens=1, arrival_step=index) for index in range(30)]
        requests = simulator.run([decoding, *stream], max_steps=400)
        steps = [batch for batch in simulator.batches if requests[0] in [s.request for s in batch.requests]]
        assert len(steps) <= 30
        assert steps == simulator.batches[: len(steps)]

    @pytest.mark.parametrize("shape", ["tree:3x2", "chain:7", "dynamic:steps=4,topk=2,nodes=9", "off"])
    def test_decoding_at_full_budget_leaves_prefill_its_share(self, shape: str) -> None:
        simulator = Simulator(Limits(num_blocks=128, max_num_seqs=3, max_num_batched_tokens=16, speculate=shape))
        add(simulator, Job(PROMPT[:2], max_tokens=60), Job(PROMPT[5:7], max_tokens=60))
        simulator.step()
        simulator.scheduler.add(Job(PROMPT, speculate=False).request("late", 9))
        late = simulator.scheduler._waiting[0]
        while late.num_uncomputed_tokens > 1:
            promised = min(4, late.num_uncomputed_tokens)
            assert rows(simulator.step())["late"] >= promised

    def test_the_tree_shrinks_only_as_far_as_prefill_needs(self) -> None:
        simulator = Simulator(Limits(max_num_seqs=3, max_num_batched_tokens=16, speculate="chain:7"))
        add(simulator, Job(PROMPT[:2], max_tokens=60), Job(PROMPT[5:7], max_tokens=60))
        simulator.step()
        assert simulator.step().tree.num_draft_tokens == 7
        simulator.scheduler.add(Job(PROMPT[:2]).request("short", 9))
        assert simulator.step().tree.num_draft_tokens == 6

    @pytest.mark.parametrize(
        "shape", ["tree:2x1", "dynamic:steps=3,topk=2,nodes=5,survival=0.02", "dynamic:steps=3,topk=2,nodes=5"]
    )
    def test_the_tree_goes_when_the_roots_leave_no_room(self, shape: str) -> None:
        simulator = Simulator(Limits(max_num_seqs=4, max_num_batched_tokens=4, speculate=shape))
        add(simulator, *[Job((index % 3, 1), max_tokens=30) for index in range(4)])
        while len(simulator.step().requests) < 4:
            pass
        batch = simulator.step()
        assert batch.tree == NO_TREE
        assert list(depths(batch).values()) == [0, 0, 0, 0]

    def test_prefill_is_mixed_with_decode_and_comes_after_it(self) -> None:
        simulator = Simulator(Limits(max_num_batched_tokens=16, speculate="off"))
        add(simulator, Job(PROMPT), Job(PROMPT[2:4], priority=-1))
        assert rows(simulator.step()) == {"b": 2, "a": 14}
        assert rows(simulator.step()) == {"b": 1, "a": 15}
        assert rows(simulator.step()) == {"b": 1, "a": 11}
        assert list(rows(simulator.step())) == ["b", "a"]


class TestOrder:
    def test_the_most_urgent_prompt_is_computed_first(self) -> None:
        simulator = Simulator(Limits(max_num_batched_tokens=8, max_num_seqs=4))
        add(simulator, Job(PROMPT[:12]))
        assert rows(simulator.step()) == {"a": 8}
        simulator.scheduler.add(Job(PROMPT[1:6], priority=-1).request("urgent", 9))
        assert rows(simulator.step()) == {"a": 3, "urgent": 5}

    def test_waiting_requests_are_admitted_by_priority_then_arrival(self) -> None:
        simulator = Simulator(Limits(max_num_seqs=1))
        add(simulator, *[Job(PROMPT[:3], priority=priority, max_tokens=1) for priority in (1, 0, 1, -2, 0)])
        finish_all(simulator)
        admitted = [scheduled.request.request_id for batch in simulator.batches for scheduled in batch.requests]
        assert admitted == ["d", "b", "e", "a", "c"]

    def test_nobody_overtakes_a_request_that_waits_for_blocks(self) -> None:
        simulator = Simulator(Limits(num_blocks=12, block_size=4, speculate="off"))
        add(simulator, Job(PROMPT[:30], max_tokens=4), Job(PROMPT[1:30], max_tokens=4), Job(PROMPT[2:4], max_tokens=4))
        assert rows(simulator.step()) == {"a": 30}
        assert rows(simulator.step()) == {"a": 1}
        assert simulator.scheduler.num_waiting == 2

    def test_device_rows_are_unique_and_used_again(self) -> None:
        simulator = Simulator(Limits(max_num_seqs=2))
        requests = add(simulator, *[Job(PROMPT[:3], max_tokens=2 + index) for index in range(4)])
        simulator.step()
        assert [request.row for request in requests] == [0, 1, -1, -1]
        finish_all(simulator)
        assert [request.row for request in requests] == [-1, -1, -1, -1]

    def test_a_full_step_waits_for_nothing(self) -> None:
        assert Simulator(Limits()).step().requests == ()


class TestPreemption:
    def tight(self, *jobs: Job) -> tuple[Simulator, list[Request]]:
        simulator = Simulator(Limits(num_blocks=8, block_size=2, max_num_batched_tokens=8, speculate="off"))
        return simulator, add(simulator, *jobs)

    def test_the_least_urgent_request_gives_way_and_comes_back(self) -> None:
        first, second = Job(PROMPT[:4], max_tokens=10), Job(PROMPT[1:5], max_tokens=10, priority=-1)
        simulator, requests = self.tight(first, second)
        finish_all(simulator)
        assert [request.num_preemptions for request in requests] == [1, 0]
        assert [request.output_token_ids for request in requests] == [solo_stream(job, 16) for job in (first, second)]
        assert simulator.cache.num_free_blocks == 8

    def test_a_preempted_request_waits_before_later_ones_of_its_class(self) -> None:
        jobs = [Job(PROMPT[index : index + 4], max_tokens=10) for index in range(3)]
        simulator, requests = self.tight(*jobs)
        while not simulator.batches or not simulator.batches[-1].preempted:
            simulator.step()
        preempted = simulator.batches[-1].preempted
        assert preempted == (requests[1],)
        assert simulator.scheduler._waiting == [requests[1], requests[2]]
        assert requests[1].status is RequestStatus.WAITING
        assert (requests[1].num_computed_tokens, requests[1].num_draft_rows, requests[1].row) == (0, 0, -1)

    def test_preemption_in_the_middle_of_a_prompt(self) -> None:
        decoding, prefilling = Job(PROMPT[:3], max_tokens=12), Job(PROMPT[1:10], max_tokens=3)
        simulator = Simulator(Limits(num_blocks=8, block_size=2, max_num_seqs=3, max_num_batched_tokens=3))
        requests = add(simulator, decoding, prefilling)
        while not simulator.batches or not simulator.batches[-1].preempted:
            computed = requests[1].num_computed_tokens
            simulator.step()
        assert 0 < computed < 9
        finish_all(simulator)
        assert requests[1].num_preemptions == 1
        assert [r.output_token_ids for r in requests] == [solo_stream(job, 16) for job in (decoding, prefilling)]

    def test_a_tree_ends_where_the_free_blocks_end(self) -> None:
        simulator = Simulator(Limits(num_blocks=4, block_size=4, speculate="chain:8"))
        add(simulator, Job(PROMPT[:6], max_tokens=None), Job(PROMPT[1:3], max_tokens=2))
        assert simulator.step().preempted == ()
        batch = simulator.step()
        assert batch.preempted == ()
        assert depths(batch) == {"a": 5, "b": 0}

    def test_blocks_of_unfilled_trees_are_taken_back_before_anybody_is_preempted(self) -> None:
        simulator = RejectingSimulator(Limits(num_blocks=12, block_size=1, speculate="chain:4"))
        plain, drafting = add(simulator, Job(PROMPT[:3], speculate=False), Job(PROMPT[1:4]))
        simulator.step()
        assert depths(simulator.step()) == {"a": 0, "b": 4}
        assert (len(plain.block_ids), len(drafting.block_ids), simulator.cache.num_free_blocks) == (4, 8, 0)
        batch = simulator.step()
        assert batch.preempted == ()
        assert depths(batch) == {"a": 0, "b": 2}


class TestAbort:
    PHASES: tuple[Phase, ...] = ("queued", "scheduled", "drafted", "verified", "committed")

    @pytest.mark.parametrize("phase", PHASES)
    @pytest.mark.parametrize("step", [0, 1, 3], ids=["first-chunk", "mid-prompt", "decoding"])
    @pytest.mark.parametrize("block_size", [1, 4, 16])
    def test_an_abort_frees_everything_and_disturbs_nobody(self, phase: Phase, step: int, block_size: int) -> None:
        simulator = Simulator(Limits(block_size=block_size, max_num_batched_tokens=24))
        aborted = Job(PROMPT, max_tokens=20, abort_step=step, abort_phase=phase)
        others = [Job(PROMPT, max_tokens=6), Job(PROMPT[:9], max_tokens=6, arrival_step=2)]
        requests = simulator.run([aborted, *others], max_steps=100)
        assert requests[0].finish_reason is FinishReason.ABORT
        assert [request.output_token_ids for request in requests[1:]] == [solo_stream(job, 128) for job in others]
        assert simulator.cache.num_free_blocks == simulator.limits.num_blocks

    def test_an_abort_while_queued(self) -> None:
        simulator = Simulator(Limits(max_num_seqs=1))
        requests = add(simulator, Job(PROMPT[:4]), Job(PROMPT[:4]))
        simulator.step()
        assert simulator.scheduler.abort("b") is requests[1]
        assert requests[1].is_finished and simulator.scheduler.num_waiting == 0
        finish_all(simulator)

    def test_an_abort_of_nobody(self) -> None:
        simulator = Simulator(Limits())
        simulator.run_alone(Job(PROMPT[:4]), "a")
        assert simulator.scheduler.abort("a") is None
        assert simulator.scheduler.abort("unknown") is None

    def test_an_abort_does_not_change_how_a_request_already_ended(self) -> None:
        simulator = Simulator(Limits())
        (request,) = add(simulator, Job(PROMPT[:4]))
        simulator.step()
        request.status, request.finish_reason = RequestStatus.FINISHED, FinishReason.STOP
        assert simulator.scheduler.abort("a") is request
        assert request.finish_reason is FinishReason.STOP
        assert simulator.cache.num_free_blocks == simulator.limits.num_blocks


class TestLeaks:
    @pytest.mark.parametrize("block_size", [1, 4, 16])
    @pytest.mark.parametrize("reason", list(FinishReason))
    def test_no_block_is_lost_for_any_finish_reason(self, reason: FinishReason, block_size: int) -> None:
        simulator = Simulator(Limits(block_size=block_size, max_num_seqs=3, speculate="chain:5"))
        is_abort = reason is FinishReason.ABORT
        jobs = [
            Job(
                (*PROMPT[:7], index // 3, index % 3),
                max_tokens=12 if reason is FinishReason.LENGTH else None,
                ends_early=reason is FinishReason.STOP,
                abort_step=4 + index if is_abort else None,
                abort_phase=TestAbort.PHASES[index % 5],
            )
            for index in range(9)
        ]
        requests = simulator.run(jobs, max_steps=400)
        assert {request.finish_reason for request in requests} == {reason}
        assert simulator.cache.num_free_blocks == simulator.limits.num_blocks
        simulator.scheduler.check_integrity()


@pytest.mark.parametrize("sabotage", ["row", "queue", "table"])
def test_integrity_check_notices(sabotage: str) -> None:
    simulator = Simulator(Limits(max_num_seqs=1))
    running, waiting, last = add(simulator, Job(PROMPT[:4]), Job(PROMPT[:4]), Job(PROMPT[:4]))
    simulator.step()
    simulator.scheduler.check_integrity()
    if sabotage == "row":
        running.row = 3
    elif sabotage == "queue":
        last.priority = -1
    else:
        waiting.block_ids = [0]
    with pytest.raises(ConsistencyError):
        simulator.scheduler.check_integrity()
