"""Requests that choose the shape of their own tree: whatever the mix, nobody's tokens change."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aquiline.engine.engine import Engine
from aquiline.engine.schedule import ScheduledBatch
from aquiline.errors import InvalidParameterError
from aquiline.request import SamplingParams
from aquiline.speculation import NO_TREE, parse_speculation
from tests.engine.guided_work import JOBS as GUIDED_JOBS
from tests.engine.guided_work import guided_engine
from tests.engine.scheduler_simulator import Job as SimulatedJob
from tests.engine.scheduler_simulator import Limits, Simulator
from tests.engine.strategies import tiny_settings, workloads
from tests.engine.test_equality import VARIED_JOBS, speculate_by_script
from tests.engine.test_native_equality import PARAMS, PROMPTS, native_engine
from tests.engine.workloads import (
    DRAFT_KINDS,
    Job,
    answers,
    assert_nothing_left,
    make_engine,
    plain_answers,
    random_prompt,
    run_jobs,
    watch_preemptions,
)
from tests.tiny import TinySettings, run_prompts, token_ids

# None of them takes more than the 9 scratch places of the narrowest engine here.
OWN_MODES = (
    "auto",
    "off",
    "chain:1",
    "chain:3",
    "tree:2x2",
    "paths:0,1,00,000",
    "dynamic:steps=3,topk=3,nodes=8",
    "dynamic:steps=3,topk=3,nodes=8,survival=0.02",
)
ENGINE_MODES = ("auto", "tree:3x2", "dynamic:steps=3,topk=3,nodes=8")


def asking(jobs: list[Job], modes: list[str]) -> list[Job]:
    """The same jobs, each with its own mode of speculation."""
    modes = modes * (1 + len(jobs) // len(modes))
    return [replace(job, params=replace(job.params, speculation=mode)) for job, mode in zip(jobs, modes, strict=False)]


def watch_trees(engine: Engine) -> dict[str, list[int]]:
    """A mapping that fills with the nodes that the draft model grows for each request, step by step."""
    held: dict[str, list[int]] = {}
    schedule = engine.scheduler.schedule

    def watched() -> ScheduledBatch:
        batch = schedule()
        for scheduled in batch.requests:
            if scheduled.request.num_output_tokens:
                shape = scheduled.request.own_shape or batch.tree
                held.setdefault(scheduled.request.request_id, []).append(scheduled.num_held(shape))
        return batch

    engine.scheduler.schedule = watched  # type: ignore[method-assign]
    return held


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_random_work_in_mixed_shapes_gives_what_each_request_gives_plainly(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(DRAFT_KINDS))
    jobs = asking(data.draw(workloads()), data.draw(st.lists(st.sampled_from(OWN_MODES), min_size=1, max_size=6)))
    sizes = data.draw(tiny_settings(max(job.max_tokens for job in jobs)))
    engine = make_engine(replace(sizes, speculate=data.draw(st.sampled_from(ENGINE_MODES)), acceptance="keyed"), kind)
    outputs = run_jobs(engine, jobs)
    for index, job in enumerate(jobs):
        if job.abort is None:
            assert answers(outputs[str(index)]) == plain_answers(job, kind)
    assert_nothing_left(engine)


@pytest.mark.parametrize("mode", ENGINE_MODES)
def test_every_mix_agrees_with_plain_decoding_and_with_all_states(mode: str) -> None:
    """Most draft tokens are right, so that long runs are accepted in every shape."""
    for first in range(0, len(OWN_MODES), 3):
        jobs = asking(VARIED_JOBS, [*OWN_MODES[first:], *OWN_MODES[:first]])
        engine = make_engine(TinySettings(mode, num_blocks=40, check_consistency=True))
        speculate_by_script(engine, jobs)
        outputs = run_jobs(engine, jobs)
        assert [answers(outputs[str(index)]) for index in range(len(jobs))] == [plain_answers(job) for job in jobs]
        assert_nothing_left(engine)


def test_preempted_requests_keep_their_shapes() -> None:
    params = [SamplingParams(seed=seed, max_tokens=14, ignore_eos=True, logprobs=1) for seed in range(4)]
    jobs = asking(
        [Job(random_prompt(6, seed), own) for seed, own in enumerate(params)], ["chain:3", "auto", "tree:2x2"]
    )
    engine = make_engine(TinySettings("tree:3x2", block_size=2, num_blocks=18, check_consistency=True))
    preempted = watch_preemptions(engine)
    outputs = run_jobs(engine, jobs)
    assert preempted
    assert [answers(outputs[str(index)]) for index in range(4)] == [plain_answers(job) for job in jobs]


def test_each_request_holds_its_own_tree() -> None:
    modes = ["chain:3", "tree:2x2", "auto", "off", "dynamic:steps=3,topk=2,nodes=5"]
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    jobs = asking([Job(random_prompt(5, seed), params) for seed in range(5)], modes)
    engine = make_engine(TinySettings("tree:3x1", max_num_seqs=5, num_blocks=128, lookup="off"))
    held = watch_trees(engine)
    run_jobs(engine, jobs)
    for index, most in enumerate((3, 6, 6, 0, 5)):
        # At the end of an answer trees are cut to what may still be committed.
        assert set(held[str(index)][:8]) == {most} and max(held[str(index)]) == most, modes[index]


def test_a_chain_of_right_guesses_is_accepted_whole() -> None:
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    jobs = asking([Job(random_prompt(5, seed), params) for seed in range(2)], ["chain:4", "chain:2"])
    engine = make_engine(TinySettings("chain:5", num_blocks=128))
    speculate_by_script(engine, jobs, period=1000)
    outputs = run_jobs(engine, jobs)
    steps = [outputs[str(index)].outputs[0].speculation.num_verify_steps for index in range(2)]
    # The prefill draws one token; the others come in runs of 5 and of 3.
    assert steps == [1 + 5, 1 + 8]


def test_guided_requests_keep_to_their_grammars_in_every_shape() -> None:
    jobs = asking(GUIDED_JOBS[:8], ["chain:3", "auto", "tree:2x2", "dynamic:steps=2,topk=3,nodes=6"])
    outputs = run_jobs(guided_engine(TinySettings("tree:3x2", num_blocks=256, check_consistency=True)), jobs)
    plain = run_jobs(
        guided_engine(TinySettings("off", num_blocks=256)), [replace(job, speculate=False) for job in jobs]
    )
    assert {name: answers(output) for name, output in outputs.items()} == {
        name: answers(output) for name, output in plain.items()
    }


@pytest.mark.parametrize("own", ["chain:2", "tree:2x1"])
def test_the_multi_round_rule_takes_fixed_shapes(own: str) -> None:
    greedy = [replace(job, params=replace(job.params, temperature=0)) for job in VARIED_JOBS[:3]]
    jobs = [*asking(greedy, [own, "auto", "off"]), *asking(VARIED_JOBS[3:], [own, "auto"])]
    engine = make_engine(TinySettings("tree:2x2", "multi_round", check_consistency=True))
    outputs = run_jobs(engine, jobs)
    assert [answers(outputs[str(index)]) for index in range(3)] == [plain_answers(job) for job in greedy]


@pytest.mark.parametrize("mode", ["chain:3", "tree:3x2x1", "dynamic:steps=3,topk=3,nodes=8"])
def test_mixed_shapes_on_native_kernels(mode: str) -> None:
    plain = token_ids(run_prompts(native_engine("int8", "off", 1), PROMPTS, PARAMS))
    modes = ("chain:2", "auto", "paths:0,1,00")
    own = [replace(params, speculation=asked) for params, asked in zip(PARAMS, modes, strict=True)]
    assert token_ids(run_prompts(native_engine("int8", mode, 2), PROMPTS, own)) == plain


@pytest.mark.parametrize(
    ("engine_mode", "asked", "told"),
    [
        ("chain:3", "chain:4", "which takes 4 draft nodes; this engine has room for 3"),
        ("chain:3", "dynamic:steps=2,topk=2,nodes=3", "which takes 4 draft nodes"),
        ("off", "chain:1", "was started with off"),
        ("auto", "chain:33", "the number of steps is '33'"),
        ("auto", "tree:33", "room for 32"),
        ("auto", "much", "it must be off, auto, chain:4"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused(engine_mode: str, asked: str, told: str) -> None:
    engine = make_engine(TinySettings(engine_mode))
    with pytest.raises(InvalidParameterError, match=f"speculation is '{asked}'.*{told}"):
        engine.add_request("0", (1, 2), SamplingParams(speculation=asked))
    assert not engine.has_unfinished


def test_a_dynamic_shape_is_refused_under_the_multi_round_rule() -> None:
    engine = make_engine(TinySettings("tree:3x2", "multi_round"))
    with pytest.raises(InvalidParameterError, match="multi_round"):
        engine.add_request("0", (1, 2), SamplingParams(speculation="dynamic:steps=2,topk=2,nodes=3"))
    engine.add_request("0", (1, 2), SamplingParams(speculation="chain:3"))


@given(
    st.lists(st.tuples(st.sampled_from(OWN_MODES), st.integers(0, 6), st.integers(2, 40)), min_size=1, max_size=8),
    st.sampled_from(("tree:2x1", "dynamic:steps=3,topk=2,nodes=5", "off")),
    st.integers(4, 40),
    st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_rows_and_blocks_are_shared_out_whatever_the_shapes(
    asked: list[tuple[str, int, int]], mode: str, num_rows: int, seed: int
) -> None:
    limits = Limits(num_blocks=24, max_num_seqs=4, max_num_batched_tokens=num_rows, speculate=mode, max_model_len=64)
    jobs = [SimulatedJob((1, 2, 0, 1), max_tokens=most, own=own, arrival_step=arrival) for own, arrival, most in asked]
    simulator = Simulator(limits, seed)
    requests = simulator.run(jobs, max_steps=2000)
    assert all(request.is_finished and not request.block_ids for request in requests)
    assert simulator.cache.num_free_blocks == limits.num_blocks


def test_trees_shrink_to_equal_shares_where_rows_are_few() -> None:
    simulator = Simulator(Limits(max_num_seqs=2, max_num_batched_tokens=8, speculate="chain:6"))
    for name, own in (("a", "tree:3x1"), ("b", "auto")):
        simulator.scheduler.add(SimulatedJob((1, 2), max_tokens=60, own=own).request(name, ord(name)))
    simulator.step()
    batch = simulator.step()
    shape = parse_speculation("tree:3x1").shape
    assert shape is not None and batch.tree != NO_TREE
    assert [s.num_held(s.request.own_shape or batch.tree) for s in batch.requests] == [3, 3]
