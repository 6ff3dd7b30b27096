"""Speculation, batching, chunking, caching and preemption change when tokens come, never which."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aquiline.engine.engine import Engine
from aquiline.request import FinishReason, SamplingParams
from tests.engine.strategies import FIXED_MODES, tiny_settings, workloads
from tests.engine.workloads import (
    DRAFT_KINDS,
    Job,
    Script,
    answers,
    assert_nothing_left,
    histories_of,
    make_engine,
    plain_answers,
    random_prompt,
    run_jobs,
    watch_preemptions,
)
from tests.tiny import ScriptedDrafter, TinySettings

SEVERAL = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

VARIED_JOBS = [
    Job(random_prompt(9, seed=1), SamplingParams(temperature=0, max_tokens=11, ignore_eos=True, prompt_logprobs=1)),
    Job((*random_prompt(9, seed=1), 4, 5), SamplingParams(seed=3, top_p=0.9, max_tokens=9, logprobs=2)),
    Job(random_prompt(2, seed=2), SamplingParams(seed=4, temperature=0.7, frequency_penalty=1.0, n=2, max_tokens=10)),
    Job(random_prompt(17, seed=3), SamplingParams(temperature=0, max_tokens=12, stop=("p", "ab"), min_tokens=3)),
    Job((5,), SamplingParams(seed=8, max_tokens=12, repetition_penalty=1.3, logit_bias={11: 2.0}, top_k=20)),
]


def speculate_by_script(engine: Engine, jobs: list[Job], kind: str = "eagle3", period: int = 3) -> None:
    """Let most draft tokens be right, so that long runs are accepted."""
    expected = [plain_answers(job, kind) for job in jobs]
    if engine._drafter is not None:
        ScriptedDrafter.replace_in(engine, Script(histories_of(jobs, expected), period).chooser())


@SEVERAL
@given(st.data())
def test_random_work_gives_what_each_request_gives_alone_and_plainly(data: st.DataObject) -> None:
    jobs = data.draw(workloads())
    kind = data.draw(st.sampled_from(DRAFT_KINDS))
    engine = make_engine(data.draw(tiny_settings(max(job.max_tokens for job in jobs))), kind)
    expected = [plain_answers(job, kind) for job in jobs]
    if data.draw(st.booleans()) and engine._drafter is not None:
        ScriptedDrafter.replace_in(engine, Script(histories_of(jobs, expected), period=3).chooser())
    outputs = run_jobs(engine, jobs)
    for index, (job, samples) in enumerate(zip(jobs, expected, strict=True)):
        if str(index) not in outputs:
            assert job.abort is not None
            continue
        for answer, sample in zip(answers(outputs[str(index)]), samples, strict=True):
            if answer.finish_reason is FinishReason.ABORT:
                assert answer.token_ids == sample.token_ids[: len(answer.token_ids)]
            else:
                assert answer == sample
    assert_nothing_left(engine)


@pytest.mark.parametrize("kind", DRAFT_KINDS)
@pytest.mark.parametrize("mode", FIXED_MODES[1:])
def test_every_mode_answers_like_plain_decoding(mode: str, kind: str) -> None:
    engine = make_engine(TinySettings(mode, check_consistency=True), kind)
    outputs = run_jobs(engine, VARIED_JOBS)
    expected = [plain_answers(job, kind) for job in VARIED_JOBS]
    assert [answers(outputs[str(index)]) for index in range(len(VARIED_JOBS))] == expected
    assert_nothing_left(engine)


@pytest.mark.parametrize("block_size", [1, 2, 4, 16])
@pytest.mark.parametrize(
    "mode", ["tree:3x2x1", "dynamic:steps=3,topk=2,nodes=6,survival=0.005", "dynamic:steps=3,topk=2,nodes=6"]
)
def test_accepted_runs_across_block_borders_change_nothing(mode: str, block_size: int) -> None:
    engine = make_engine(TinySettings(mode, block_size=block_size, num_blocks=64, check_consistency=True))
    jobs = [replace(job, params=replace(job.params, temperature=0)) for job in VARIED_JOBS]
    speculate_by_script(engine, jobs)
    outputs = run_jobs(engine, jobs)
    assert [answers(outputs[str(index)]) for index in range(len(jobs))] == [plain_answers(job) for job in jobs]
    assert sum(sample.speculation.num_accepted_draft_tokens for o in outputs.values() for sample in o.outputs) > 20


@pytest.mark.parametrize("mode", ["chain:3", "tree:3x2x1"])
def test_greedy_multi_round_answers_like_plain_decoding(mode: str) -> None:
    jobs = [replace(job, params=replace(job.params, temperature=0)) for job in VARIED_JOBS]
    engine = make_engine(TinySettings(mode, "multi_round", check_consistency=True))
    outputs = run_jobs(engine, jobs)
    assert [answers(outputs[str(index)]) for index in range(len(jobs))] == [plain_answers(job) for job in jobs]


def test_greedy_multi_round_requests_do_not_notice_random_neighbours() -> None:
    greedy = [replace(job, params=replace(job.params, temperature=0)) for job in VARIED_JOBS[:2]]
    engine = make_engine(TinySettings("tree:2x2", "multi_round", check_consistency=True))
    outputs = run_jobs(engine, [*greedy, *VARIED_JOBS[2:]])
    assert [answers(outputs[str(index)]) for index in range(2)] == [plain_answers(job) for job in greedy]


@pytest.mark.parametrize(
    "mode",
    ["off", "chain:3", "tree:3x2x1", "dynamic:steps=3,topk=2,nodes=6,survival=0.02", "dynamic:steps=3,topk=2,nodes=6"],
)
@pytest.mark.parametrize("prefix_cache", [True, False], ids=["prefix_cache", "no_prefix_cache"])
def test_preempted_requests_answer_as_if_never_disturbed(mode: str, prefix_cache: bool) -> None:
    jobs = [
        Job(random_prompt(6, seed), SamplingParams(seed=seed, max_tokens=14, ignore_eos=True, logprobs=1))
        for seed in range(4)
    ]
    engine = make_engine(
        TinySettings(mode, block_size=2, num_blocks=18, prefix_cache=prefix_cache, check_consistency=True)
    )
    preempted = watch_preemptions(engine)
    speculate_by_script(engine, jobs)
    outputs = run_jobs(engine, jobs)
    assert preempted
    assert [answers(outputs[str(index)]) for index in range(4)] == [plain_answers(job) for job in jobs]
    assert_nothing_left(engine)


@pytest.mark.parametrize(
    "mode", ["off", "chain:3", "dynamic:steps=3,topk=2,nodes=6,survival=0.02", "dynamic:steps=3,topk=2,nodes=6"]
)
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_later_turns_find_earlier_ones_and_answer_the_same(mode: str, block_size: int) -> None:
    engine = make_engine(TinySettings(mode, block_size=block_size, check_consistency=True))
    prompt = random_prompt(18)
    for turn in range(3):
        job = Job(prompt, SamplingParams(seed=turn, max_tokens=9, ignore_eos=True, logprobs=0))
        speculate_by_script(engine, [job])
        output = run_jobs(engine, [job])["0"]
        assert answers(output) == plain_answers(job)
        if turn:
            assert output.num_cached_tokens >= 16
        prompt = (*prompt, *output.outputs[0].token_ids, 2, 3 + turn)
    assert_nothing_left(engine)


def test_a_plain_request_among_speculating_ones_has_no_draft_work() -> None:
    jobs = [replace(job, speculate=index % 2 == 0) for index, job in enumerate(VARIED_JOBS)]
    engine = make_engine(TinySettings("tree:3x2x1", check_consistency=True))
    outputs = run_jobs(engine, jobs)
    assert [answers(outputs[str(index)]) for index in range(len(jobs))] == [plain_answers(job) for job in jobs]
    for index, job in enumerate(jobs):
        drafted = sum(sample.speculation.num_draft_tokens for sample in outputs[str(index)].outputs)
        assert (drafted > 0) == job.speculate


@pytest.mark.parametrize("plain_first", [True, False])
def test_plain_and_speculating_requests_share_a_prefix(plain_first: bool) -> None:
    """Blocks of a plain request carry no draft rows: a speculating one must not read them."""
    engine = make_engine(TinySettings("chain:3", check_consistency=True))
    for turn in range(4):
        job = Job(
            (*random_prompt(17), turn),
            SamplingParams(temperature=0, max_tokens=6, ignore_eos=True),
            speculate=plain_first == bool(turn % 2),
        )
        output = run_jobs(engine, [job])["0"]
        assert answers(output) == plain_answers(job)
    assert output.num_cached_tokens == 16
    assert_nothing_left(engine)


def test_a_request_without_a_seed_can_be_replayed() -> None:
    engine = make_engine(TinySettings("tree:3x2x1"))
    job = Job((3, 1, 4), SamplingParams(max_tokens=12, ignore_eos=True))
    first = run_jobs(engine, [job])["0"]
    again = replace(job, params=replace(job.params, seed=first.seed))
    assert answers(run_jobs(engine, [again])["0"]) == answers(first)
    assert answers(run_jobs(engine, [job])["0"]) != answers(first)


def test_the_same_seed_alone_and_among_five_gives_the_same_answer() -> None:
    params = SamplingParams(seed=11, temperature=1.2, max_tokens=12, ignore_eos=True)
    alone = run_jobs(make_engine(TinySettings("chain:3")), [Job((1, 2), params)])["0"]
    jobs = [Job((1, 2), params), *(Job((1, 2), replace(params, seed=seed)) for seed in range(4))]
    together = run_jobs(make_engine(TinySettings("chain:3", max_num_seqs=5)), jobs)
    assert answers(together["0"]) == answers(alone)
    assert len({answers(output)[0].token_ids for output in together.values()}) == 5


def test_off_runs_exactly_the_steps_of_an_engine_without_a_draft() -> None:
    engine = make_engine(TinySettings("off"))
    run_jobs(engine, VARIED_JOBS)
    assert engine._drafter is None
    assert engine.features is None
    assert engine.pool.draft_layers == []
    assert engine.pool.layout.scratch_per_row == 0
