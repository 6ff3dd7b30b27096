"""Guides: exactly one, of the right type, and written in one way."""

from __future__ import annotations

from typing import Any

import pytest

from aquiline.errors import InvalidParameterError
from aquiline.guided import MAX_SOURCE_CHARACTERS, GuidedParams
from aquiline.request import SamplingParams


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "nothing"),
        ({"regex": "a", "choice": ["b"]}, "regex and choice"),
        ({"json_object": True, "json_schema": {}}, "json_schema and json_object"),
        ({"json_object": 1}, "true or false"),
        ({"json_schema": False}, "no text fits"),
        ({"json_schema": "false"}, "must be an object or true"),
        ({"json_schema": "{"}, "no JSON"),
        ({"json_schema": "[" * 100_000}, "no JSON"),
        ({"json_schema": [1]}, "is a list"),
        ({"json_schema": {"const": {1, 2}}}, "cannot be written"),
        ({"json_schema": {"maximum": float("nan")}}, "cannot be written"),
        ({"json_schema": {"const": "\udc80"}}, "cannot be written"),
        ({"regex": ""}, "at least one character"),
        ({"regex": b"a"}, "at least one character"),
        ({"grammar": "root ::= \udc80"}, "Unicode"),
        ({"choice": []}, "at least one text"),
        ({"choice": "yes"}, "a list"),
        ({"choice": ["a", 5]}, "entry of choice"),
        ({"regex": "a" * (MAX_SOURCE_CHARACTERS + 1)}, "the most are"),
        ({"regex": "a", "whitespace": "any"}, "leave it out"),
        ({"json_object": True, "whitespace": "none"}, "compact or any"),
    ],
)
def test_what_is_no_guide_is_refused(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidParameterError, match=named):
        GuidedParams(**fields)


def test_the_same_schema_in_three_forms_is_one_guide() -> None:
    text = GuidedParams(json_schema='{"type":  "string"}')
    assert text == GuidedParams(json_schema={"type": "string"})
    assert hash(text) == hash(GuidedParams(json_schema={"type": "string"}))
    assert text.source == '{"type": "string"}'
    assert GuidedParams(json_schema=True) == GuidedParams(json_schema="true")


def test_choices_that_are_equal_count_once() -> None:
    assert GuidedParams(choice=["b", "a", "b"]).choice == ("b", "a")


def test_ignoring_the_end_beside_a_guide_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="only one of them"):
        SamplingParams(guided=GuidedParams(regex="a"), ignore_eos=True)
