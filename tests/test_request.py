from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aquiline.errors import InvalidParameterError
from aquiline.guided import GuidedParams
from aquiline.request import (
    MAX_COUNT,
    MAX_LOGPROBS,
    MAX_SEED,
    CompletionOutput,
    FinishReason,
    Request,
    RequestStatus,
    SamplingParams,
)
from aquiline.speculation_figures import SpeculationFigures

INF = math.inf
# name, accepted ends of the range, refused neighbours
RANGES: list[tuple[str, list[Any], list[Any]]] = [
    ("temperature", [0, 0.0, 1e6], [-1e-9, INF, math.nan, 10**400, True, "1"]),
    ("top_p", [1e-9, 1, 1.0], [0.0, 1.0000001, math.nan]),
    ("top_k", [0, MAX_COUNT], [-1, 1.0, MAX_COUNT + 1]),
    ("min_p", [0.0, 1.0], [-1e-9, 1.0000001, math.nan]),
    ("repetition_penalty", [1e-9, 100.0], [0.0, -1.0, INF, math.nan]),
    ("presence_penalty", [-2.0, 2.0], [-2.0001, 2.0001, math.nan]),
    ("frequency_penalty", [-2.0, 2.0], [-2.0001, 2.0001, math.nan]),
    ("logit_bias", [{}, {5: -100}, {0: 100.0}], [{-1: 0.0}, {1.0: 0.0}, {5: 100.1}, {5: math.nan}, {5: "1"}, [5], 5]),
    ("allowed_token_ids", [None, [0], {3, 4}], [[], [-1], [1.0], [True], 5, "12"]),
    ("banned_token_ids", [[], [0]], [[-1], [None], 5, "12", None]),
    ("min_tokens", [0, 5], [-1, 1.0, True, MAX_COUNT + 1]),
    ("max_tokens", [None, 1, MAX_COUNT], [0, -1, 1.0, True, MAX_COUNT + 1]),
    ("stop", ["end", ["a", "b"], ()], ["", ["a", ""], [5], 5, None, b"end", "\udcff"]),
    ("stop_token_ids", [[], [0]], [[-1], ["a"], 5]),
    ("seed", [None, 0, MAX_SEED], [-1, MAX_SEED + 1, 1.0, True]),
    ("n", [1, 3], [0, -1, 1.5, True, MAX_COUNT + 1]),
    ("logprobs", [None, 0, MAX_LOGPROBS], [-1, MAX_LOGPROBS + 1, True]),
    ("prompt_logprobs", [None, 0, MAX_LOGPROBS], [-1, MAX_LOGPROBS + 1, True]),
    ("ignore_eos", [True, False], [0, 1, None, "yes"]),
    ("skip_special_tokens", [True, False], [0, None]),
    ("include_stop_str_in_output", [True, False], [1, "no"]),
    ("speculation", ["auto", "off", "chain:4"], ["", "chain:0", "tree", 4, None]),
    ("guided", [None, GuidedParams(regex="a+")], ["a+", True, {"regex": "a+"}]),
]


def table(column: int) -> list[Any]:
    """`RANGES` as (name, value) cases of one column."""
    return [pytest.param(row[0], value, id=f"{row[0]}-{value!r:.20}") for row in RANGES for value in row[column]]


def test_the_table_covers_every_field() -> None:
    assert sorted(row[0] for row in RANGES) == sorted(SamplingParams.__dataclass_fields__)


@pytest.mark.parametrize(("name", "value"), table(1))
def test_values_in_range_are_accepted(name: str, value: Any) -> None:
    SamplingParams(**{name: value})


@pytest.mark.parametrize(("name", "value"), table(2))
def test_values_out_of_range_are_refused_by_name_on_one_line(name: str, value: Any) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        SamplingParams(**{name: value})
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


@given(
    name=st.sampled_from(sorted(SamplingParams.__dataclass_fields__)),
    value=st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.lists(st.text())),
)
def test_any_value_is_accepted_or_refused_as_a_parameter(name: str, value: Any) -> None:
    try:
        SamplingParams(**{name: value})
    except InvalidParameterError as error:
        assert name in str(error)


def test_one_stop_string_is_a_list_of_one() -> None:
    assert SamplingParams(stop="end").stop == ("end",)


def test_min_tokens_fits_below_max_tokens() -> None:
    assert SamplingParams(min_tokens=4, max_tokens=4).min_tokens == 4
    with pytest.raises(InvalidParameterError, match="min_tokens is 5 and max_tokens 4"):
        SamplingParams(min_tokens=5, max_tokens=4)


def test_a_ban_on_everything_allowed_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="allowed_token_ids leaves no token"):
        SamplingParams(allowed_token_ids=[1, 2], banned_token_ids=[2, 1, 0])


@pytest.mark.parametrize("name", ["logit_bias", "allowed_token_ids", "banned_token_ids", "stop_token_ids"])
def test_token_ids_are_checked_against_the_vocabulary(name: str) -> None:
    value = {9: 1.0} if name == "logit_bias" else [9]
    params = SamplingParams(**{name: value})  # type: ignore[arg-type]
    params.check_vocab(10)
    with pytest.raises(InvalidParameterError, match=f"{name} names token id 9; this model has ids 0 to 8"):
        params.check_vocab(9)


def test_a_ban_on_the_whole_vocabulary_is_refused() -> None:
    params = SamplingParams(banned_token_ids=[0, 1, 2])
    params.check_vocab(4)
    with pytest.raises(InvalidParameterError, match="bans every token"):
        params.check_vocab(3)


def test_a_request_counts_as_its_worked_example_says() -> None:
    request = Request("a", (10, 11, 12, 13), SamplingParams(), seed=1)
    assert request.token_ids == [10, 11, 12, 13]
    assert (request.num_prompt_tokens, request.num_output_tokens, request.num_uncomputed_tokens) == (4, 0, 4)
    request.token_ids.append(20)
    request.num_computed_tokens = 4
    assert (request.num_tokens, request.num_output_tokens, request.num_uncomputed_tokens) == (5, 1, 1)
    assert request.output_token_ids == [20]
    assert not request.is_finished
    request.status = RequestStatus.FINISHED
    assert request.is_finished


def test_a_request_owns_its_tokens() -> None:
    prompt = (1, 2)
    first, second = (Request(name, prompt, SamplingParams(), seed=1) for name in "ab")
    first.token_ids.append(3)
    assert (second.token_ids, first.prompt_token_ids) == ([1, 2], (1, 2))


def test_figures_include_the_bonus_token() -> None:
    figures = SpeculationFigures(
        num_verify_steps=4, num_draft_tokens=20, num_accepted_draft_tokens=5, num_committed_tokens=9, step_seconds=0.18
    )
    assert figures.acceptance_length == 2.25
    assert figures.acceptance_rate == 0.25
    assert figures.time_per_committed_token_ms == pytest.approx(20.0)


def test_figures_of_nothing_are_zero() -> None:
    figures = SpeculationFigures(0, 0, 0, 0, 0.0)
    assert (figures.acceptance_length, figures.acceptance_rate, figures.time_per_committed_token_ms) == (0, 0, 0)


def test_reasons_are_the_words_of_the_api() -> None:
    assert [str(reason) for reason in FinishReason] == ["stop", "length", "abort"]
    completion = CompletionOutput(0, "", (), None, FinishReason.LENGTH, None, SpeculationFigures(0, 0, 0, 0, 0.0))
    assert completion.finish_reason == "length"
