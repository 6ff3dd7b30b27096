"""Log-probabilities of prompt tokens, against one forward over the whole prompt."""

from __future__ import annotations

import pytest
import torch

from aquiline.engine.inputs import InputBuilder, StepLayout
from aquiline.engine.kv_pool import KVPool, MemoryKind
from aquiline.engine.prompt_logprobs import ROWS_PER_CHUNK
from aquiline.engine.schedule import ScheduledRequest
from aquiline.engine.slots import SlotLayout
from aquiline.request import Request, RequestOutput, SamplingParams
from tests.engine.workloads import Job, make_engine, random_prompt, run_jobs, tiny_models, watch_preemptions
from tests.tiny import TinySettings


def fresh_log_probs(prompt: tuple[int, ...]) -> torch.Tensor:
    """Log-probabilities of every next token after every prompt token, [num_prompt_tokens, vocab]."""
    target = tiny_models().target
    layout = SlotLayout(num_blocks=1, block_size=len(prompt), max_num_seqs=1, scratch_per_row=0)
    device = torch.device("cpu")
    pool = KVPool(layout, target.config, None, MemoryKind(torch.float32, device, poison=True))
    request = Request("it", prompt, SamplingParams(), seed=0, block_ids=[0])
    scheduled = ScheduledRequest(request, len(prompt), draws_token=False, max_draft_depth=0)
    rows = InputBuilder(layout, device).target_rows(StepLayout((), (), (scheduled,), 1), None)
    states = target.forward(rows, pool.target_layers)
    return target.logits(states.hidden_states).log_softmax(dim=-1)


def check(output: RequestOutput, num_top: int) -> None:
    prompt, entries = output.prompt_token_ids, output.prompt_logprobs
    assert entries is not None
    assert len(entries) == len(prompt)
    assert entries[0] is None
    expected = fresh_log_probs(prompt)
    for position in range(1, len(prompt)):
        entry, row = entries[position], expected[position - 1]
        assert entry is not None
        assert entry.token_id == prompt[position]
        assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=1e-5)
        assert entry.rank == 1 + int((row > row[entry.token_id]).sum())
        assert [token for token, _ in entry.top] == row.topk(num_top).indices.tolist()


@pytest.mark.parametrize("num_prompt_tokens", [1, 2, 23, ROWS_PER_CHUNK + 1, 2 * ROWS_PER_CHUNK + 9])
@pytest.mark.parametrize("max_num_batched_tokens", [5, 64, 256])
def test_prompts_of_any_length_in_chunks_of_any_size(num_prompt_tokens: int, max_num_batched_tokens: int) -> None:
    engine = make_engine(TinySettings("chain:2", max_num_batched_tokens=max_num_batched_tokens))
    job = Job(random_prompt(num_prompt_tokens), SamplingParams(seed=1, max_tokens=3, prompt_logprobs=2))
    check(run_jobs(engine, [job])["0"], num_top=2)


def test_a_cached_prefix_does_not_shorten_them() -> None:
    engine = make_engine(TinySettings("chain:2"))
    prompt = random_prompt(17)
    run_jobs(engine, [Job(prompt, SamplingParams(seed=1, max_tokens=3))])
    check(run_jobs(engine, [Job(prompt, SamplingParams(seed=1, max_tokens=3, prompt_logprobs=1))])["0"], num_top=1)


def test_a_preempted_request_reports_every_token_once() -> None:
    engine = make_engine(TinySettings("off", block_size=2, num_blocks=14, max_num_batched_tokens=6))
    preempted = watch_preemptions(engine)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, prompt_logprobs=1)
    outputs = run_jobs(engine, [Job(random_prompt(9 + index, index), params) for index in range(3)])
    assert preempted
    for output in outputs.values():
        check(output, num_top=1)


def test_each_request_gets_as_many_alternatives_as_it_asked_for() -> None:
    engine = make_engine(TinySettings("chain:2"))
    jobs = [Job(random_prompt(6), SamplingParams(seed=1, max_tokens=2, prompt_logprobs=count)) for count in (0, 3)]
    outputs = run_jobs(engine, jobs)
    check(outputs["0"], num_top=0)
    check(outputs["1"], num_top=3)
