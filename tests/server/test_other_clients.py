"""Clients that people use beside OpenAI's own: LangChain's `ChatOpenAI`, and `llm` with its OpenAI plugin."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from langchain_openai import ChatOpenAI, OpenAI
from pydantic import SecretStr

from aquiline.llm import LLM
from aquiline.request import SamplingParams
from tests.server.serving import NAME, QUESTION, Running

PARAMS = SamplingParams(temperature=0.0, max_tokens=12)


def langchain(server: Running) -> ChatOpenAI:
    return ChatOpenAI(
        model=NAME, base_url=f"{server.url}/v1", api_key=SecretStr("none"), temperature=0.0, max_completion_tokens=12
    )


def test_langchain_asks_and_streams(server: Running, solo_llm: LLM) -> None:
    expected = solo_llm.chat(QUESTION, PARAMS)[0].outputs[0].text
    model = langchain(server)
    answer = model.invoke(QUESTION[0]["content"])
    assert answer.content == expected
    assert answer.usage_metadata is not None and answer.usage_metadata["output_tokens"] > 0
    assert "".join(str(chunk.content) for chunk in model.stream(QUESTION[0]["content"])) == expected
    assert [reply.content for reply in model.batch([QUESTION[0]["content"]] * 3)] == [expected] * 3


def test_langchain_continues_texts(server: Running, solo_llm: LLM) -> None:
    model = OpenAI(model=NAME, base_url=f"{server.url}/v1", api_key=SecretStr("none"), temperature=0.0, max_tokens=12)
    assert model.invoke("The eagle") == solo_llm.generate("The eagle", PARAMS)[0].outputs[0].text


def test_langchain_forces_a_call(server: Running) -> None:
    schema: dict[str, Any] = {
        "title": "fly",
        "description": "Fly.",
        "type": "object",
        "properties": {"up": {"type": "boolean"}},
    }
    schema |= {"required": ["up"], "additionalProperties": False}
    model = ChatOpenAI(model=NAME, base_url=f"{server.url}/v1", api_key=SecretStr("none"), max_completion_tokens=90)
    call = model.bind_tools([schema], tool_choice="fly").invoke("Fly!").tool_calls[0]
    assert call["name"] == "fly" and isinstance(call["args"]["up"], bool)
    structured = model.with_structured_output(schema, method="json_schema").invoke("Fly!")
    assert isinstance(structured, dict) and isinstance(structured["up"], bool)


def test_llm_asks(server: Running, solo_llm: LLM, tmp_path: Path) -> None:
    entry = {"model_id": "toy-here", "model_name": NAME, "api_base": f"{server.url}/v1"}
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps([entry]))
    command = [sys.executable, "-m", "llm", "-m", "toy-here", "--key", "none", "-o", "temperature", "0"]
    command += ["-o", "max_tokens", "12", QUESTION[0]["content"]]
    environment = os.environ | {"LLM_USER_PATH": str(tmp_path), "PYTHONIOENCODING": "utf-8"}
    finished = subprocess.run(command, capture_output=True, env=environment, timeout=120)
    assert finished.returncode == 0, finished.stderr.decode()
    expected = solo_llm.chat(QUESTION, PARAMS)[0].outputs[0].text
    assert finished.stdout.decode().strip() == expected.strip()
