"""One accepted run applied to the integers of its request."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aquiline.engine.commit import AcceptedRun, CommittedRequest, Committer
from aquiline.engine.schedule import ScheduledRequest
from aquiline.engine.stream import TextStream
from aquiline.request import FinishReason, Request, SamplingParams, TokenLogprob
from tests.tiny import new_decoder

PROMPT = (1, 2, 3, 4)
PARAMS = SamplingParams(max_tokens=50, logprobs=0)


def decoding_request(params: SamplingParams = PARAMS) -> Request:
    """Tokens t0..t3 are computed, the root 9 is not."""
    request = Request("it", PROMPT, params, seed=0, token_ids=[*PROMPT, 9])
    request.num_computed_tokens = 4
    return request


def logprobs(*token_ids: int) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob(token_id, -1.0, 1, ()) for token_id in token_ids)


def commit(request: Request, run: AcceptedRun, num_new_tokens: int = 1, limit: int = 100) -> CommittedRequest:
    scheduled = ScheduledRequest(request, num_new_tokens, draws_token=True, max_draft_depth=4)
    streams = {"it": TextStream(new_decoder(PROMPT, True), request.params.stop)}
    (committed,) = Committer(limit).commit([scheduled], {"it": run}, streams)
    return committed


RUN = AcceptedRun(nodes=(2, 5), token_ids=(25, 26, 27), logprobs=logprobs(25, 26, 27), num_draft_tokens=7)


def test_the_worked_example() -> None:
    request = decoding_request()
    committed = commit(request, RUN)
    assert committed.token_ids == (25, 26, 27)
    assert committed.computed_rows == (0, 2, 5)
    assert request.token_ids == [*PROMPT, 9, 25, 26, 27]
    assert request.num_computed_tokens == 7
    assert request.output_logprobs == list(logprobs(25, 26, 27))
    figures = (request.num_verify_steps, request.num_draft_tokens, request.num_accepted_draft_tokens)
    assert figures == (1, 7, 2)
    assert not request.is_finished


@pytest.mark.parametrize(
    ("stop_id", "computed_rows", "num_accepted"), [(25, (0,), 1), (26, (0, 2), 2), (27, (0, 2, 5), 2)]
)
def test_a_run_is_cut_everywhere_at_its_stop_token(
    stop_id: int, computed_rows: tuple[int, ...], num_accepted: int
) -> None:
    request = decoding_request(replace(PARAMS, stop_token_ids=(stop_id,)))
    committed = commit(request, RUN)
    kept = RUN.token_ids[: RUN.token_ids.index(stop_id) + 1]
    assert committed.token_ids == kept
    assert committed.computed_rows == computed_rows
    assert request.token_ids == [*PROMPT, 9, *kept]
    assert request.num_computed_tokens == request.num_tokens - 1
    assert len(request.output_logprobs) == len(kept)
    assert request.num_accepted_draft_tokens == num_accepted
    assert request.finish_reason is FinishReason.STOP


@pytest.mark.parametrize("limit", [6, 7, 8])
def test_a_run_is_cut_at_the_largest_length(limit: int) -> None:
    request = decoding_request()
    commit(request, RUN, limit=limit)
    assert request.num_tokens == limit
    assert request.num_computed_tokens == limit - 1
    assert request.finish_reason is FinishReason.LENGTH


def test_a_run_without_accepted_drafts_commits_the_bonus_token() -> None:
    request = decoding_request()
    committed = commit(request, AcceptedRun((), (30,), (), num_draft_tokens=3))
    assert (committed.token_ids, committed.computed_rows) == ((30,), (0,))
    assert request.num_accepted_draft_tokens == 0
    assert request.num_computed_tokens == 5


def test_the_last_chunk_of_a_prompt_commits_all_its_rows() -> None:
    request = Request("it", PROMPT, PARAMS, seed=0)
    request.num_computed_tokens = 1
    committed = commit(request, AcceptedRun((), (30,), logprobs(30), num_draft_tokens=0), num_new_tokens=3)
    assert committed.computed_rows == (0, 1, 2)
    assert request.num_computed_tokens == 4
    assert request.output_token_ids == [30]


def test_an_unfinished_prefill_only_advances() -> None:
    request = Request("it", PROMPT, PARAMS, seed=0)
    scheduled = ScheduledRequest(request, 2, draws_token=False, max_draft_depth=0)
    (committed,) = Committer(100).commit([scheduled], {}, {})
    assert (committed.token_ids, committed.computed_rows) == ((), (0, 1))
    assert request.num_computed_tokens == 2
    assert request.num_verify_steps == 0
    assert request.num_output_tokens == 0
