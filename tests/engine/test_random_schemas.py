"""Random schemas are honoured, or refused with a place; none says one thing and lets through another."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from aquiline.engine.grammar_text import grammar_text
from aquiline.errors import InvalidParameterError
from aquiline.guided import GuidedParams
from tests.engine.test_json_schemas import random_text

Schema = dict[str, Any] | bool
NAMES = st.sampled_from(["a", "b", 'q"', "é"])
NUMBERS = st.one_of(st.integers(-12, 12), st.sampled_from([0.5, -2.25, 1e-3, -0.0, 3.0]))
COUNTS = st.integers(0, 3)
VALUES = st.sampled_from([None, True, 0, 1.0, -0.0, "a", "é", [], [1], {}, {"a": 1}, 1e-7, 2**53])
OF_NO_TYPE: dict[str, st.SearchStrategy[Any]] = {
    "enum": st.lists(VALUES, min_size=1, max_size=4),
    "const": VALUES,
    "title": st.just("t"),
    "minLength": COUNTS,
    "maxLength": COUNTS,
    "pattern": st.sampled_from(["^a+$", "b", "^(a|é)?$", r'^["\\]$', "a$"]),
    "format": st.sampled_from(["date", "ipv4"]),
    "minimum": NUMBERS,
    "maximum": NUMBERS,
    "exclusiveMinimum": NUMBERS,
    "exclusiveMaximum": NUMBERS,
    "multipleOf": st.integers(1, 5),
    "minItems": COUNTS,
    "maxItems": COUNTS,
    "minProperties": COUNTS,
    "maxProperties": COUNTS,
    "required": st.lists(NAMES, max_size=2),
    "unevaluatedProperties": st.just(False),
    "$ref": st.sampled_from(["#/$defs/x", "#/$defs/y"]),
}
NUMERIC = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]


def of_schemas(inner: st.SearchStrategy[Schema]) -> dict[str, st.SearchStrategy[Any]]:
    some = st.lists(inner, min_size=1, max_size=3)
    return {
        "properties": st.dictionaries(NAMES, inner, max_size=3),
        "additionalProperties": inner,
        "propertyNames": st.sampled_from([{"pattern": "^[ab]$"}, {"type": "string"}, {"type": "integer"}]),
        "items": inner,
        "prefixItems": some,
        "anyOf": some,
        "oneOf": some,
        "allOf": some,
    }


def nested(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    """A type with what belongs to it, several keywords of any kind, or schemas in each other."""
    all_of_them = OF_NO_TYPE | of_schemas(inner)

    def some(kinds: list[str], names: list[str]) -> st.SearchStrategy[Schema]:
        optional = {name: all_of_them[name] for name in names}
        return st.fixed_dictionaries({"type": st.sampled_from(kinds)}, optional=optional)

    def few(most: int) -> st.SearchStrategy[Schema]:
        names = st.lists(st.sampled_from(sorted(all_of_them)), min_size=1, max_size=most, unique=True)
        return names.flatmap(lambda chosen: st.fixed_dictionaries({name: all_of_them[name] for name in chosen}))

    objects = ["properties", "required", "additionalProperties", "minProperties", "maxProperties"]
    return st.one_of(
        some(["object"], [*objects, "unevaluatedProperties", "allOf"]),
        some(["array"], ["items", "prefixItems", "minItems", "maxItems", "allOf"]),
        some(["integer", "number"], NUMERIC),
        some(["string"], ["minLength", "maxLength"]),
        few(3),
    )


LEAVES: st.SearchStrategy[Schema] = st.one_of(
    st.booleans(), st.sampled_from(["integer", "null", "boolean"]).map(lambda name: {"type": name})
)
SCHEMAS = st.recursive(LEAVES, nested, max_leaves=8)
DEFINITIONS: Schema = {"x": {"type": "integer", "minimum": 7}, "y": {"properties": {"a": {"$ref": "#/$defs/x"}}}}


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(SCHEMAS, st.integers(0, 1000))
@example({"allOf": [{"prefixItems": [{"type": "null"}]}, {"items": {"type": "integer"}}], "minItems": 1}, 0)
@example({"oneOf": [{"type": "integer"}, {"format": "date"}]}, 0)
def test_a_random_schema_is_honoured_or_refused(schema: Schema, seed: int) -> None:
    whole = schema if isinstance(schema, bool) else schema | {"$defs": DEFINITIONS}
    try:
        guided = GuidedParams(json_schema=whole)
        grammar_text(guided)
    except InvalidParameterError as error:
        assert "#" in str(error) or "is false" in str(error) or "no text that ends" in str(error), error
        return
    validator = jsonschema.Draft202012Validator(whole, format_checker=jsonschema.FormatChecker())
    for text in [random_text(guided, seed + index, 60) for index in range(4)]:
        if text is not None:
            validator.validate(json.loads(text.decode()))
