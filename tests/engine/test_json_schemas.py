"""What a JSON schema lets through validates; what cannot be honoured is refused with its path."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest

from aquiline.engine.grammar import Matcher, new_masks
from aquiline.errors import InvalidParameterError
from aquiline.guided import GuidedParams
from tests.engine.guided_work import EOS, VOCAB, VOCABULARY, shared_compiler

INTEGER = {"type": "integer"}
STRING = {"type": "string", "maxLength": 4}


def closed(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


LIST_NODE = {
    "$defs": {"node": closed(v=INTEGER, next={"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]})},
    "$ref": "#/$defs/node",
}
SCHEMAS: dict[str, Any] = {
    "anything": True,
    "any object": {"type": "object"},
    "no keys": {"type": "object", "maxProperties": 0},
    "nested": closed(a=closed(b=closed(c=INTEGER), d={"type": "boolean"}), e={"type": "null"}),
    "optional": {"properties": {"a": INTEGER, "b": STRING}, "required": ["b"], "title": "t", "x-own": 1},
    "bounded array": {"type": "array", "items": INTEGER, "minItems": 2, "maxItems": 3},
    "tuple": {"type": "array", "prefixItems": [INTEGER, {"type": "string", "maxLength": 2}], "items": False},
    "tuple and rest": {"type": "array", "prefixItems": [INTEGER], "items": {"type": "boolean"}, "minItems": 1},
    "old tuple": {"type": "array", "items": [INTEGER, STRING], "additionalItems": False},
    "enum": {"enum": ["a", 1, None, {"b": [1, 2]}, 'é"\\', 1.5]},
    "enum of a type": {"enum": ["a", 1, 2.0, True], "type": "integer"},
    "const": {"const": {"a": [1, {}]}},
    "any of": {"anyOf": [INTEGER, {"type": "string", "maxLength": 2}, closed(a=INTEGER)]},
    "one of objects by a value, their type left to say": {
        "oneOf": [
            {"properties": {"kind": {"const": "a"}}, "required": ["kind"], "additionalProperties": False},
            closed(kind={"const": "b"}, x={"type": "boolean"}),
        ]
    },
    "one of types": {"oneOf": [{"type": "integer"}, {"type": "string", "maxLength": 3}, {"enum": [None, True]}]},
    "one of what Python takes for one": {"oneOf": [{"const": 1}, {"const": True}, {"const": [0]}, {"const": [False]}]},
    "one of tagged by what Python takes for one": {
        "oneOf": [closed(kind={"const": 1.0}, x=INTEGER), closed(kind={"const": True}, x={"type": "boolean"})]
    },
    "enum beside const": {"enum": [1.0, True, "1"], "const": 1},
    "all of equals": {"allOf": [{"type": "integer", "minimum": 1, "maximum": 5}, {"minimum": 1.0}]},
    "one of tagged": {
        "oneOf": [closed(kind={"const": "a"}, x=INTEGER), closed(kind={"const": "b"}, x={"type": "boolean"})],
        "discriminator": {"propertyName": "kind"},
    },
    "all of": {
        "allOf": [
            {"type": "object", "properties": {"a": INTEGER}, "required": ["a"]},
            {"properties": {"b": {"type": "boolean"}}, "required": ["b"]},
        ]
    },
    "all of all": {"allOf": [{"allOf": [{"type": "integer"}, {"minimum": 3}]}, {"maximum": 9}]},
    "all of one": {"allOf": [{"$ref": "#/$defs/n"}], "$defs": {"n": {"type": "integer", "minimum": 3}}},
    "all of what is evaluated together": {
        "allOf": [{"properties": {"a": INTEGER}}],
        "properties": {"b": INTEGER},
        "required": ["a"],
        "unevaluatedProperties": False,
    },
    "tuple cut short": {"type": "array", "prefixItems": [INTEGER, {"type": "null"}], "maxItems": 1},
    "tuple cut off": {"type": "array", "prefixItems": [INTEGER], "maxItems": 0},
    "limits that meet in a decimal": {"type": "number", "minimum": 0.1, "maximum": 0.1},
    "limits close to each other": {"type": "number", "exclusiveMinimum": -0.100002, "exclusiveMaximum": -0.1},
    "limits that meet": {"type": "number", "minimum": 3, "maximum": 3},
    "an id for all": {"$id": "http://example.com/a", "$defs": {"n": INTEGER}, "items": {"$ref": "#/$defs/n"}},
    "an id and all of it again": {"$id": "http://example.com/a", "items": {"$ref": "#"}, "maxItems": 1},
    "names that are strings": {"propertyNames": {"type": ["string", "null"], "pattern": "^a+$"}},
    "a text that stands for a pattern": {"enum": ["(aquiline0|-)", 'Regex("(aquiline0|-)", json_string=true)']},
    "such a text beside patterns": {
        "anyOf": [{"pattern": "^b+$"}, {"enum": ["(aquiline0|-)"]}, {"type": "object", "maxProperties": 0}]
    },
    "such a text beside a pattern that nothing needs": {
        "anyOf": [{"type": "object", "maxProperties": 0}, {"enum": ["(aquiline0|-)"]}]
    },
    "recursive list": LIST_NODE,
    "recursive tree": closed(c={"type": "array", "items": {"$ref": "#"}, "maxItems": 2}),
    "odd pointer": {"$defs": {"a b/c~": {"type": "boolean"}}, "$ref": "#/$defs/a%20b~1c~0"},
    "integer range": {"type": "integer", "minimum": -5, "maximum": 17},
    "exclusive integers": {"type": "integer", "exclusiveMinimum": 2.5, "exclusiveMaximum": 4.5},
    "multiple": {"type": "integer", "multipleOf": 4},
    "number range": {"type": "number", "minimum": -1.5, "maximum": 20.25},
    "exclusive numbers": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "limits without a type": {"minimum": 3, "maximum": 9},
    "several types": {"type": ["integer", "string", "null"], "minimum": 3, "maxLength": 2},
    "nullable": {"type": "integer", "nullable": True},
    "lengths": {"type": "string", "minLength": 2, "maxLength": 5.0},
    "unicode keys": closed(**{"é": INTEGER, 'a"b\\c': {"type": "null"}, "日": {"type": "boolean"}}),
    "open object": {"type": "object", "properties": {"ab": INTEGER}, "additionalProperties": {"type": "boolean"}},
    "open object of anything": {"type": "object", "properties": {"a": INTEGER}, "additionalProperties": True},
    "map": {"type": "object", "additionalProperties": INTEGER, "maxProperties": 3},
    "named map": {"type": "object", "propertyNames": {"pattern": "^[ab]{1,3}$"}, "additionalProperties": INTEGER},
    "required but not described": {"type": "object", "properties": {"a": INTEGER}, "required": ["b"]},
    "counted properties": {"properties": {"a": INTEGER, "b": INTEGER, "c": INTEGER}, "minProperties": 2},
    "pattern": {"type": "string", "pattern": "^[a-c]+(12|\\d{2})?$"},
    "pattern of a part": {"type": "string", "pattern": "ab"},
    "pattern of either end": {"type": "string", "pattern": "^a|b$"},
    "pattern of escaped characters": {"type": "string", "pattern": '^["\\\\a\\n]{1,4}$'},
    "pattern that nests": {"type": "string", "pattern": "^(a*b?)*c$"},
    **{
        name: {"type": "string", "format": name}
        for name in ("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid")
    },
}


def allowed_ids(matcher: Matcher) -> list[int]:
    bits = new_masks(1, VOCAB)
    matcher.fill(bits, 0)
    words = bits[0].tolist()
    return [token_id for token_id in range(VOCAB) if words[token_id // 32] >> token_id % 32 & 1]


def random_text(guided: GuidedParams, seed: int, most_tokens: int) -> bytes | None:
    """A text that the masks lead to; None when it does not end in time."""
    matcher = shared_compiler().compile(guided).matcher()
    choose = random.Random(seed)
    written = b""
    for place in range(most_tokens):
        allowed = allowed_ids(matcher)
        assert allowed
        token_id = choose.choice(allowed)
        if EOS in allowed and place > most_tokens // 3:
            token_id = EOS
        assert matcher.accept(token_id)
        if token_id == EOS:
            assert matcher.is_terminated
            return written
        written += VOCABULARY[token_id]
    return None


@pytest.mark.parametrize("name", SCHEMAS)
def test_texts_that_masks_lead_to_validate(name: str) -> None:
    schema = SCHEMAS[name]
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    draft: Any = jsonschema.Draft7Validator if name == "old tuple" else jsonschema.Draft202012Validator
    standard = {"type": ["integer", "null"]} if name == "nullable" else schema
    validator = draft(standard, format_checker=checker)
    texts = [random_text(GuidedParams(json_schema=schema), seed, 120) for seed in range(25)]
    ended = [text for text in texts if text is not None]
    assert ended, "no text came to an end"
    for text in ended:
        value = json.loads(text.decode())
        validator.validate(value)


@pytest.mark.parametrize("whitespace", ["compact", "any"])
def test_whitespace_is_as_asked(whitespace: Any) -> None:
    schema = closed(a=INTEGER, b={"type": "array", "items": {"type": "boolean"}, "maxItems": 2})
    guided = GuidedParams(json_schema=schema, whitespace=whitespace)
    texts = [random_text(guided, seed, 150) for seed in range(12)]
    ended = [text.decode() for text in texts if text is not None]
    rewritten = [json.dumps(json.loads(text)) for text in ended]
    assert (ended == rewritten) == (whitespace == "compact")


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"not": INTEGER}, "#/not"),
        (closed(a={"if": {}, "then": {}}), "#/properties/a/if"),
        ({"type": "array", "contains": INTEGER}, "#/contains"),
        ({"type": "array", "items": INTEGER, "uniqueItems": True}, "#/uniqueItems"),
        ({"type": "object", "patternProperties": {"a": {}}}, "#/patternProperties"),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, "#/dependentRequired"),
        ({"type": "object", "unevaluatedProperties": INTEGER}, "#/unevaluatedProperties"),
        ({"type": "object", "properties": {"a": INTEGER}, "propertyNames": {"pattern": "a"}}, "#/propertyNames"),
        ({"type": "object", "minProperties": 2}, "#/minProperties"),
        ({"type": "object", "required": ["a"], "additionalProperties": False}, "#/required"),
        ({"type": "object", "properties": {"a/b": False}}, "#/properties/a~1b"),
        ({"unknown": 1}, "#/unknown"),
        ({"type": "string", "format": "iri"}, "#/format"),
        ({"type": "string", "format": ["date"]}, "#/format"),
        ({"type": "string", "pattern": "a", "maxLength": 3}, "#/maxLength"),
        ({"type": "string", "pattern": "(?=a)"}, "the pattern at #"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "#/minLength"),
        ({"type": "string", "maxLength": -1}, "#/maxLength"),
        ({"type": "number", "multipleOf": 0.5}, "#/multipleOf"),
        ({"type": "integer", "minimum": 10**20}, "#/minimum"),
        ({"type": "integer", "minimum": True}, "#/minimum"),
        ({"type": "text"}, "#/type"),
        ({"type": []}, "#/type"),
        ({"enum": []}, "#/enum"),
        ({"enum": [1], "type": "string"}, "#/enum"),
        ({"enum": [1, 5], "minimum": 3}, "#/minimum"),
        ({"enum": [2**60 + 1]}, "#/enum"),
        ({"anyOf": []}, "#/anyOf"),
        ({"anyOf": [INTEGER], "minimum": 3}, "#/minimum"),
        ({"oneOf": [INTEGER, {"type": "number"}]}, "#/oneOf"),
        ({"oneOf": [closed(a=INTEGER), closed(a=INTEGER)]}, "#/oneOf"),
        ({"oneOf": [{"const": 1}, {"const": 1.0}]}, "#/oneOf"),
        ({"oneOf": [INTEGER, {"format": "date"}]}, "#/oneOf"),
        ({"oneOf": [{"const": 7}, {"maxLength": 3}]}, "#/oneOf"),
        ({"oneOf": [{"minItems": 1}, {"maxLength": 3}]}, "#/oneOf"),
        ({"oneOf": [INTEGER, {"$ref": "#/$defs/x"}], "$defs": {"x": {"pattern": "a"}}}, "#/oneOf"),
        ({"oneOf": [{"enum": [{"a": [1]}, 5]}, {"const": {"a": [1.0]}}]}, "#/oneOf"),
        ({"enum": [1, "1"], "const": True}, "#/enum"),
        ({"allOf": [{"const": 1}, {"const": True}]}, "#/allOf/1/const"),
        ({"allOf": [{"minimum": 1}, {"minimum": 2}]}, "#/allOf/1/minimum"),
        ({"properties": 1.5, "allOf": [{"properties": {}}]}, "#/allOf/0/properties"),
        ({"required": ["a"], "allOf": [{"required": None}]}, "#/allOf/0/required"),
        ({"allOf": [closed(a=INTEGER), closed(b=INTEGER)]}, "#/allOf"),
        ({"allOf": [{"type": "integer"}, {"not": {}}]}, "#/allOf"),
        ({"allOf": [{"allOf": [{"not": {}}]}]}, "#/allOf/0/allOf/0/not"),
        ({"allOf": [{"patterns": "a"}]}, "#/allOf/0/patterns"),
        ({"allOf": [{"required": ["a"]}, {"required": 5}]}, "#/allOf/1/required"),
        ({"allOf": [{"properties": {"a": {}}}, {"properties": [[]]}]}, "#/allOf/1/properties"),
        ({"allOf": [{"properties": {"a": {}}}], "additionalProperties": False}, "#/allOf"),
        ({"$ref": "#/x-a/²", "x-a": [{"type": "null"}]}, "#/$ref"),
        ({"type": "string", "format": ["date"]}, "#/format"),
        ({"$ref": "#/$defs/a"}, "#/$ref"),
        ({"$ref": "http://example.com/schema"}, "#/$ref"),
        ({"$defs": {"a": INTEGER}, "$ref": "#/$defs/a", "minimum": 3}, "#/minimum"),
        ({"$dynamicRef": "#a"}, "#/$dynamicRef"),
        ({"items": 3}, "#/items"),
        ({"properties": []}, "#/properties"),
        ({"properties": {f"k{n}": INTEGER for n in range(300)}}, "#/properties"),
        ({"prefixItems": [INTEGER] * 3000}, "#/prefixItems"),
        ({"type": "array", "items": INTEGER, "minItems": 10**6}, "#/minItems"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_its_path(schema: Any, place: str) -> None:
    with pytest.raises(InvalidParameterError) as refused:
        shared_compiler().compile(GuidedParams(json_schema=schema))
    assert f"{place}:" in str(refused.value) or f"{place} '" in str(refused.value) or f"{place}/" in str(refused.value)


def test_a_deep_schema_is_refused() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(200):
        schema = {"type": "array", "items": schema}
    with pytest.raises(InvalidParameterError, match="deeper"):
        shared_compiler().compile(GuidedParams(json_schema=schema))


def test_references_that_lead_in_a_circle_are_refused() -> None:
    with pytest.raises(InvalidParameterError, match="not understood"):
        shared_compiler().compile(
            GuidedParams(json_schema={"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"})
        )
