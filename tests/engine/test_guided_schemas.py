"""A broad set of schemas through whole engines: answers validate, and are the same with every way to speculate."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema
import pytest

from aquiline.guided import GuidedParams
from aquiline.request import FinishReason, RequestOutput, SamplingParams
from tests.engine.guided_work import guided_engine
from tests.engine.strategies import FIXED_MODES
from tests.engine.test_json_schemas import SCHEMAS
from tests.engine.workloads import Job, answers, run_jobs
from tests.tiny import TinySettings

# A random model may go on for ever where a schema lets it.
ENDLESS = {"anything", "any object", "open object of anything", "pattern of a part", "pattern that nests"}
SPECIAL = {"old tuple": jsonschema.Draft7Validator}
NAMES = [name for name in SCHEMAS if name not in ENDLESS | {"nullable"}]


def jobs() -> list[Job]:
    """Every schema at temperature 0 and 1."""
    return [
        Job(
            (index % 50, 2),
            SamplingParams(
                temperature=temperature,
                seed=index,
                max_tokens=48,
                guided=GuidedParams(json_schema=SCHEMAS[name]),
            ),
        )
        for index, name in enumerate(NAMES)
        for temperature in (0.0, 1.0)
    ]


def run(mode: str) -> dict[str, RequestOutput]:
    settings = TinySettings(mode, max_num_seqs=48, num_blocks=1200, max_num_batched_tokens=512)
    return run_jobs(guided_engine(settings), jobs())


@cache
def plain() -> dict[str, RequestOutput]:
    return run("off")


def test_answers_validate() -> None:
    num_ended = 0
    for index, output in plain().items():
        name, sample = NAMES[int(index) // 2], output.outputs[0]
        if sample.finish_reason is FinishReason.STOP:
            num_ended += 1
            draft: Any = SPECIAL.get(name, jsonschema.Draft202012Validator)
            draft(SCHEMAS[name], format_checker=draft.FORMAT_CHECKER).validate(json.loads(sample.text))
    assert num_ended > len(NAMES)


@pytest.mark.parametrize("mode", FIXED_MODES[1:])
def test_answers_are_the_same_with_every_way_to_speculate(mode: str) -> None:
    for index, output in run(mode).items():
        assert answers(output) == answers(plain()[index]), NAMES[int(index) // 2]
