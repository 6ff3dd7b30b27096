"""The description at /openapi.json is true: of whole answers, and for anything a fuzzer makes of it."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as hypothesis_settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from aquiline.server.protocol.answers import ChatCompletion, Completion
from tests.server.fuzz import fuzz
from tests.server.serving import QUESTION, Running

CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
NUM_EXAMPLES = 6
NUM_RANDOM_BODIES = 150


def test_whole_answers_are_as_described(server: Running) -> None:
    extras = {"aquiline": True, "return_token_ids": True, "prompt_logprobs": 1, "n": 2, "max_tokens": 5}
    with server.http() as http:
        chat = {"messages": QUESTION, "logprobs": True, "top_logprobs": 1}
        text = {"prompt": "a", "logprobs": 1, "echo": True}
        for path, body, kind in (
            ("/v1/chat/completions", chat, ChatCompletion),
            ("/v1/completions", text, Completion),
        ):
            kind.model_validate(http.post(path, json=body | extras).json())
            kind.model_validate(http.post(path, json={name: body[name] for name in list(body)[:1]}).json())


def test_refusals_are_described(server: Running) -> None:
    description = httpx.get(f"{server.url}/openapi.json").json()
    assert "HTTPValidationError" not in json.dumps(description)
    for path, methods in description["paths"].items():
        for operation in methods.values():
            assert "400" in operation["responses"] and operation["description"], path


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_anything_made_of_the_description_is_answered_as_described(server: Running, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    num_operations = 0
    for result in schema.get_all_operations():
        operation: Any = result.ok()  # type: ignore[union-attr]
        if mode is GenerationMode.NEGATIVE and operation.method.upper() != "POST":
            continue

        def check(case: Any) -> None:
            if isinstance(case.body, dict):
                case.body |= {"max_tokens": 2, "min_tokens": None, "max_completion_tokens": None, "n": 1}
            case.call_and_validate(checks=CHECKS, timeout=60)

        run_settings = hypothesis_settings(
            max_examples=NUM_EXAMPLES,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
            derandomize=True,
            database=None,
        )
        given(case=operation.as_strategy(generation_mode=mode))(run_settings(check))()
        num_operations += 1
    assert num_operations >= 4
    assert httpx.get(f"{server.url}/health").status_code == 200


def test_random_bodies_never_fail_the_server(server: Running) -> None:
    statuses = fuzz(server, NUM_RANDOM_BODIES)
    assert min(statuses[200], statuses[400]) > NUM_RANDOM_BODIES // 12
