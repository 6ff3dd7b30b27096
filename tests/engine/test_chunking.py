"""The same committed tokens give the same answer however they are cut into steps: prompt chunks and accepted runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from aquiline.engine.engine import Engine
from aquiline.request import Request, RequestOutput, SamplingParams
from tests.engine.workloads import (
    DRAFT_KINDS,
    Job,
    Script,
    answers,
    histories_of,
    make_engine,
    plain_answers,
    random_prompt,
    run_jobs,
)
from tests.tiny import ScriptedDrafter, TinySettings

PROMPT = random_prompt(23)
PARAMS = SamplingParams(seed=2, max_tokens=18, ignore_eos=True, logprobs=2, prompt_logprobs=1)
ENDINGS = {
    "length": PARAMS,
    "stop_string": replace(PARAMS, stop=("uzd",), temperature=0),
    "kept_stop_string": replace(PARAMS, stop=("ccuzq", "cuz"), temperature=0, include_stop_str_in_output=True),
    "stop_token": replace(PARAMS, stop_token_ids=(50, 51, 40, 41), min_tokens=4),
    "end_of_sequence": replace(PARAMS, ignore_eos=False, logit_bias={60: 2.0}),
}


def tokens_of_steps(engine: Engine, job: Job) -> tuple[list[int], RequestOutput]:
    """How many tokens each step added to the answer, and the last output; text must only ever grow."""
    engine.add_request("0", job.prompt, job.params)
    counts: list[int] = []
    text, output = "", None
    while engine.has_unfinished:
        for output in engine.step():
            sample = output.outputs[0]
            assert sample.text.startswith(text)
            text = sample.text
            counts.append(len(sample.token_ids) - sum(counts))
    assert output is not None
    return counts, output


def scripted_runs(engine: Engine, histories: dict[str, list[int]], right_runs: Sequence[int]) -> None:
    """Let exactly `right_runs[i % ..]` draft tokens be right in step i."""
    step = {"number": 0, "root": -1}

    def choose(request: Request, position: int, rank: int, own: int) -> int:
        root = request.num_tokens - 1
        if root != step["root"]:
            step["number"] += 1
            step["root"] = root
        history = histories[request.request_id]
        if position >= len(history):
            return own
        is_right = position - root <= right_runs[step["number"] % len(right_runs)]
        return history[position] if is_right else (history[position] + 1) % 60

    ScriptedDrafter.replace_in(engine, choose)


@pytest.mark.parametrize("right_runs", [(0,), (1,), (5,), (0, 5, 2), (3, 1, 4, 1, 5)], ids=str)
@pytest.mark.parametrize("ending", ENDINGS)
def test_runs_of_any_lengths_give_one_answer(ending: str, right_runs: tuple[int, ...]) -> None:
    job = Job(PROMPT, ENDINGS[ending])
    expected = plain_answers(job)
    unstopped = plain_answers(replace(job, params=replace(job.params, stop=(), stop_token_ids=(), ignore_eos=True)))
    engine = make_engine(TinySettings("chain:5", check_consistency=True))
    # The script knows how the answer would go on behind its end.
    scripted_runs(engine, histories_of([job], [unstopped]), right_runs)
    counts, output = tokens_of_steps(engine, job)
    assert answers(output) == expected
    if ending == "length":
        assert max(counts) == min(6, 1 + max(right_runs))
    else:
        assert len(expected[0].token_ids) < 18


@pytest.mark.parametrize("mode", ["off", "chain:3"])
@pytest.mark.parametrize("chunk", range(1, 24))
def test_prompt_chunks_of_any_size_give_one_answer(chunk: int, mode: str) -> None:
    job = Job(PROMPT, replace(PARAMS, max_tokens=4))
    settings = TinySettings(mode, max_num_seqs=1, max_num_batched_tokens=chunk, check_consistency=True)
    assert answers(run_jobs(make_engine(settings), [job])["0"]) == plain_answers(job)


def prompt_states(kind: str, max_num_batched_tokens: int) -> list[torch.Tensor]:
    """Target and draft K/V of the prompt's tokens right after the prefill and one more step."""
    settings = TinySettings("chain:1", max_num_seqs=1, max_num_batched_tokens=max_num_batched_tokens)
    engine = make_engine(settings, kind)
    engine.add_request("0", PROMPT, PARAMS)
    while not engine.scheduler.running or engine.scheduler.running[0].num_draft_rows < len(PROMPT):
        engine.step()
    request = engine.scheduler.running[0]
    slots = [engine.pool.layout.page_slot(request.block_ids, position) for position in range(len(PROMPT))]
    target = [tensor[slots] for layer in engine.pool.target_layers for tensor in (layer.keys, layer.values)]
    draft = [tensor[slots[1:]] for layer in engine.pool.draft_layers for tensor in (layer.keys, layer.values)]
    return target + draft


@pytest.mark.parametrize("kind", DRAFT_KINDS)
def test_chunk_borders_leave_no_trace_in_the_caches(kind: str) -> None:
    whole = prompt_states(kind, 64)
    for chunk in range(1, 24):
        for state, expected in zip(prompt_states(kind, chunk), whole, strict=True):
            assert torch.equal(state, expected), chunk


@pytest.mark.parametrize("mode", ["chain:3", "tree:2x2"])
def test_chunks_beside_decoding_requests_give_one_answer(mode: str) -> None:
    """Long prompts arrive while others decode: every step mixes trees, plain roots and chunks."""
    jobs = [
        Job(random_prompt(3 + 9 * index, index), replace(PARAMS, seed=index, max_tokens=12), arrival=2 * index)
        for index in range(4)
    ]
    expected = [plain_answers(job) for job in jobs]
    engine = make_engine(TinySettings(mode, max_num_batched_tokens=9, check_consistency=True))
    ScriptedDrafter.replace_in(engine, Script(histories_of(jobs, expected), period=3).chooser())
    outputs = run_jobs(engine, jobs)
    assert [answers(outputs[str(index)]) for index in range(4)] == expected


def test_decoding_requests_get_a_token_every_step_while_a_long_prompt_is_read() -> None:
    engine = make_engine(TinySettings("tree:3x2x1", max_num_batched_tokens=8))
    engine.add_request("short", (1, 2), replace(PARAMS, max_tokens=18))
    engine.step()
    engine.add_request("long", random_prompt(60), PARAMS)
    for _ in range(6):
        assert [output.request_id for output in engine.step()] == ["short"]
