"""The quickstart model answers in JSON: the same tokens with and without speculation, fewer steps with it."""

from __future__ import annotations

import json

import jsonschema
import pytest

from aquiline.config import EngineConfig, SpeculativeConfig
from aquiline.guided import GuidedParams
from aquiline.llm import LLM
from aquiline.request import SamplingParams
from aquiline.speculation import parse_speculation
from tests.quickstart_model import IS_ON_DISK, PULL_IT

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "is_bird": {"type": "boolean"},
        "size": {"enum": ["small", "large"]},
    },
    "required": ["name", "is_bird", "size"],
    "additionalProperties": False,
}
QUESTION = [{"role": "user", "content": "Describe an eagle as JSON with name, is_bird and size."}]


def config(mode: str) -> EngineConfig:
    return EngineConfig(speculative=SpeculativeConfig(parse_speculation(mode)))


@pytest.mark.model
@pytest.mark.skipif(not IS_ON_DISK, reason=PULL_IT)
def test_json_is_valid_and_the_same_with_speculation() -> None:
    llm = LLM("smollm2-135m", config=config("chain:3"))
    for temperature in (0.0, 1.0):
        guided = GuidedParams(json_schema=SCHEMA)
        params = SamplingParams(temperature=temperature, seed=5, max_tokens=80, guided=guided)
        speculating = llm.chat([QUESTION], params)[0].outputs[0]
        plain = llm.reconfigured(config("off")).chat([QUESTION], params)[0].outputs[0]
        assert speculating.token_ids == plain.token_ids
        jsonschema.validate(json.loads(plain.text), SCHEMA)
        assert speculating.speculation.acceptance_length > 1.3
