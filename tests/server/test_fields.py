"""Every field of OpenAI's bodies and of ours is honoured, refused or ignored, as docs/server.md says."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params

from aquiline.llm import LLM
from aquiline.request import SamplingParams
from aquiline.server.protocol.chat import ChatBody
from aquiline.server.protocol.common import GenerationBody
from aquiline.server.protocol.completions import CompletionBody
from tests.server.serving import QUESTION, Running
from tests.source_tree import ROOT

PAGE = (ROOT / "docs" / "server.md").read_text()
ROWS = re.findall(r"^\| `([a-z_]+)` \| (both|chat|completions) \| (.*) \|$", PAGE, re.MULTILINE)
PLACES = {"both": ("chat", "completions"), "chat": ("chat",), "completions": ("completions",)}
DOCUMENTED = {(name, where): text for name, places, text in ROWS for where in PLACES[places]}
BODIES: dict[str, type[GenerationBody]] = {"chat": ChatBody, "completions": CompletionBody}
PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
BASE: dict[str, dict[str, Any]] = {
    "chat": {"messages": QUESTION, "max_tokens": 10, "seed": 5},
    "completions": {"prompt": "The eagle", "max_tokens": 10, "seed": 5},
}
CALL = {"type": "function", "function": {"name": "fly"}}
GUIDES: dict[str, Any] = {"guided_json": 5, "guided_regex": "", "guided_choice": [], "guided_grammar": "no rule"}
CACHED = {"mode": "explicit"}

REFUSED: dict[str, list[Any]] = {
    "audio": [{"voice": "alloy", "format": "mp3"}],
    "best_of": [2],
    "function_call": ["auto"],
    "functions": [[{"name": "fly"}]],
    "modalities": [["text", "audio"]],
    "moderation": [{}],
    "prediction": [{"type": "content", "content": "a"}],
    "reasoning_effort": ["low"],
    "response_format": [{"type": "xml"}, {"type": "json_schema"}, {"type": "json_object", "schema": {}}],
    "structured_outputs": [{"html": "a"}, {"whitespace": "none"}],
    "service_tier": ["flex"],
    "store": [True],
    "suffix": ["end"],
    "tool_choice": ["required", CALL, {"type": "allowed_tools"}],
    "messages": [[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]}], []],
    "tools": [[{"type": "custom", "custom": {"name": "a"}}], [{**CALL, "function": {"name": "f", "strict": True}}]],
    "verbosity": ["low"],
    "web_search_options": [{}],
    "prompt_logprobs": [21],
    "speculation": [{"mode": "chain:7"}, {"mode": "much"}, {"mode": "off", "more": 1}],
    "logit_bias": [{"7": 101}, {"-1": 1.0}, {"100000": 1.0}],
    "seed": [-1, 2**63],
    "stop": ["", ["a" * 5000], [7]],
    "n": [0, 129],
    "top_k": [-2],
    "priority": [2**31],
    "max_tokens": [-1],
    "stop_token_ids": [[-1], [10**6]],
}
IGNORED: dict[str, Any] = {
    "metadata": {"a": "b"},
    "prompt_cache_key": "a",
    "prompt_cache_options": CACHED,
    "prompt_cache_retention": "24h",
    "safety_identifier": "a",
    "user": "a",
    "best_of": 1,
    "suffix": "",
    "modalities": ["text"],
    "reasoning_effort": "none",
    "response_format": {"type": "text"},
    "service_tier": "auto",
    "store": False,
    "verbosity": "medium",
    "tool_choice": "none",
    "parallel_tool_calls": True,
    "n": 1,
    "top_k": -1,
    "speculation": {"mode": "chain:3"},
    "add_generation_prompt": True,
    "priority": -3,
    "model": "toy",
}
# Fields that sampling parameters have too, and another value of each.
SAMPLED: dict[str, Any] = {
    "temperature": 0.3,
    "top_p": 0.2,
    "frequency_penalty": -2.0,
    "presence_penalty": -2.0,
    "seed": 6,
    "max_tokens": 4,
    "top_k": 2,
    "min_p": 0.9,
    "repetition_penalty": 0.1,
    "stop_token_ids": [*range(0, 400, 3)],
    "banned_token_ids": [*range(0, 400, 2)],
    "allowed_token_ids": [*range(0, 400, 7)],
    "logit_bias": {"301": 100.0},
    "stop": ["e", "a", "o"],
}


def places(name: str) -> list[str]:
    """The bodies that have a field."""
    return [where for where, body in BODIES.items() if name in body.model_fields]


def post(server: Running, where: str, **changes: Any) -> httpx.Response:
    return httpx.post(f"{server.url}{PATHS[where]}", json=BASE[where] | changes, timeout=60)


def choices_of(response: httpx.Response) -> Any:
    assert response.status_code == 200, response.text
    return response.json()["choices"]


def test_every_field_is_documented_and_every_documented_field_is_there() -> None:
    fields = {(name, where) for where, body in BODIES.items() for name in body.model_fields}
    assert set(DOCUMENTED) == fields


def test_every_field_of_openai_is_known() -> None:
    chat = {*chat_create_params.CompletionCreateParamsBase.__annotations__, "stream"}
    texts = {*completion_create_params.CompletionCreateParamsBase.__annotations__, "stream"}
    assert chat <= set(ChatBody.model_fields)
    assert texts <= set(CompletionBody.model_fields)


def test_what_is_documented_as_refused_or_ignored_is_tested_as_such() -> None:
    for (name, _), text in DOCUMENTED.items():
        assert name in REFUSED or "refused" not in text, name
        assert name in IGNORED or not text.startswith("ignored"), name


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in REFUSED.items() for value in values])
def test_refused_fields_are_named(server: Running, name: str, value: Any) -> None:
    for where in places(name):
        response = post(server, where, **{name: value})
        assert response.status_code == 400, where
        assert name in response.json()["error"]["message"]


@pytest.mark.parametrize("name", sorted(IGNORED))
def test_ignored_fields_change_nothing(server: Running, name: str) -> None:
    for where in places(name):
        assert choices_of(post(server, where, **{name: IGNORED[name]})) == choices_of(post(server, where))


@pytest.mark.parametrize("where", list(BODIES))
def test_fields_that_are_null_are_left_out(server: Running, where: str) -> None:
    fields = BODIES[where].model_fields
    nulls = {name: None for name, field in fields.items() if not field.is_required() and name not in BASE[where]}
    assert choices_of(post(server, where, **nulls)) == choices_of(post(server, where))


@pytest.mark.parametrize("name", sorted(SAMPLED))
def test_sampling_fields_mean_what_they_mean_offline(server: Running, solo_llm: LLM, name: str) -> None:
    value = SAMPLED[name]
    own = {int(key): bias for key, bias in value.items()} if name == "logit_bias" else value
    settings: dict[str, Any] = {"max_tokens": 10, "seed": 5, name: own}
    expected = solo_llm.generate("The eagle", SamplingParams(**settings))[0].outputs[0]
    choice = choices_of(post(server, "completions", **{name: value}))[0]
    assert (choice["text"], choice["finish_reason"]) == (expected.text, expected.finish_reason)
    assert choice != choices_of(post(server, "completions"))[0], "the value shows"
    chat = solo_llm.chat(QUESTION, SamplingParams(**settings))[0].outputs[0]
    assert choices_of(post(server, "chat", **{name: value}))[0]["message"]["content"] == chat.text


@pytest.mark.parametrize(
    ("changes", "offline"),
    [
        ({"stop": ["e"], "include_stop_str_in_output": True}, {}),
        ({"stop": ["e"], "min_tokens": 8}, {}),
        ({"ignore_eos": True, "skip_special_tokens": False, "max_tokens": 60}, {}),
        ({"max_completion_tokens": 7, "max_tokens": None}, {"max_tokens": 7, "max_completion_tokens": None}),
        ({"max_completion_tokens": 7, "max_tokens": 7}, {"max_tokens": 7, "max_completion_tokens": None}),
    ],
    ids=str,
)
def test_fields_that_work_together(
    server: Running, solo_llm: LLM, changes: dict[str, Any], offline: dict[str, Any]
) -> None:
    settings = {"max_tokens": 10, "seed": 5} | changes | offline
    settings = {name: value for name, value in settings.items() if value is not None}
    expected = solo_llm.chat(QUESTION, SamplingParams(**settings))[0].outputs[0]
    assert choices_of(post(server, "chat", **changes))[0]["message"]["content"] == expected.text


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"top_logprobs": 2}, id="top_logprobs without logprobs"),
        pytest.param({"stream_options": {"include_usage": True}}, id="stream_options without stream"),
        pytest.param({"stream_tokens": "single"}, id="stream_tokens without stream"),
        pytest.param({"prompt_logprobs": 1, "stream": True}, id="prompt_logprobs with stream"),
        pytest.param({"max_tokens": 3, "max_completion_tokens": 4}, id="two limits"),
        pytest.param({"min_tokens": 11}, id="min_tokens above max_tokens"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(server: Running, changes: dict[str, Any]) -> None:
    response = post(server, "chat", **changes)
    assert response.status_code == 400 and next(iter(changes)) in response.json()["error"]["message"]


def test_logprobs_are_those_of_the_engine(server: Running, solo_llm: LLM) -> None:
    params = SamplingParams(max_tokens=10, seed=5, logprobs=2, prompt_logprobs=2)
    expected = solo_llm.chat(QUESTION, params)[0]
    answer = choices_of(post(server, "chat", logprobs=True, top_logprobs=2, prompt_logprobs=2, return_token_ids=True))[
        0
    ]
    assert expected.outputs[0].logprobs is not None and expected.prompt_logprobs is not None
    for entry, own in zip(answer["logprobs"]["content"], expected.outputs[0].logprobs, strict=True):
        assert entry["logprob"] == own.logprob
        assert bytes(entry["bytes"]) == solo_llm.tokenizer.token_bytes(own.token_id)
        assert [top["logprob"] for top in entry["top_logprobs"]] == [logprob for _, logprob in own.top]
    assert answer["token_ids"] == list(expected.outputs[0].token_ids)
    assert answer["prompt_token_ids"] == list(expected.prompt_token_ids)
    assert answer["prompt_logprobs"][0] is None
    for told, theirs in zip(answer["prompt_logprobs"][1:], expected.prompt_logprobs[1:], strict=True):
        assert theirs is not None and told[str(theirs.token_id)]["logprob"] == theirs.logprob


def test_tokens_and_texts(server: Running, solo_llm: LLM) -> None:
    with server.http() as http:
        told = http.post("/tokenize", json={"prompt": "The eagle 鷹", "return_token_strs": True}).json()
        assert told["tokens"] == solo_llm.tokenizer.encode("The eagle 鷹") and told["count"] == len(told["tokens"])
        assert len(told["token_strs"]) == told["count"]
        assert http.post("/detokenize", json={"tokens": told["tokens"]}).json() == {"prompt": "The eagle 鷹"}
        chat = http.post("/tokenize", json={"messages": QUESTION}).json()
        assert chat["tokens"] == solo_llm.tokenizer.apply_chat_template(QUESTION)
        for body in ({}, {"prompt": "a", "messages": QUESTION}, {"prompt": "a", "model": "b"}, {"text": "a"}):
            assert http.post("/tokenize", json=body).status_code in (400, 404)
        assert http.post("/detokenize", json={"tokens": [10**6]}).status_code == 400
