"""Where outputs end: every stop rule at every place of an accepted run, however the tokens are cut into runs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aquiline.engine.finish import Committed, abort, commit_tokens
from aquiline.engine.stream import TextStream
from aquiline.request import FinishReason, Request, RequestStatus, SamplingParams
from aquiline.token_bytes import IncrementalDecoder

PIECES = (b"a", b"b", b"ab", b"ba", b"\xc3", b"\xa9", b" ", b"END", b"x END y", b"")
A, B, AB, BA, HALF, OTHER_HALF, SPACE, END, END_INSIDE, EOS = range(len(PIECES))
PROMPT = (A, END, SPACE)
UNLIMITED = 1000


@dataclass(frozen=True)
class Outcome:
    """All that a user sees of an output, and what was sent after each token."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason | None
    stop_reason: int | str | None
    status: RequestStatus
    released: tuple[str, ...]


def new_request(**params: Any) -> Request:
    return Request("request", PROMPT, SamplingParams(**params), seed=0, eos_token_ids=frozenset({EOS}))


def new_stream(request: Request) -> TextStream:
    decoder = IncrementalDecoder(PIECES.__getitem__, request.prompt_token_ids)
    return TextStream(decoder, tuple(request.params.stop), request.params.include_stop_str_in_output)


def commit_all(runs: Sequence[Sequence[int]], max_model_len: int = UNLIMITED, **params: Any) -> Outcome:
    """Commit runs until the output ends; checks on the way that each run's record agrees with the request."""
    request = new_request(**params)
    stream = new_stream(request)
    released: list[str] = []
    for run in runs:
        num_before = request.num_tokens
        committed = commit_tokens(request, stream, run, max_model_len)
        assert committed.token_ids == tuple(run[: len(committed.token_ids)])
        assert committed.token_ids == tuple(request.token_ids[num_before:])
        assert (committed.finish_reason, committed.stop_reason) == (request.finish_reason, request.stop_reason)
        assert len(committed.token_ids) == len(run) or request.is_finished
        released.append(stream.releasable_text)
        if request.is_finished:
            break
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(released))
    assert not request.is_finished or released[-1] == stream.text
    return Outcome(
        tuple(request.output_token_ids),
        stream.text,
        request.finish_reason,
        request.stop_reason,
        request.status,
        tuple(released),
    )


def compositions(tokens: Sequence[int]) -> Iterator[list[Sequence[int]]]:
    """Every way to cut `tokens` into runs."""
    for cuts in itertools.product((False, True), repeat=len(tokens) - 1):
        borders = [0, *(place for place, is_cut in enumerate(cuts, 1) if is_cut), len(tokens)]
        yield [tokens[start:end] for start, end in itertools.pairwise(borders)]


STOPS = {
    "eos": ((EOS,), {}, None),
    "stop-token": ((B,), {"stop_token_ids": [B]}, B),
    "stop-string": ((END,), {"stop": "END"}, "END"),
    "stop-string-inside": ((END_INSIDE,), {"stop": "END"}, "END"),
    "stop-string-over-tokens": ((B, BA), {"stop": "bb"}, "bb"),
}


@pytest.mark.parametrize("kind", STOPS)
@pytest.mark.parametrize("stop_at", range(1, 6))
@pytest.mark.parametrize("cap", range(1, 8))
def test_every_stop_position_cap_and_cutting(kind: str, stop_at: int, cap: int) -> None:
    """`stop_at` counts the token that completes the stop; the cap is max_tokens, then max_model_len."""
    stop_tokens, params, stop_reason = STOPS[kind]
    num_plain = max(0, stop_at - len(stop_tokens))
    tokens = [*[A] * num_plain, *stop_tokens, A, SPACE, A]
    completed_at = num_plain + len(stop_tokens)
    is_stop = completed_at <= cap
    for limits in ({"max_tokens": cap}, {"max_tokens": None, "max_model_len": len(PROMPT) + cap}):
        for runs in compositions(tokens):
            outcome = commit_all(runs, **limits, **params)  # type: ignore[arg-type]
            if min(completed_at, cap) > len(tokens):
                assert outcome.finish_reason is None
                continue
            assert outcome.token_ids == tuple(tokens[: min(completed_at, cap)])
            assert outcome.finish_reason is (FinishReason.STOP if is_stop else FinishReason.LENGTH)
            assert outcome.stop_reason == (stop_reason if is_stop else None)
            assert outcome.status is RequestStatus.FINISHED


def expected_end(tokens: Sequence[int], params: SamplingParams, max_model_len: int) -> Committed:
    """The stop rules written from their definition, on whole prefixes instead of step by step."""
    for count in range(1, len(tokens) + 1):
        token = tokens[count - 1]
        if count >= params.min_tokens:
            if token == EOS and not params.ignore_eos:
                return Committed(tuple(tokens[:count]), FinishReason.STOP, None)
            if token in params.stop_token_ids:
                return Committed(tuple(tokens[:count]), FinishReason.STOP, token)
            before, text = (
                IncrementalText(tokens[: count - 1]).text,
                IncrementalText(tokens[:count]).text,
            )
            ends = range(len(before) + 1, len(text) + 1)
            spans = [(end - len(word), -len(word)) for end in ends for word in params.stop if text[:end].endswith(word)]
            if spans:
                start, negative_length = min(spans)
                return Committed(tuple(tokens[:count]), FinishReason.STOP, text[start : start - negative_length])
        if count == params.max_tokens or len(PROMPT) + count >= max_model_len:
            return Committed(tuple(tokens[:count]), FinishReason.LENGTH, None)
    return Committed(tuple(tokens), None, None)


class IncrementalText:
    """Text of tokens whose last character may still lack bytes."""

    def __init__(self, tokens: Sequence[int]) -> None:
        data = b"".join(PIECES[token] for token in tokens)
        self.text = data.decode("utf-8", "replace")
        if data.endswith(b"\xc3"):
            self.text = self.text.removesuffix("\ufffd")


PARAMS = st.fixed_dictionaries(
    {
        "stop": st.lists(st.sampled_from(["END", "ab", "ba", "aba", "é", " ", "a"]), max_size=2, unique=True),
        "stop_token_ids": st.lists(st.sampled_from([B, END, EOS]), max_size=1),
        "ignore_eos": st.booleans(),
        "include_stop_str_in_output": st.booleans(),
        "min_tokens": st.integers(0, 4),
        "max_tokens": st.none() | st.integers(4, 9),
    }
)
TOKENS = st.lists(st.integers(0, len(PIECES) - 1), min_size=1, max_size=10)


@settings(deadline=None, max_examples=200)
@given(TOKENS, PARAMS, st.integers(len(PROMPT) + 1, 20), st.data())
def test_any_cutting_into_runs_gives_the_same_output(
    tokens: list[int], params: dict[str, Any], max_model_len: int, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(tokens) - 1)), max_size=4)))
    runs = [run for start, end in itertools.pairwise([0, *cuts, len(tokens)]) if (run := tokens[start:end])]
    singly = commit_all([[token] for token in tokens], max_model_len, **params)
    outcome = commit_all(runs, max_model_len, **params)
    assert outcome == Outcome(
        singly.token_ids,
        singly.text,
        singly.finish_reason,
        singly.stop_reason,
        singly.status,
        outcome.released,
    )
    assert set(outcome.released) <= set(singly.released)
    assert outcome.released[-1] == singly.released[-1]


@settings(deadline=None, max_examples=200)
@given(TOKENS, PARAMS, st.integers(len(PROMPT) + 1, 20))
def test_outputs_end_where_the_rules_say(tokens: list[int], params: dict[str, Any], max_model_len: int) -> None:
    expected = expected_end(tokens, SamplingParams(**params), max_model_len)
    outcome = commit_all([tokens], max_model_len, **params)
    assert outcome.token_ids == expected.token_ids
    assert (outcome.finish_reason, outcome.stop_reason) == (expected.finish_reason, expected.stop_reason)


def test_tokens_after_a_stop_are_dropped_although_the_run_crosses_the_cap() -> None:
    outcome = commit_all([[A, B, END, SPACE, SPACE, SPACE]], max_tokens=5, stop="END")
    assert outcome.token_ids == (A, B, END)
    assert (outcome.text, outcome.finish_reason) == ("ab", FinishReason.STOP)


def test_stop_string_at_the_beginning_of_a_long_run_is_seen() -> None:
    outcome = commit_all([[A], [END, *[SPACE] * 200]], max_tokens=None, stop="END")
    assert (outcome.token_ids, outcome.text) == ((A, END), "a")


@pytest.mark.parametrize(
    ("params", "token_ids", "text"),
    [
        pytest.param({}, (A, EOS), "a", id="stops-at-eos"),
        pytest.param({"ignore_eos": True}, (A, EOS, B, B, B), "abbb", id="eos-ignored"),
        pytest.param({"ignore_eos": True, "stop_token_ids": [EOS]}, (A, EOS), "a", id="ignored-but-a-stop-token"),
    ],
)
def test_eos_in_the_middle_of_a_run(params: dict[str, Any], token_ids: tuple[int, ...], text: str) -> None:
    outcome = commit_all([[A, EOS, B, B, B]], **params)
    assert (outcome.token_ids, outcome.text) == (token_ids, text)


@pytest.mark.parametrize(
    ("include", "text"), [pytest.param(False, "a", id="left-out"), pytest.param(True, "ab", id="included")]
)
def test_text_of_a_stop_token(include: bool, text: str) -> None:
    outcome = commit_all([[A, B, A]], stop_token_ids=[B], include_stop_str_in_output=include)
    assert (outcome.token_ids, outcome.text, outcome.stop_reason) == ((A, B), text, B)


@pytest.mark.parametrize("min_tokens", range(6))
@pytest.mark.parametrize("params", [{}, {"stop_token_ids": [EOS]}], ids=["eos", "stop-token"])
def test_no_stop_token_before_min_tokens(min_tokens: int, params: dict[str, Any]) -> None:
    outcome = commit_all([[EOS] * 8], min_tokens=min_tokens, **params)
    assert len(outcome.token_ids) == max(1, min_tokens)


@pytest.mark.parametrize("min_tokens", range(6))
def test_no_stop_string_before_min_tokens(min_tokens: int) -> None:
    outcome = commit_all([[END] * 8], min_tokens=min_tokens, stop="END")
    assert len(outcome.token_ids) == max(1, min_tokens)
    assert outcome.text == "END" * (max(1, min_tokens) - 1)


def test_length_limit_counts_before_min_tokens_of_the_context() -> None:
    outcome = commit_all([[A] * 8], max_model_len=len(PROMPT) + 2, min_tokens=5)
    assert (outcome.token_ids, outcome.finish_reason) == ((A, A), FinishReason.LENGTH)


def test_stop_wins_over_length_at_the_same_token() -> None:
    outcome = commit_all([[A, EOS]], max_tokens=2)
    assert outcome.finish_reason is FinishReason.STOP


def test_incomplete_character_at_the_length_limit_shows() -> None:
    assert commit_all([[A, HALF, OTHER_HALF]], max_tokens=2).text == "a\ufffd"


def test_request_goes_on_while_nothing_fires() -> None:
    outcome = commit_all([[A, B], [A]])
    assert (outcome.finish_reason, outcome.stop_reason) == (None, None)
    assert outcome.status is RequestStatus.WAITING


def test_abort_keeps_what_was_committed() -> None:
    request = new_request(stop="END")
    stream = new_stream(request)
    commit_tokens(request, stream, [A, HALF], UNLIMITED)
    abort(request, stream)
    assert (request.status, request.finish_reason) == (RequestStatus.FINISHED, FinishReason.ABORT)
    assert (request.output_token_ids, stream.text) == ([A, HALF], "a\ufffd")


def test_abort_after_the_end_changes_nothing() -> None:
    request = new_request(stop="END")
    stream = new_stream(request)
    commit_tokens(request, stream, [END], UNLIMITED)
    abort(request, stream)
    assert (request.finish_reason, request.stop_reason) == (FinishReason.STOP, "END")


def test_a_run_for_a_finished_request_is_a_fault_of_ours() -> None:
    request = new_request()
    stream = new_stream(request)
    commit_tokens(request, stream, [EOS], UNLIMITED)
    with pytest.raises(AssertionError):
        commit_tokens(request, stream, [A], UNLIMITED)
