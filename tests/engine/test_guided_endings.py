"""How guided answers end where something else wants to end, forbid or cut them: each case with and without drafts."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from aquiline.errors import InvalidParameterError
from aquiline.guided import GuidedParams
from aquiline.request import FinishReason, Request, SamplingParams
from tests.engine.guided_work import EOS, SCHEMA, VOCABULARY, guided_engine, shared_compiler
from tests.engine.workloads import Job, assert_nothing_left, run_jobs
from tests.tiny import ScriptedDrafter, TinySettings

MODES = ["off", "chain:4", "tree:3x2x1"]
IDS = {text: token_id for token_id, text in reversed(list(enumerate(VOCABULARY)))}


def answer(mode: str, **fields: Any) -> tuple[str, FinishReason | None, tuple[int, ...]]:
    engine = guided_engine(TinySettings(mode, num_blocks=400, check_consistency=True))
    (sample,) = run_jobs(engine, [Job((3, 1, 4), SamplingParams(**fields))])["0"].outputs
    assert_nothing_left(engine)
    return sample.text, sample.finish_reason, sample.token_ids


@pytest.mark.parametrize("mode", MODES)
def test_a_bias_against_the_only_legal_token_is_left_out(mode: str) -> None:
    fields: dict[str, Any] = {"logit_bias": {IDS[b"a"]: -100.0, EOS: -100.0}, "guided": GuidedParams(regex="aa")}
    for temperature in (0.0, 1.0):
        text, reason, _ = answer(mode, temperature=temperature, seed=1, **fields)
        assert (text, reason) == ("aa", FinishReason.STOP)


@pytest.mark.parametrize("mode", MODES)
def test_an_answer_that_is_cut_is_the_beginning_of_the_whole_one(mode: str) -> None:
    """Also inside a string, whose quotes are open then."""
    guided = GuidedParams(json_schema=SCHEMA)
    whole, reason, token_ids = answer("off", temperature=0.0, max_tokens=200, guided=guided)
    assert reason is FinishReason.STOP and json.loads(whole)
    num_open = 0
    for most in range(1, len(token_ids), 3):
        text, reason, found = answer(mode, temperature=0.0, max_tokens=most, guided=guided)
        assert (found, reason) == (token_ids[:most], FinishReason.LENGTH)
        num_open += text.count('"') % 2
    assert num_open


@pytest.mark.parametrize("mode", MODES)
def test_an_answer_that_is_complete_ends_where_the_limit_is(mode: str) -> None:
    guided = GuidedParams(regex="a{3}")
    for most, expected in ((3, FinishReason.LENGTH), (4, FinishReason.STOP)):
        text, reason, _ = answer(mode, temperature=0.0, max_tokens=most, guided=guided)
        assert (text, reason) == ("aaa", expected)


@pytest.mark.parametrize("mode", MODES)
def test_a_choice_that_begins_another_can_be_given_and_so_can_the_other(mode: str) -> None:
    guided = GuidedParams(choice=["ab", "abba", "abbab"])
    found = {answer(mode, temperature=1.5, seed=seed, guided=guided)[:2] for seed in range(40)}
    assert found == {(text, FinishReason.STOP) for text in guided.choice or ()}


@pytest.mark.parametrize("mode", MODES[1:])
def test_an_end_that_is_drafted_where_none_may_be_ends_nothing(mode: str) -> None:
    fields: dict[str, Any] = {"temperature": 0.0, "max_tokens": 40, "guided": GuidedParams(json_schema=SCHEMA)}
    expected = answer("off", **fields)[2]
    history = [3, 1, 4, *expected]
    for place in range(3, len(history) - 1, 2):
        engine = guided_engine(TinySettings(mode, num_blocks=400, check_consistency=True))

        def choose(request: Request, position: int, rank: int, own: int, place: int = place) -> int:
            right = history[position] if position < len(history) else own
            return EOS if position == place and rank == 0 else right

        ScriptedDrafter.replace_in(engine, choose)
        (sample,) = run_jobs(engine, [Job((3, 1, 4), SamplingParams(**fields))])["0"].outputs
        assert sample.token_ids == expected


@pytest.mark.parametrize("mode", MODES)
def test_min_tokens_of_a_grammar_that_is_complete_hold_nothing_up(mode: str) -> None:
    text, reason, _ = answer(mode, temperature=0.0, min_tokens=30, max_tokens=60, guided=GuidedParams(choice=["ab"]))
    assert (text, reason) == ("ab", FinishReason.STOP)


@pytest.mark.parametrize(
    ("schema", "text"), [({"const": None}, "null"), ({"enum": [None]}, "null"), ({"const": False}, "false")]
)
def test_a_value_that_is_nothing_is_a_value(schema: dict[str, Any], text: str) -> None:
    assert answer("chain:4", temperature=1.0, seed=0, guided=GuidedParams(json_schema=schema))[:2] == (
        text,
        FinishReason.STOP,
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"grammar": 'root ::= "a" root'},
        {"grammar": "root ::= b\nb ::= c\nc ::= b"},
        {"json_schema": {"$ref": "#"}},
        {"json_schema": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}},
        {"json_schema": {"anyOf": [{"$ref": "#"}]}},
        {"json_schema": {"allOf": [{"$ref": "#"}]}},
        {"json_schema": {"enum": []}},
        {"choice": [""]},
        {"choice": []},
    ],
)
def test_what_has_no_text_is_refused_at_once(fields: dict[str, Any]) -> None:
    started = time.thread_time()
    with pytest.raises(InvalidParameterError):
        shared_compiler().compile(GuidedParams(**fields))
    assert time.thread_time() - started < 2
