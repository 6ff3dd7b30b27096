"""Whatever is decided from step to step, answers stay, and a draft that fell behind catches up to the very bit."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from aquiline.engine.plan import StepLoad, StepPlan
from aquiline.kernels import cpu
from aquiline.request import Request, SamplingParams
from aquiline.speculation import NO_TREE, StaticTree
from tests.engine.random_planner import RandomPlanner, put_planner
from tests.engine.scheduler_simulator import Job as SimulatedJob
from tests.engine.scheduler_simulator import Limits, Simulator, solo_stream
from tests.engine.test_equality import VARIED_JOBS, speculate_by_script
from tests.engine.test_native_equality import PARAMS, PROMPTS, native_engine
from tests.engine.workloads import DRAFT_KINDS, Job, answers, assert_nothing_left, make_engine, plain_answers, run_jobs
from tests.tiny import TinySettings, run_prompts, token_ids

LONG_JOBS = [replace(job, params=replace(job.params, max_tokens=30)) for job in VARIED_JOBS]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", DRAFT_KINDS)
def test_random_switching_changes_no_answer(kind: str, seed: int) -> None:
    engine = make_engine(TinySettings("auto", check_consistency=True), kind)
    planner = RandomPlanner.put_into(engine, seed)
    speculate_by_script(engine, LONG_JOBS, kind)
    outputs = run_jobs(engine, LONG_JOBS)
    expected = [plain_answers(job, kind) for job in LONG_JOBS]
    assert [answers(outputs[str(index)]) for index in range(len(LONG_JOBS))] == expected
    assert planner.num_reports > 10
    assert planner.most_pending >= 4
    assert_nothing_left(engine)


@pytest.mark.skipif(not cpu.is_available(), reason=cpu.why_not())
@pytest.mark.parametrize("seed", range(2))
def test_native_kernels_catch_up_as_well(seed: int) -> None:
    plain = token_ids(run_prompts(native_engine("int8", "off", 1), PROMPTS, PARAMS))
    engine = native_engine("int8", "auto", 1)
    planner = RandomPlanner.put_into(engine, seed)
    assert token_ids(run_prompts(engine, PROMPTS, PARAMS)) == plain
    assert planner.most_pending >= 4


@pytest.mark.parametrize("seed", range(8))
def test_the_scheduler_keeps_its_promises_whatever_is_planned(seed: int) -> None:
    dice = random.Random(seed)
    limits = Limits(num_blocks=20, block_size=dice.choice((1, 4)), max_num_batched_tokens=dice.choice((6, 12, 32)))
    if limits.block_size == 1:
        limits = replace(limits, num_blocks=60)
    simulator = Simulator(limits, seed, planner=RandomPlanner(seed))
    jobs = [
        SimulatedJob(
            tuple(dice.randrange(3) for _ in range(dice.randint(1, 20))),
            max_tokens=dice.randint(1, 25),
            priority=dice.randrange(2),
            arrival_step=dice.randrange(12),
        )
        for _ in range(8)
    ]
    requests = simulator.run(jobs, 2000)
    for job, request in zip(jobs, requests, strict=True):
        assert request.output_token_ids == solo_stream(job, simulator.scheduler.max_request_tokens)


def test_a_prompt_stays_shareable_while_its_answer_is_in_debt() -> None:
    """The draft rows of a prompt are written soon, so that others can begin from it."""

    class PlainPlanner(RandomPlanner):
        def plan(self, load: StepLoad) -> StepPlan:
            late = {r.request_id: 8 for r in load.speculating if r.num_draft_rows < r.num_prompt_tokens - 1}
            return StepPlan(NO_TREE, {}, late)

    engine = make_engine(TinySettings("auto", check_consistency=True))
    put_planner(engine, PlainPlanner(0))
    prompt, params = tuple(range(20)), SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    engine.add_request("first", prompt, params)
    for _ in range(8):
        engine.step()
    first = engine.scheduler.running[0]
    assert 0 < first.num_draft_rows < first.num_computed_tokens
    group = engine.add_request("second", prompt, params)
    engine.step()
    assert group.output().num_cached_tokens == 16


def test_best_first_numbering_grows_the_same_tokens_as_level_by_level() -> None:
    """The shape is one and the same, only its nodes come in another order."""
    levelwise = StaticTree((-1, 0, 0, 1, 1, 3), (0, 0, 1, 0, 1, 0))
    best_first = StaticTree((-1, 0, 1, 2, 0, 1), (0, 0, 0, 0, 1, 1))
    runs = []
    for shape in (levelwise, best_first):

        class OneShape(RandomPlanner):
            def plan(self, load: StepLoad, shape: StaticTree = shape) -> StepPlan:
                return StepPlan(shape)

        engine = make_engine(TinySettings("auto", check_consistency=True))
        put_planner(engine, OneShape(0))
        outputs = run_jobs(engine, VARIED_JOBS[:2])
        figures = [sample.speculation for output in outputs.values() for sample in output.outputs]
        runs.append([(figure.num_verify_steps, figure.num_accepted_draft_tokens) for figure in figures])
    assert runs[0] == runs[1]


class LazyPlanner(RandomPlanner):
    """Never grows a tree, and lets all draft rows wait."""

    def plan(self, load: StepLoad) -> StepPlan:
        """See `StepPlanner`."""
        return StepPlan(NO_TREE, {}, {})

    def wants_draft(self, request: Request) -> bool:
        """See `StepPlanner`."""
        return True


@pytest.mark.parametrize("speculates", [False, True])
def test_while_nothing_speculates_a_longer_beginning_is_worth_more_than_a_draft(speculates: bool) -> None:
    """Answers in debt leave blocks without draft rows; the next turn takes them, or computes them with its draft."""
    engine = make_engine(TinySettings("auto", check_consistency=True))
    planner = LazyPlanner(0)
    put_planner(engine, planner)
    prompt = tuple(range(14))
    first = Job(prompt, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))
    answer = run_jobs(engine, [first])["0"].outputs[0].token_ids
    planner.speculates = speculates
    second = replace(first, prompt=(*prompt, *answer, 5))
    output = run_jobs(engine, [second])["0"]
    assert answers(output) == plain_answers(second)
    assert output.num_cached_tokens == (0 if speculates else 24)
    assert_nothing_left(engine)


@pytest.mark.parametrize(("num_shared", "speculates"), [(48, False), (48, True), (20, False)])
def test_a_running_prompt_is_shared_while_the_draft_rests(num_shared: int, speculates: bool) -> None:
    """Two requests with one long beginning, the second some steps later; only a long one is worth a draft."""
    planner = LazyPlanner(0)
    planner.speculates = speculates
    simulator = Simulator(Limits(num_blocks=64), planner=planner)
    beginning = tuple(index % 3 for index in range(num_shared))
    jobs = [
        SimulatedJob((*beginning, 1, 1), max_tokens=12),
        SimulatedJob((*beginning, 2, 2), max_tokens=4, arrival_step=4),
    ]
    first, second = simulator.run(jobs, 100)
    assert second.num_cached_tokens == (0 if speculates or num_shared < 32 else num_shared)
    assert first.speculate == second.speculate == (speculates or num_shared < 32)
    for job, request in zip(jobs, (first, second), strict=True):
        assert request.token_ids[len(job.prompt) :] == solo_stream(job, simulator.scheduler.max_request_tokens)
