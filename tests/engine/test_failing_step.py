"""A step that fails takes its own requests with it, frees all they held, and leaves the engine at work."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from aquiline.engine.commit import Committer
from aquiline.engine.device_state import DeviceState
from aquiline.engine.draft import Drafter
from aquiline.engine.engine import Engine
from aquiline.engine.feature_store import FeatureStore
from aquiline.engine.sample import Sampler
from aquiline.engine.stream import TextStream
from aquiline.engine.target_runner import ReferenceRunner
from aquiline.engine.trace import TreeTrace
from aquiline.errors import ConsistencyError
from aquiline.models.eagle import EagleModel
from aquiline.models.llama import LlamaModel
from aquiline.request import RequestOutput, SamplingParams
from tests.engine.workloads import (
    Job,
    answers,
    assert_nothing_left,
    make_engine,
    plain_answers,
    random_prompt,
    run_jobs,
)
from tests.tiny import TinySettings

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PLACES: list[tuple[type, str]] = [
    (LlamaModel, "forward"),
    (LlamaModel, "logits"),
    (EagleModel, "forward"),
    (Drafter, "propose"),
    (Sampler, "accept"),
    (DeviceState, "admit"),
    (ReferenceRunner, "move_accepted"),
    (DeviceState, "commit"),
    (Committer, "commit"),
    (TextStream, "push"),
    (FeatureStore, "append"),
    (FeatureStore, "keep_with_blocks"),
]


class StepError(Exception):
    """Raised by the tests inside a step."""


def fail_once(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, call: int) -> Callable[[], bool]:
    """Let call number `call` of a method do its work and then raise; tells whether it has."""
    original = getattr(owner, name)
    num_calls = 0

    def failing(*args: object, **kwargs: object) -> object:
        nonlocal num_calls
        result = original(*args, **kwargs)
        num_calls += 1
        if num_calls == call:
            raise StepError
        return result

    monkeypatch.setattr(owner, name, failing)
    return lambda: num_calls >= call


def step_until_fault(engine: Engine) -> None:
    with pytest.raises(StepError):
        while engine.has_unfinished:
            engine.step()


@pytest.mark.parametrize("call", [1, 2, 5])
@pytest.mark.parametrize(("owner", "name"), PLACES, ids=lambda value: getattr(value, "__name__", value))
def test_a_failing_step_ends_its_requests_and_the_engine_serves_on(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, call: int
) -> None:
    engine = make_engine(TinySettings("tree:3x2", num_blocks=40, check_consistency=True))
    prompt = random_prompt(18)
    for index in range(3):
        engine.add_request(str(index), (*prompt, index), GREEDY)
    with monkeypatch.context() as patch:
        has_failed = fail_once(patch, owner, name, call)
        step_until_fault(engine)
        assert has_failed()
    assert_nothing_left(engine)
    jobs = [Job((*prompt, index), GREEDY) for index in (0, 2, 9)]
    outputs = run_jobs(engine, jobs)
    assert [answers(outputs[str(index)]) for index in range(3)] == [plain_answers(job) for job in jobs]
    assert_nothing_left(engine)


@pytest.mark.parametrize("num_prompt_tokens", range(4, 9))
@pytest.mark.parametrize(
    ("owner", "name"), [(DeviceState, "commit"), (ReferenceRunner, "move_accepted")], ids=["commit", "move_accepted"]
)
def test_blocks_of_a_failed_step_are_found_only_with_the_features_they_need(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, num_prompt_tokens: int
) -> None:
    """With 7 prompt tokens the failing step fills block 1, but its last feature is never kept."""
    engine = make_engine(TinySettings("chain:2", check_consistency=True))
    job = Job(random_prompt(num_prompt_tokens), GREEDY)
    answer = plain_answers(job)[0].token_ids
    engine.add_request("0", job.prompt, job.params)
    engine.step()
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, raise_step_error)
        step_until_fault(engine)
    assert_nothing_left(engine)
    again = Job((*job.prompt, *answer[:5]), GREEDY)
    output = run_jobs(engine, [again])["0"]
    assert answers(output) == plain_answers(again)
    assert_nothing_left(engine)


def raise_step_error(*_: object) -> None:
    raise StepError


def test_requests_outside_the_failing_step_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(TinySettings("chain:3", max_num_seqs=1, check_consistency=True))
    for index in range(2):
        engine.add_request(str(index), (1, 2, index), GREEDY)
    with monkeypatch.context() as patch:
        fail_once(patch, LlamaModel, "forward", 2)
        step_until_fault(engine)
    assert engine.abort("0") is None
    outputs: dict[str, RequestOutput] = {}
    while engine.has_unfinished:
        outputs.update((output.request_id, output) for output in engine.step())
    assert answers(outputs["1"]) == plain_answers(Job((1, 2, 1), GREEDY))
    assert_nothing_left(engine)


def test_all_samples_of_a_request_end_together(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(TinySettings("chain:3", max_num_seqs=1))
    engine.add_request("pair", (1, 2), SamplingParams(seed=1, n=2, max_tokens=5, ignore_eos=True))
    fail_once(monkeypatch, LlamaModel, "forward", 2)
    step_until_fault(engine)
    assert_nothing_left(engine)


def test_a_preempted_request_survives_the_failure_of_the_step_that_preempted_it() -> None:
    engine = make_engine(TinySettings("chain:2", block_size=2, num_blocks=12, check_consistency=True))
    jobs = [Job((1, 2, index), GREEDY) for index in range(2)]
    for index, job in enumerate(jobs):
        engine.add_request(str(index), job.prompt, job.params)
    schedule = engine.scheduler.schedule
    sizes: list[int] = []

    def schedule_and_break():  # type: ignore[no-untyped-def]
        batch = schedule()
        sizes.append(len(batch.preempted))
        if batch.preempted and sum(sizes) == 1:
            engine._place = raise_step_error  # type: ignore[method-assign, assignment]
        return batch

    place = engine._place
    engine.scheduler.schedule = schedule_and_break  # type: ignore[method-assign]
    step_until_fault(engine)
    engine._place = place  # type: ignore[method-assign]
    outputs: dict[str, RequestOutput] = {}
    while engine.has_unfinished:
        outputs.update((output.request_id, output) for output in engine.step())
    assert answers(outputs["1"]) == plain_answers(jobs[1])
    assert "0" not in outputs
    assert_nothing_left(engine)


def test_a_raising_trace_callback_counts_as_a_failing_step() -> None:
    engine = make_engine(TinySettings("chain:3"))

    def on_trace(_: TreeTrace) -> None:
        raise StepError

    engine.on_trace = on_trace
    engine.add_request("0", (1, 2, 3), GREEDY)
    step_until_fault(engine)
    assert_nothing_left(engine)


def test_an_interrupted_step_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(TinySettings("chain:3"))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    engine.add_request("0", (1, 2, 3), GREEDY)
    monkeypatch.setattr(LlamaModel, "forward", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert_nothing_left(engine)


def test_a_failed_consistency_check_frees_the_requests_too() -> None:
    engine = make_engine(TinySettings("chain:3", check_consistency=True))
    engine.add_request("0", (1, 2, 3), GREEDY)
    engine.step()
    with torch.inference_mode():
        for layer in engine.pool.target_layers:
            layer.keys[:] += 1.0
    with pytest.raises(ConsistencyError):
        engine.step()
    assert_nothing_left(engine)


def test_a_step_with_nothing_to_do_does_nothing() -> None:
    engine = make_engine(TinySettings("chain:3"))
    assert engine.step() == []
    assert engine.num_steps == 0
