"""The real `openai` client against a real server: whole and streamed answers, and what it refuses."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from aquiline.llm import LLM
from aquiline.request import RequestOutput, SamplingParams
from tests.server.serving import NAME, QUESTION, Running

SETTINGS: dict[str, Any] = {"temperature": 0.9, "seed": 3, "max_tokens": 12}


def solo(llm: LLM, **changes: Any) -> RequestOutput:
    return llm.chat(QUESTION, SamplingParams(**(SETTINGS | changes)))[0]


def test_the_model_is_listed(server: Running) -> None:
    client = server.openai()
    assert [model.id for model in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).id == NAME
    with pytest.raises(openai.NotFoundError, match="only one is 'toy'"):
        client.models.retrieve("gpt-4o")


def test_a_chat_answer_is_the_solo_answer(server: Running, solo_llm: LLM) -> None:
    answer = server.openai().chat.completions.create(model=NAME, messages=QUESTION, **SETTINGS)
    expected = solo(solo_llm)
    assert answer.choices[0].message.content == expected.outputs[0].text
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == expected.outputs[0].finish_reason
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(expected.prompt_token_ids)
    assert answer.usage.completion_tokens == len(expected.outputs[0].token_ids)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_streamed_chat_answer_is_the_solo_answer(server: Running, solo_llm: LLM) -> None:
    stream = server.openai().chat.completions.create(
        model=NAME, messages=QUESTION, stream=True, stream_options={"include_usage": True}, **SETTINGS
    )
    events = list(stream)
    assert events[0].choices[0].delta.role == "assistant"
    assert len({event.id for event in events}) == 1
    texts = [choice.delta.content or "" for event in events for choice in event.choices]
    expected = solo(solo_llm).outputs[0]
    assert "".join(texts) == expected.text
    assert [choice.finish_reason for event in events for choice in event.choices if choice.finish_reason] == ["length"]
    assert events[-1].choices == [] and events[-1].usage is not None
    assert events[-1].usage.completion_tokens == len(expected.token_ids)
    assert all(event.usage is None for event in events[:-1])


def test_several_answers_are_those_of_the_engine(server: Running, solo_llm: LLM) -> None:
    client = server.openai()
    whole = client.chat.completions.create(model=NAME, messages=QUESTION, n=3, **SETTINGS)
    expected = [completion.text for completion in solo(solo_llm, n=3).outputs]
    assert [choice.message.content for choice in whole.choices] == expected
    streamed = ["", "", ""]
    for event in client.chat.completions.create(model=NAME, messages=QUESTION, n=3, stream=True, **SETTINGS):
        for choice in event.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == expected


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
def test_prompts_of_every_form_are_continued(server: Running, solo_llm: LLM, is_streamed: bool) -> None:
    ids = solo_llm.tokenizer.encode("The eagle")
    for prompt in ("The eagle", ["The eagle", "over the sea"], ids, [ids, ids[:2]]):
        prompts: Any = [prompt] if prompt in ("The eagle", ids) else prompt
        outputs = solo_llm.generate(prompts, SamplingParams(**SETTINGS))
        expected = [output.outputs[0].text for output in outputs]
        answer: Any = server.openai().completions.create(
            model=NAME, prompt=prompt, stream=is_streamed, extra_body={}, **SETTINGS
        )
        texts = [""] * len(expected)
        for event in answer if is_streamed else [answer]:
            for choice in event.choices:
                texts[choice.index] += choice.text
        assert texts == expected


def test_speculation_is_counted(server: Running) -> None:
    settings = SETTINGS | {"max_tokens": 40}
    create = server.openai().chat.completions.create
    for mode in ("auto", "tree:2x2", "chain:3", "dynamic:steps=2,topk=2,nodes=4", "off"):
        extra = {"aquiline": True, "speculation": {"mode": mode}}
        answer: Any = create(model=NAME, messages=QUESTION, extra_body=extra, **settings)
        details = answer.usage.completion_tokens_details
        figures = answer.aquiline
        assert figures["num_committed_tokens"] == 40
        assert figures["acceptance_length"] == 40 / figures["num_verify_steps"]
        assert figures["num_accepted_draft_tokens"] == details.accepted_prediction_tokens
        assert figures["num_draft_tokens"] == details.accepted_prediction_tokens + details.rejected_prediction_tokens
        assert (figures["num_draft_tokens"] > 0) == (mode != "off")
        runs = answer.choices[0].aquiline["runs"]
        assert sum(run["num_tokens"] for run in runs) == 40
        assert sum(run["num_accepted_draft_tokens"] for run in runs) == details.accepted_prediction_tokens


def test_a_reported_seed_gives_the_answer_again(server: Running) -> None:
    create = server.openai().chat.completions.create
    first: Any = create(model=NAME, messages=QUESTION, max_tokens=9, extra_body={"aquiline": True})
    again = create(model=NAME, messages=QUESTION, max_tokens=9, seed=first.aquiline["seeds"][0])
    assert again.choices[0].message.content == first.choices[0].message.content


@pytest.mark.parametrize(
    ("change", "param"),
    [
        pytest.param({"temperature": -1.0}, "temperature", id="out of range"),
        pytest.param({"temperature": "hot"}, "temperature", id="of another type"),
        pytest.param({"extra_body": {"top_q": 1}}, "top_q", id="unknown"),
        pytest.param({"messages": []}, "messages", id="no messages"),
        pytest.param({"messages": [{"role": "pirate", "content": "a"}]}, "messages.0.role", id="unknown role"),
        pytest.param({"stop": ["a"] * 40}, "stop", id="too many stops"),
        pytest.param({"logit_bias": {"x": 1}}, "logit_bias", id="a bias for no token"),
        pytest.param({"n": 1000}, "n", id="too many answers"),
    ],
)
def test_mistakes_are_refused_and_named(server: Running, change: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        server.openai().chat.completions.create(**({"model": NAME, "messages": QUESTION} | change))
    assert caught.value.param == param
    assert "\n" not in caught.value.message


def test_another_model_is_not_found(server: Running) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        server.openai().chat.completions.create(model="gpt-4o", messages=QUESTION)
    assert caught.value.code == "model_not_found"


def test_a_prompt_that_is_too_long_is_refused(server: Running) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        server.openai().completions.create(model=NAME, prompt="word " * 300)
    assert caught.value.code == "context_length_exceeded"
