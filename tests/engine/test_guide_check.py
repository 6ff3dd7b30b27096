"""A guide is judged before there is a model, as an engine would, and in little time."""

from __future__ import annotations

import time

import pytest

from aquiline.engine.grammar import SMALL_SOURCE_CHARACTERS
from aquiline.engine.guide_check import check_guide
from aquiline.errors import InvalidParameterError
from aquiline.guided import GuidedParams

SOUND = [
    GuidedParams(json_object=True),
    GuidedParams(json_schema={"type": "object", "properties": {"name": {"type": "string", "pattern": "^[a-z]+$"}}}),
    GuidedParams(regex="[0-9]{3}|eagle"),
    GuidedParams(grammar='root ::= "{" [a-z]+ "}"'),
    GuidedParams(choice=["owl", "eagle"]),
]
WRONG = [
    GuidedParams(json_schema={"type": "bird"}),
    GuidedParams(json_schema={"$ref": "#/$defs/none"}),
    GuidedParams(regex="[z-a]"),
    GuidedParams(grammar="root ::= bird"),
    GuidedParams(grammar='bird ::= "owl"'),
]
LARGE = [
    GuidedParams(grammar='root ::= (("owl"{1000}){1000}){1000}'),
    GuidedParams(regex="((a{1000}){1000}){1000}"),
    GuidedParams(regex="(" + "a" * SMALL_SOURCE_CHARACTERS),
]


@pytest.mark.parametrize("guided", SOUND, ids=lambda guided: guided.kind)
def test_a_sound_guide_passes(guided: GuidedParams) -> None:
    check_guide(guided)


@pytest.mark.parametrize("guided", WRONG, ids=lambda guided: guided.source)
def test_a_wrong_guide_is_refused(guided: GuidedParams) -> None:
    with pytest.raises(InvalidParameterError):
        check_guide(guided)


@pytest.mark.parametrize("guided", LARGE, ids=lambda guided: f"{guided.kind} {guided.source[:8]}")
def test_what_may_be_large_is_left_to_the_engine(guided: GuidedParams) -> None:
    begun = time.process_time()
    check_guide(guided)
    assert time.process_time() - begun < 5.0
