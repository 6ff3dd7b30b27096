"""Guides that no text ends are refused; those with one are not, however they are written."""

from __future__ import annotations

import re
from typing import Any

import pytest

from aquiline.engine.grammar_text import grammar_text
from aquiline.errors import InvalidParameterError
from aquiline.guided import GuidedParams

ENDLESS_GRAMMARS = [
    'root ::= "a" root',
    'root ::= root | "a" root',
    'root ::= "a" b\nb ::= "c" d\nd ::= "e" b',
    'root ::= ("a" | "b") root{1,3}',
    'root ::= root+ "a"',
    "root ::= " + '("x" ' * 300 + "root" + ")" * 300,
    'root ::= "a" root ("b" | root)? | [)|] root',
    'root ::= "\\" root" root',
    "root ::= [\\]] root",
]
ENDING_GRAMMARS = [
    'root ::= "a" root | "b"',
    'root ::= "a" root?',
    'root ::= "a" root* "b"',
    'root ::= "a" root{0,3}',
    'root ::= "a" (root | "b" | root root)',
    'root ::= ""',
    'root ::= "a" b | c\nb ::= b\nc ::= [)|(]',
    'root ::= b c\nc ::= "c" | b\nb ::= "b" c | "|"',
    "root ::= " + '("x" ' * 300 + "root" + ' | "y")' * 300,
    'root-one ::= "x"\nroot ::= root-one root | root-one',
]


@pytest.mark.parametrize("grammar", ENDLESS_GRAMMARS, ids=range(len(ENDLESS_GRAMMARS)))
def test_a_grammar_without_an_end_is_refused(grammar: str) -> None:
    with pytest.raises(InvalidParameterError, match="grammar of guided fits no text that ends"):
        grammar_text(GuidedParams(grammar=grammar))


@pytest.mark.parametrize("grammar", ENDING_GRAMMARS, ids=range(len(ENDING_GRAMMARS)))
def test_a_grammar_with_an_end_is_taken(grammar: str) -> None:
    assert "root ::= " in grammar_text(GuidedParams(grammar=grammar)).text


@pytest.mark.parametrize(
    ("grammar", "shown"),
    [
        ('root ::= Regex("a(b)") "c"', "Regex(...)"),
        ("root ::= Token(1, 2)", "Token(...)"),
        ('root ::= "a" b\nb ::= ExcludeToken(1) "a"', "ExcludeToken(...)"),
        ('root ::= "a" (= "b")', "(=...)"),
        ('root ::= TagDispatch(("<a>", b))\nb ::= "x"', "TagDispatch(...)"),
    ],
)
def test_what_is_no_gbnf_is_refused_by_name(grammar: str, shown: str) -> None:
    with pytest.raises(InvalidParameterError, match=re.escape(f"the grammar of guided uses {shown}, which")):
        grammar_text(GuidedParams(grammar=grammar))


def test_what_only_looks_like_it_is_taken() -> None:
    text = 'root ::= "Token(1) (= " [(=T] token ("x" | "y")\ntoken ::= "\\"Token(" [\\]Token(]'
    assert "root ::= " in grammar_text(GuidedParams(grammar=text)).text


def node(next_one: Any, required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": {"next": next_one}, "required": required, "additionalProperties": False}


@pytest.mark.parametrize(
    "schema",
    [
        node({"$ref": "#"}, ["next"]),
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [node({"$ref": "#/$defs/a"}, ["next"])]}}},
    ],
)
def test_a_schema_whose_values_never_end_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameterError, match="JSON schema of guided fits no text that ends"):
        grammar_text(GuidedParams(json_schema=schema))


@pytest.mark.parametrize(
    "schema",
    [
        node({"$ref": "#"}, []),
        {"type": "array", "items": {"$ref": "#"}},
        node({"anyOf": [{"$ref": "#"}, {}]}, ["next"]),
    ],
)
def test_a_schema_with_a_way_out_is_taken(schema: dict[str, Any]) -> None:
    assert "root ::= " in grammar_text(GuidedParams(json_schema=schema)).text


@pytest.mark.parametrize("pattern", ["^\\x01$", "^(a\\x01|\\x02b)$", "\\x07"])
def test_a_pattern_of_what_json_cannot_hold_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidParameterError, match="no text fits it"):
        grammar_text(GuidedParams(json_schema={"type": "string", "pattern": pattern}))


def test_a_way_that_leads_nowhere_is_left_out() -> None:
    text = grammar_text(GuidedParams(json_schema={"type": "string", "pattern": "^(a\\x01|b)$"})).text
    assert "[b]" in text and "[a]" not in text


def test_a_property_with_a_long_name_among_open_ones_is_refused_or_understood() -> None:
    schema = {"type": "object", "properties": {"a" * 5000: {"type": "null"}}, "additionalProperties": True}
    with pytest.raises(InvalidParameterError, match="too deep in itself"):
        grammar_text(GuidedParams(json_schema=schema))
