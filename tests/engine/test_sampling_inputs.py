from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from aquiline.engine.sampling_inputs import DenseRowPool, SamplingState
from aquiline.request import Request, SamplingParams

VOCAB = 6


def make_request(row: int, params: SamplingParams, output: tuple[int, ...] = ()) -> Request:
    request = Request(f"r{row}", (0, 1, 1), params, seed=row + 10, eos_token_ids=frozenset({5}))
    request.token_ids += output
    request.row = row
    return request


def output_counts(state: SamplingState, request: Request) -> list[float]:
    penalties = state.gather([request]).rules.penalties
    assert penalties is not None
    return taken(penalties.output_counts.table, penalties.output_counts.slots)


def taken(table: Tensor, slots: Tensor) -> list[float]:
    values: list[float] = table[slots[0]].tolist()
    return values


FLAGS = [
    "any_random",
    "any_bias",
    "any_min_tokens",
    "any_penalty",
    "any_top_k",
    "any_top_p",
    "any_min_p",
    "any_logprobs",
]

FLAG_CASES: dict[str, tuple[SamplingParams, set[str]]] = {
    "greedy": (SamplingParams(temperature=0.0, top_k=3, top_p=0.5, min_p=0.5), set()),
    "plain_random": (SamplingParams(), {"any_random"}),
    "top_k": (SamplingParams(top_k=3), {"any_random", "any_top_k"}),
    "top_k_of_everything": (SamplingParams(top_k=VOCAB), {"any_random"}),
    "top_p": (SamplingParams(top_p=0.9), {"any_random", "any_top_p"}),
    "min_p": (SamplingParams(min_p=0.1), {"any_random", "any_min_p"}),
    "bias": (SamplingParams(temperature=0.0, logit_bias={1: 2.0}), {"any_bias"}),
    "banned": (SamplingParams(temperature=0.0, banned_token_ids=[1]), {"any_bias"}),
    "allowed": (SamplingParams(temperature=0.0, allowed_token_ids=[1]), {"any_bias"}),
    "min_tokens": (SamplingParams(temperature=0.0, min_tokens=3), {"any_min_tokens"}),
    "min_tokens_reached": (SamplingParams(temperature=0.0, min_tokens=2), set()),
    "repetition": (SamplingParams(temperature=0.0, repetition_penalty=1.1), {"any_penalty"}),
    "presence": (SamplingParams(temperature=0.0, presence_penalty=1.0), {"any_penalty"}),
    "frequency": (SamplingParams(temperature=0.0, frequency_penalty=-1.0), {"any_penalty"}),
    "logprobs": (SamplingParams(temperature=0.0, logprobs=0), {"any_logprobs"}),
}


@pytest.mark.parametrize("case", FLAG_CASES)
def test_a_step_runs_only_what_its_requests_ask_for(case: str) -> None:
    params, expected = FLAG_CASES[case]
    state = SamplingState(4, VOCAB)
    idle, request = make_request(0, SamplingParams(temperature=0.0)), make_request(2, params, output=(3, 4))
    state.add(idle)
    state.add(request)
    for requests in ([request], [idle, request]):
        inputs = state.gather(requests)
        assert {flag for flag in FLAGS if getattr(inputs, flag)} == expected
        assert inputs.any_greedy == (params.temperature == 0 or idle in requests)


def test_inputs_follow_the_order_of_the_step() -> None:
    state = SamplingState(3, VOCAB)
    requests = [make_request(row, SamplingParams(temperature=t, logprobs=row)) for row, t in enumerate((0.0, 0.5, 2.0))]
    for request in requests:
        state.add(request)
    inputs = state.gather([requests[2], requests[0]])
    assert inputs.seeds.tolist() == [12, 10]
    assert inputs.prompt_lengths.tolist() == [3, 3]
    assert inputs.is_greedy.tolist() == [False, True]
    assert inputs.rules.temperatures is not None and inputs.rules.temperatures.tolist() == [2.0, 0.0]
    assert inputs.max_logprobs == 2 and inputs.num_reqs == 2


def test_bias_row_combines_allowed_banned_and_bias() -> None:
    params = SamplingParams(allowed_token_ids=[0, 2, 3], banned_token_ids=[3], logit_bias={0: 1.5, 1: 9.0, 3: 2.0})
    state = SamplingState(1, VOCAB)
    request = make_request(0, params)
    state.add(request)
    bias = state.gather([request]).rules.bias
    assert bias is not None
    assert taken(bias.table, bias.slots) == [1.5, -math.inf, 0.0, -math.inf, -math.inf, -math.inf]


def test_min_tokens_bans_end_and_stop_ids() -> None:
    state = SamplingState(1, VOCAB)
    request = make_request(0, SamplingParams(min_tokens=2, stop_token_ids=[2]))
    state.add(request)
    min_tokens = state.gather([request]).rules.min_tokens
    assert min_tokens is not None and min_tokens.min_tokens.tolist() == [2]
    assert taken(min_tokens.stop_ids.table, min_tokens.stop_ids.slots) == [False, False, True, False, False, True]


def test_counts_grow_with_committed_tokens_and_are_rebuilt_after_preemption() -> None:
    params = SamplingParams(repetition_penalty=1.2, frequency_penalty=0.5)
    state = SamplingState(3, VOCAB)
    other, request = make_request(0, SamplingParams()), make_request(1, params, output=(4, 4))
    state.add(other)
    state.add(request)
    assert output_counts(state, request) == [0, 0, 0, 0, 2, 0]
    for committed in ([2, 4, 2], [], [5]):
        request.token_ids += committed
        state.append_tokens([other, request], [[1], committed])
    grown = output_counts(state, request)
    assert grown == [0, 0, 2, 0, 3, 1]
    state.remove(1)
    request.row = 2
    state.add(request)
    assert output_counts(state, request) == grown
    penalties = state.gather([request]).rules.penalties
    assert penalties is not None
    assert taken(penalties.prompt_seen.table, penalties.prompt_seen.slots) == [True, True, False, False, False, False]


def test_a_row_taken_over_keeps_nothing_of_its_former_request() -> None:
    state = SamplingState(1, VOCAB)
    former = make_request(0, SamplingParams(frequency_penalty=1.0, banned_token_ids=[2], min_tokens=9), output=(1, 1))
    state.add(former)
    state.remove(0)
    request = make_request(0, SamplingParams(frequency_penalty=1.0, logit_bias={0: 1.0}), output=(3,))
    state.add(request)
    rules = state.gather([request]).rules
    assert output_counts(state, request) == [0, 0, 0, 1, 0, 0]
    assert rules.bias is not None and rules.min_tokens is None
    assert taken(rules.bias.table, rules.bias.slots) == [1.0, 0, 0, 0, 0, 0]


def test_requests_without_penalties_share_an_empty_row() -> None:
    state = SamplingState(2, VOCAB)
    penalised = make_request(0, SamplingParams(presence_penalty=1.0), output=(1,))
    free = make_request(1, SamplingParams(), output=(1,))
    state.add(penalised)
    state.add(free)
    state.append_tokens([free, penalised], [[2], [3]])
    penalties = state.gather([free]).rules.penalties
    assert penalties is None
    penalties = state.gather([free, penalised]).rules.penalties
    assert penalties is not None
    assert taken(penalties.output_counts.table, penalties.output_counts.slots) == [0.0] * VOCAB


def test_dense_rows_are_reused_and_bounded() -> None:
    pool = DenseRowPool(VOCAB, torch.float32, torch.device("cpu"))
    for _ in range(20):
        slots = [pool.acquire() for _ in range(3)]
        assert len(set(slots)) == 3 and 0 not in slots
        assert pool.table[slots].abs().sum() == 0
        pool.table[slots] = 7.0
        for slot in slots:
            pool.release(slot)
    assert len(pool.table) == 4
    assert pool.table[0].abs().sum() == 0


@pytest.mark.parametrize("temperature", [1e-300, 1e-40, 1e300])
def test_extreme_temperatures_stay_random(temperature: float) -> None:
    state = SamplingState(1, VOCAB)
    request = make_request(0, SamplingParams(temperature=temperature, repetition_penalty=1e-300))
    state.add(request)
    inputs = state.gather([request])
    assert inputs.is_greedy.tolist() == [False]
    assert inputs.rules.temperatures is not None and bool(torch.isfinite(inputs.rules.temperatures).all())
    assert inputs.rules.penalties is not None and inputs.rules.penalties.repetition.item() > 0


def test_a_step_like_the_last_gathers_the_same_record() -> None:
    state = SamplingState(3, VOCAB)
    params = SamplingParams(frequency_penalty=1.0, min_tokens=2)
    requests = [make_request(row, params) for row in range(2)]
    for request in requests:
        state.add(request)
    first = state.gather(requests)
    for request in requests:
        request.token_ids.append(4)
    state.append_tokens(requests, [[4], [4]])
    assert state.gather(requests) is first
    assert output_counts(state, requests[0]) == [0, 0, 0, 0, 1, 0]
    assert state.gather(requests).seeds.tolist() == [10, 11]
    assert state.gather(requests[::-1]).seeds.tolist() == [11, 10]


def test_what_changes_a_step_is_gathered_anew() -> None:
    state = SamplingState(3, VOCAB)
    request = make_request(0, SamplingParams(frequency_penalty=1.0, min_tokens=1))
    state.add(request)
    before = state.gather([request])
    request.token_ids.append(4)
    after = state.gather([request])
    assert before.any_min_tokens and not after.any_min_tokens
    other = make_request(1, SamplingParams(frequency_penalty=1.0))
    state.add(other)
    grown = state.gather([request]).rules.penalties
    assert grown is not None and grown.output_counts.table is state._output_counts.table
    state.remove(0)
    successor = make_request(0, SamplingParams(temperature=0.0))
    state.add(successor)
    assert not state.gather([successor]).any_penalty
    state.remove(0)
    with pytest.raises(AssertionError, match="no sampling row"):
        state.gather([successor])
