"""P1: however a step cuts what it commits, and whether it is streamed or not, the answer is the same."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from aquiline.server.prompts import PromptLimits
from aquiline.tokenizer import Tokenizer
from tests.server.folding import events_of, fold_chat, fold_completion, plain_chat, plain_completion
from tests.server.scripted import ScriptedEngine, ScriptedLLM
from tests.server.serving import QUESTION, Running, running

FUNCTION = {"name": "fly", "parameters": {"type": "object", "properties": {"to": {"type": "string"}}}}
TOOLS = [{"type": "function", "function": FUNCTION}]
SCRIPTS = {
    "plain": "The eagle flies over the sea, over the END of it.",
    "unicode": "鷹は🦅空をé飛ぶ END \N{ZERO WIDTH JOINER}🦅🦅",
    "one_call": 'I look.\n<tool_call>\n{"name": "fly", "arguments": {"to": "sea END", "x": "}🦅"}}\n</tool_call>',
    "two_calls": '<tool_call>{"name": "fly", "arguments": {"a": [1]}}</tool_call>\n'
    '<tool_call>{"name": "fly", "arguments": {}}</tool_call> END done',
    "cut_call": '<tool_call>{"name": "fly", "arguments": {"to": "the far',
    "no_call": 'a <tool_call> {"name": "sing", "arguments": {}} </tool_call> END',
    "empty": "",
}
STOPS: list[Any] = [None, ["END"], ["ver", "over the", "}"]]
RUNS = [(4, 1), (100, 3)]


@pytest.fixture(scope="module")
def engine(toy_folder: Path) -> ScriptedEngine:
    return ScriptedEngine(Tokenizer.from_path(toy_folder / "target"))


@pytest.fixture(scope="module")
def scripted(toy_folder: Path, engine: ScriptedEngine) -> Iterator[Running]:
    llm = ScriptedLLM(Tokenizer.from_path(toy_folder / "target"))
    with running(llm, engine, limits=PromptLimits(4096, llm.tokenizer.vocab_size)) as server:
        yield server


@pytest.fixture(scope="module")
def http(scripted: Running) -> Iterator[httpx.Client]:
    with scripted.http() as client:
        yield client


def post(http: httpx.Client, path: str, body: dict[str, Any]) -> httpx.Response:
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response


def usage_without_figures(usage: dict[str, Any]) -> dict[str, Any]:
    return {name: usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}


@pytest.mark.parametrize("stop", STOPS, ids=str)
@pytest.mark.parametrize("has_logprobs", [False, True], ids=["", "logprobs"])
@pytest.mark.parametrize("has_tools", [False, True], ids=["", "tools"])
@pytest.mark.parametrize("script", list(SCRIPTS))
def test_chat_answers_do_not_depend_on_runs(
    http: httpx.Client, engine: ScriptedEngine, script: str, has_tools: bool, has_logprobs: bool, stop: Any
) -> None:
    body: dict[str, Any] = {"messages": QUESTION, "n": 2}
    body |= {"stop": stop} if stop else {}
    body |= {"tools": TOOLS} if has_tools else {}
    body |= {"logprobs": True, "top_logprobs": 2} if has_logprobs else {}
    engine.script = SCRIPTS[script]
    engine.max_run, engine.seed = 1, 0
    expected = post(http, "/v1/chat/completions", body).json()
    for (max_run, seed), stream_tokens in itertools.product(RUNS, ("many", "single")):
        engine.max_run, engine.seed = max_run, seed
        whole = post(http, "/v1/chat/completions", body).json()
        assert plain_chat(whole) == plain_chat(expected)
        assert usage_without_figures(whole["usage"]) == usage_without_figures(expected["usage"])
        streamed = body | {"stream": True, "stream_options": {"include_usage": True}, "stream_tokens": stream_tokens}
        events = events_of(post(http, "/v1/chat/completions", streamed))
        assert fold_chat(events) == plain_chat(expected)
        assert usage_without_figures(events[-1]["usage"]) == usage_without_figures(expected["usage"])


@pytest.mark.parametrize("stop", STOPS, ids=str)
@pytest.mark.parametrize("echo", [False, True], ids=["", "echo"])
@pytest.mark.parametrize("logprobs", [None, 0, 2])
@pytest.mark.parametrize("script", ["plain", "unicode", "empty"])
def test_completions_do_not_depend_on_runs(
    http: httpx.Client, engine: ScriptedEngine, script: str, logprobs: int | None, echo: bool, stop: Any
) -> None:
    body: dict[str, Any] = {"prompt": ["The 鷹", "🦅 over"], "n": 2, "max_tokens": 60, "echo": echo}
    body |= {"stop": stop} if stop else {}
    body |= {} if logprobs is None else {"logprobs": logprobs}
    engine.script = SCRIPTS[script]
    engine.max_run, engine.seed = 1, 0
    expected = post(http, "/v1/completions", body).json()
    for (max_run, seed), stream_tokens in itertools.product(RUNS, ("many", "single")):
        engine.max_run, engine.seed = max_run, seed
        whole = post(http, "/v1/completions", body).json()
        assert plain_completion(whole) == plain_completion(expected)
        streamed = body | {"stream": True, "stream_options": {"include_usage": True}, "stream_tokens": stream_tokens}
        events = events_of(post(http, "/v1/completions", streamed))
        assert fold_completion(events) == plain_completion(expected)
        assert usage_without_figures(events[-1]["usage"]) == usage_without_figures(expected["usage"])


def test_calls_are_found_and_told(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script, engine.max_run = SCRIPTS["one_call"], 4
    choice = post(http, "/v1/chat/completions", {"messages": QUESTION, "tools": TOOLS}).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "I look."
    assert choice["message"]["tool_calls"][0]["function"] == {
        "name": "fly",
        "arguments": '{"to": "sea END", "x": "}🦅"}',
    }
    engine.script = SCRIPTS["two_calls"]
    body = {"messages": QUESTION, "tools": TOOLS, "parallel_tool_calls": False}
    message = post(http, "/v1/chat/completions", body).json()["choices"][0]["message"]
    assert [call["function"]["arguments"] for call in message["tool_calls"]] == ['{"a": [1]}']


def test_without_tools_the_text_is_left_alone(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script, engine.max_run = SCRIPTS["one_call"], 4
    for body in ({"messages": QUESTION}, {"messages": QUESTION, "tools": TOOLS, "tool_choice": "none"}):
        choice = post(http, "/v1/chat/completions", body).json()["choices"][0]
        assert choice["message"]["content"] == engine.script and "tool_calls" not in choice["message"]
        assert choice["finish_reason"] == "stop"


def test_single_tokens_come_one_by_one(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script, engine.max_run = SCRIPTS["unicode"], 8
    body = {"messages": QUESTION, "stream": True, "stream_tokens": "single", "return_token_ids": True}
    events = events_of(post(http, "/v1/chat/completions", body))
    tokens = [choice["token_ids"] for event in events for choice in event["choices"] if "token_ids" in choice]
    assert all(len(token_ids) == 1 for token_ids in tokens)
    many = events_of(post(http, "/v1/chat/completions", body | {"stream_tokens": "many"}))
    runs = [choice["token_ids"] for event in many for choice in event["choices"] if "token_ids" in choice]
    assert [*itertools.chain(*runs)] == [*itertools.chain(*tokens)] and max(map(len, runs)) > 1


def test_offsets_point_at_the_tokens(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script, engine.max_run = SCRIPTS["plain"], 5
    body = {"prompt": "The sea:", "logprobs": 1, "echo": True, "max_tokens": 60}
    choice = post(http, "/v1/completions", body).json()["choices"][0]
    logprobs = choice["logprobs"]
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert choice["text"].startswith(token, offset) or token == "<|im_end|>"
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None


def test_only_an_echo(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script, engine.max_run = SCRIPTS["plain"], 5
    body = {"prompt": "The sea:", "logprobs": 1, "echo": True, "max_tokens": 0}
    answer = post(http, "/v1/completions", body).json()
    assert answer["choices"][0]["text"] == "The sea:"
    assert len(answer["choices"][0]["logprobs"]["tokens"]) == answer["usage"]["prompt_tokens"]
    assert answer["usage"]["completion_tokens"] == 0
    events = events_of(post(http, "/v1/completions", body | {"stream": True}))
    assert fold_completion(events) == plain_completion(answer)
