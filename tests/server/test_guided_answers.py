"""Answers that have to match a form: they do, streamed or whole, and as they do offline."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

from aquiline.engine.grammar_process import NUM_PROCESSES
from aquiline.engine.grammar_text import grammar_text
from aquiline.guided import GuidedParams
from aquiline.llm import LLM
from aquiline.request import SamplingParams
from aquiline.server.guided import NAMING_KEYWORDS, VALUE_KEYWORDS, call_schema
from aquiline.server.protocol.chat import ChatBody
from tests.server.folding import events_of, fold_chat, plain_chat
from tests.server.serving import QUESTION, Running

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"bird": {"enum": ["eagle", "kite"]}, "legs": {"type": "integer", "minimum": 1, "maximum": 3}},
    "required": ["bird", "legs"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "bird", "strict": True, "schema": SCHEMA}}
FORMS: list[tuple[dict[str, Any], GuidedParams]] = [
    ({"response_format": FORMAT}, GuidedParams(json_schema=SCHEMA)),
    ({"structured_outputs": {"json": SCHEMA, "whitespace": "any"}}, GuidedParams(json_schema=SCHEMA, whitespace="any")),
    ({"guided_json": SCHEMA}, GuidedParams(json_schema=SCHEMA)),
    ({"response_format": {"type": "json_object"}}, GuidedParams(json_object=True)),
    ({"guided_regex": "[ab]{3}c"}, GuidedParams(regex="[ab]{3}c")),
    ({"structured_outputs": {"regex": "[ab]{3}c"}}, GuidedParams(regex="[ab]{3}c")),
    ({"guided_choice": ["eagle", "kite"]}, GuidedParams(choice=["eagle", "kite"])),
    ({"structured_outputs": {"choice": ["eagle", "kite"]}}, GuidedParams(choice=["eagle", "kite"])),
    ({"guided_grammar": 'root ::= "a" [0-9]+ "b"'}, GuidedParams(grammar='root ::= "a" [0-9]+ "b"')),
]
NOTHING = {"type": "object", "additionalProperties": False}
TOOLS = [
    {"type": "function", "function": {"name": "fly", "strict": True, "parameters": SCHEMA}},
    {
        "type": "function",
        "function": {"name": "land", "parameters": {"$ref": "#/$defs/none", "$defs": {"none": NOTHING}}},
    },
]


def post(server: Running, **changes: Any) -> httpx.Response:
    body = {"messages": QUESTION, "max_tokens": 40, "seed": 4} | changes
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)


def test_references_of_arguments_hold_whatever_their_properties_are_called() -> None:
    names = [*VALUE_KEYWORDS, *NAMING_KEYWORDS, "$ref"]
    for keyword in NAMING_KEYWORDS:
        schema = {keyword: {name: {"$ref": "#/$defs/const"} for name in names}, "default": {"$ref": "#/a"}}
        tools = [{"type": "function", "function": {"name": "fly", "parameters": schema}}]
        body = ChatBody.model_validate({"messages": QUESTION, "tools": tools, "tool_choice": "required"})
        arguments = call_schema(body)["properties"]["arguments"]
        moved = {"$ref": "#/properties/arguments/$defs/const"}
        assert arguments == {keyword: dict.fromkeys(names, moved), "default": {"$ref": "#/a"}}


def test_arguments_that_have_an_id_keep_their_references() -> None:
    schema = {"$id": "http://example.com/fly", "$defs": {"n": NOTHING}, "$ref": "#/$defs/n"}
    tools = [{"type": "function", "function": {"name": "fly", "parameters": schema}}]
    body = ChatBody.model_validate({"messages": QUESTION, "tools": tools, "tool_choice": "required"})
    assert grammar_text(GuidedParams(json_schema=call_schema(body))).text


@pytest.mark.parametrize(("fields", "guided"), FORMS, ids=[f"{guided.kind} by {min(form)}" for form, guided in FORMS])
def test_a_form_is_kept_as_it_is_offline(
    server: Running, solo_llm: LLM, fields: dict[str, Any], guided: GuidedParams
) -> None:
    expected = solo_llm.chat(QUESTION, SamplingParams(max_tokens=40, seed=4, guided=guided))[0].outputs[0]
    whole = post(server, **fields).json()
    assert whole["choices"][0]["message"]["content"] == expected.text
    assert fold_chat(events_of(post(server, stream=True, **fields))) == plain_chat(whole)
    if guided.kind == "json_schema" and expected.finish_reason == "stop":
        assert json.loads(expected.text)["bird"] in ("eagle", "kite")


@pytest.mark.parametrize("name", ["fly", "land", None])
def test_a_call_that_is_forced_is_made(server: Running, name: str | None) -> None:
    choice: Any = "required" if name is None else {"type": "function", "function": {"name": name}}
    whole = post(server, tools=TOOLS, tool_choice=choice, max_tokens=90).json()
    assert "choices" in whole, whole
    answer = whole["choices"][0]
    assert answer["message"]["content"] is None and answer["finish_reason"] == "tool_calls"
    call = answer["message"]["tool_calls"][0]["function"]
    assert call["name"] in ("fly", "land") if name is None else call["name"] == name
    if call["name"] == "fly":
        assert re.fullmatch(r'\{"bird": "(eagle|kite)", "legs": [123]\}', call["arguments"])
    streamed = events_of(post(server, tools=TOOLS, tool_choice=choice, max_tokens=90, stream=True))
    assert fold_chat(streamed) == plain_chat(whole)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"response_format": FORMAT, "guided_regex": "a"}, "one form"),
        ({"guided_json": SCHEMA, "guided_choice": ["a"]}, "one form"),
        ({"structured_outputs": {}}, "guided names nothing"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "regex and choice"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, "schema"),
        ({"guided_regex": "(["}, "regex"),
        ({"guided_grammar": "root ::="}, "grammar"),
        ({"guided_json": "{"}, "JSON"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos"),
        ({"tool_choice": "required"}, "tools does not hold"),
        ({"tools": TOOLS[1:], "tool_choice": {"type": "function", "function": {"name": "fly"}}}, "does not hold"),
    ],
    ids=str,
)
def test_forms_that_cannot_be_kept_are_refused(server: Running, fields: dict[str, Any], message: str) -> None:
    response = post(server, **fields)
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


def test_arguments_that_no_grammar_follows_hinder_only_calls_that_are_forced(server: Running) -> None:
    hidden = {"type": "function", "function": {"name": "hide", "parameters": {"properties": {"a": {"not": {}}}}}}
    named = {"type": "function", "function": {"name": "hide"}}
    for choice, place in (("required", "#/anyOf/2/properties/arguments"), (named, "#/properties/arguments")):
        response = post(server, tools=[*TOOLS, hidden], tool_choice=choice)
        assert response.status_code == 400
        assert f"{place}/properties/a/not" in response.json()["error"]["message"]
    for choice in ("auto", "none"):
        response = post(server, tools=[hidden], tool_choice=choice)
        assert response.status_code == 200, response.text


def test_a_client_that_leaves_takes_its_guide_along(server: Running) -> None:
    """Two would keep both compilers busy until their time is over, which would be told of them from then on."""
    compiler = server.app.state.service.served.compile_guided.__self__
    options = [f'"{n:06d}" [a-z]{{1,60}} [^{chr(97 + n % 26)}]{{1,60}}' for n in range(12_000)]
    huge = "root ::= " + " | ".join(options)
    for number in range(3):
        with pytest.raises(httpx.ReadTimeout):
            body = {"messages": QUESTION, "guided_grammar": f'{huge} | "{number}"'}
            httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=httpx.Timeout(60, read=1.0))
    answer = post(server, guided_grammar='root ::= "a" | "bc"').json()
    assert answer["choices"][0]["message"]["content"] in ("a", "bc")
    assert compiler._processes._num_places == NUM_PROCESSES
    known = [*compiler._kept, *compiler._processes._refusals]
    assert not [guided for guided in known if (guided.grammar or "").startswith(huge)]
