"""What a trace callback may do to the engine, what `add_request` refuses before anything changes, and step times."""

from __future__ import annotations

import pytest

from aquiline.engine.engine import Engine
from aquiline.engine.inputs import StepLayout
from aquiline.engine.sampling_inputs import DenseRowPool, SamplingInputs
from aquiline.engine.trace import TreeTrace
from aquiline.engine.tree import DraftTree
from aquiline.engine.verify import Verified, Verifier
from aquiline.errors import InvalidParameterError, PromptError
from aquiline.request import FinishReason, SamplingParams
from tests.engine.workloads import Job, answers, assert_nothing_left, make_engine, plain_answers, random_prompt
from tests.tiny import TinySettings, finish_all

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.mark.parametrize(
    "mode", ["off", "chain:3", "dynamic:steps=2,topk=2,nodes=4,survival=0.02", "dynamic:steps=2,topk=2,nodes=4"]
)
@pytest.mark.parametrize("at_step", [0, 1, 3])
@pytest.mark.parametrize("aborted", ["0", "1"])
def test_a_trace_callback_may_abort_any_request(mode: str, at_step: int, aborted: str) -> None:
    engine = make_engine(TinySettings(mode, check_consistency=True))
    jobs = [Job(random_prompt(5, index), GREEDY) for index in range(2)]
    groups = [engine.add_request(str(index), job.prompt, job.params) for index, job in enumerate(jobs)]

    def on_trace(trace: TreeTrace) -> None:
        if trace.step == at_step:
            engine.abort(aborted)

    engine.on_trace = on_trace
    outputs = finish_all(engine)
    kept = "1" if aborted == "0" else "0"
    assert answers(outputs[kept]) == plain_answers(jobs[int(kept)])
    cut = groups[int(aborted)].output()
    assert cut.finished
    assert cut.outputs[0].finish_reason is FinishReason.ABORT
    whole = plain_answers(jobs[int(aborted)])[0].token_ids
    assert cut.outputs[0].token_ids == whole[: len(cut.outputs[0].token_ids)]
    assert_nothing_left(engine)


def test_a_trace_callback_may_add_a_request_and_end_all() -> None:
    engine = make_engine(TinySettings("chain:3"))
    engine.add_request("0", random_prompt(5), GREEDY)

    def on_trace(trace: TreeTrace) -> None:
        if trace.step == 2:
            engine.add_request("late", random_prompt(6), GREEDY)
        if trace.step == 5:
            engine.abort("0")
            engine.abort("late")

    engine.on_trace = on_trace
    assert sorted(finish_all(engine)) == ["0", "late"]
    assert_nothing_left(engine)


@pytest.mark.parametrize("token_id", [True, 1.0, "1", None, -1, 61])
def test_prompts_hold_integers_of_the_vocabulary(token_id: object) -> None:
    engine = make_engine(TinySettings())
    with pytest.raises(PromptError, match="integers 0 to 60"):
        engine.add_request("0", [3, token_id], GREEDY)  # type: ignore[list-item]
    assert_nothing_left(engine)


def test_a_priority_that_cannot_be_compared_is_refused_before_it_is_queued() -> None:
    engine = make_engine(TinySettings())
    for index, priority in enumerate((0, "high", None)):
        if isinstance(priority, int):
            engine.add_request(str(index), (1, 2), GREEDY, priority=priority)
            continue
        with pytest.raises(InvalidParameterError, match="priority"):
            engine.add_request(str(index), (1, 2), GREEDY, priority=priority)  # type: ignore[arg-type]
    assert list(finish_all(engine)) == ["0"]
    assert_nothing_left(engine)


def test_bias_is_what_it_was_when_the_parameters_were_made() -> None:
    bias = {5: 100.0}
    params = SamplingParams(temperature=0, max_tokens=3, logit_bias=bias)
    bias[5] = float("nan")
    engine = make_engine(TinySettings())
    engine.add_request("0", (1, 2), params)
    assert finish_all(engine)["0"].outputs[0].token_ids == (5, 5, 5)


@pytest.mark.parametrize("call", [1, 2, 3, 4])
def test_memory_that_runs_out_while_a_row_is_set_up_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    engine = make_engine(TinySettings("chain:2"))
    params = SamplingParams(temperature=0, max_tokens=4, min_tokens=1, logit_bias={5: 1.0}, repetition_penalty=1.5)
    for index in range(2):
        engine.add_request(str(index), (1, 2, index), params)
    acquire, num_calls = DenseRowPool.acquire, 0

    def failing(pool: DenseRowPool) -> int:
        nonlocal num_calls
        num_calls += 1
        if num_calls == call:
            raise MemoryError
        return acquire(pool)

    with monkeypatch.context() as patch:
        patch.setattr(DenseRowPool, "acquire", failing)
        with pytest.raises(MemoryError):
            engine.step()
    assert_nothing_left(engine)


@pytest.mark.parametrize("mode", ["off", "chain:3"])
def test_step_seconds_are_those_of_the_steps_a_request_took_part_in(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """A forward lasts one second and a callback a thousand, which do not count."""
    now = 0.0

    def on_trace(_: TreeTrace) -> None:
        nonlocal now
        now += 1000.0

    def run(verifier: Verifier, step: StepLayout, tree: DraftTree | None, sampling: SamplingInputs) -> Verified:
        nonlocal now
        now += 1.0
        return forward(verifier, step, tree, sampling)

    forward = Verifier.run
    monkeypatch.setattr(Verifier, "run", run)
    monkeypatch.setattr("aquiline.engine.engine.time.perf_counter", lambda: now)
    engine = make_engine(TinySettings(mode, max_num_batched_tokens=8, max_num_seqs=2))
    engine.on_trace = on_trace
    for index, length in enumerate((5, 20)):
        engine.add_request(str(index), random_prompt(length), GREEDY)
    num_steps = {"0": 0, "1": 0}

    def count(engine: Engine) -> None:
        for request in engine.scheduler.running:
            num_steps[request.request_id] += 1

    outputs = finish_all(engine, count)
    for request_id, output in outputs.items():
        figures = output.outputs[0].speculation
        # The step that ended the request is not among those after which it still ran.
        assert figures.step_seconds == num_steps[request_id] + 1
        assert figures.time_per_committed_token_ms == 1000.0 * figures.step_seconds / len(output.outputs[0].token_ids)
    assert outputs["1"].outputs[0].speculation.step_seconds > outputs["1"].outputs[0].speculation.num_verify_steps
