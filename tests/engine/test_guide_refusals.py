"""Every reason to refuse a guide, each by a guide that meets it, with the place and the words that it is told in."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from aquiline.engine import grammar_text as grammar_text_module
from aquiline.engine.grammar_text import grammar_text
from aquiline.engine.schema_keywords import REFUSED
from aquiline.engine.schema_reader import MAX_OPTIONAL, MAX_SCHEMAS
from aquiline.errors import InvalidParameterError
from aquiline.guided import GuidedParams

INTEGER = {"type": "integer"}
STRING = {"type": "string"}
SCHEMAS: list[tuple[Any, str, str]] = [
    ({"type": "integer", "multipleOf": 1025}, "#/multipleOf", "must be an integer from 1 to 1024"),
    ({"type": "integer", "multipleOf": 0}, "#/multipleOf", "must be an integer from 1 to 1024"),
    ({"type": "integer", "multipleOf": -3}, "#/multipleOf", "must be an integer from 1 to 1024"),
    ({"type": "integer", "multipleOf": 3, "minimum": 1}, "#/multipleOf", "it stands beside limits"),
    ({"type": "number", "multipleOf": 3}, "#/multipleOf", "it is understood for integers"),
    ({"type": "integer", "multipleOf": 1.5}, "#/multipleOf", "it is understood for integers"),
    ({"type": "integer", "maximum": "9"}, "#/maximum", "must be a number"),
    ({"type": "integer", "maximum": -(2**54)}, "#/maximum", "lies beyond"),
    ({"type": "array", "maxItems": 2.5}, "#/maxItems", "must be an integer from 0 to 1000"),
    ({"type": "array", "minItems": 3, "maxItems": 2}, "#/minItems", "3 is more than maxItems, 2"),
    ({"type": "array", "unevaluatedItems": False}, "#/unevaluatedItems", "give items: false"),
    ({"type": "array", "uniqueItems": 1}, "#/uniqueItems", "cannot compare items"),
    ({"prefixItems": []}, "#/prefixItems", "a list of at least one schema"),
    ({"items": {"anyOf": [INTEGER] * MAX_SCHEMAS}}, "#/items/anyOf", f"more than {MAX_SCHEMAS} schemas"),
    ({"properties": {"a": False}}, "#/properties/a", "no value fits it"),
    ({"items": None}, "#/items", "a schema is an object, true or false, not null"),
    ({"$ref": "#/$defs/a", "type": "null", "$defs": {"a": {}}}, "#/type", "it stands beside $ref"),
    ({"$ref": "a.json"}, "#/$ref", "does not point into this schema"),
    ({"$ref": "#/a"}, "#/$ref", "there is nothing at #/a"),
    ({"enum": "a"}, "#/enum", "a list of at least one value"),
    ({"const": 1, "type": "string"}, "#/const", "none of its values fits"),
    ({"const": 2.0**60}, "#/const", "so it may be rounded"),
    ({"oneOf": {}}, "#/oneOf", "a list of at least one schema"),
    ({"anyOf": [{"type": "null"}], "type": "string"}, "#/type", "it stands beside anyOf"),
    ({"anyOf": [True], "type": "string"}, "#/type", "it stands beside anyOf"),
    ({"oneOf": [{}, INTEGER]}, "#/oneOf", "several of its schemas may fit one value"),
    ({"type": ["null", 1]}, "#/type", "is no type"),
    ({"pattern": "a", "format": "date"}, "#/format", "it stands beside pattern"),
    ({"format": "regex"}, "#/format", "is not among date"),
    ({"type": "string", "pattern": 5}, "#/pattern", "must be a text"),
    ({"properties": {"a": {"pattern": "("}}}, "#/properties/a", "a parenthesis is not closed"),
    ({"type": "object", "properties": [1]}, "#/properties", "it must be an object"),
    ({"required": "a"}, "#/required", "a list of names"),
    ({"required": [1]}, "#/required", "a list of names"),
    ({"unevaluatedProperties": {}}, "#/unevaluatedProperties", "give additionalProperties instead"),
    ({"properties": {}, "required": ["a"], "additionalProperties": False}, "#/required", "no property of that name"),
    ({"properties": {str(n): {} for n in range(MAX_OPTIONAL + 1)}}, "#/properties", f"more than {MAX_OPTIONAL}"),
    ({"properties": {"a": {}}, "propertyNames": {}}, "#/propertyNames", "the properties are named already"),
    ({"type": "object", "minProperties": 1}, "#/minProperties", "may be named twice"),
    ({"type": "object", "propertyNames": {"maxLength": 3}}, "#/propertyNames", "only a pattern is understood"),
    ({"type": "object", "propertyNames": {"enum": ["a"]}}, "#/propertyNames", "only a pattern is understood"),
    ({"allOf": {}}, "#/allOf", "a list of at least one schema"),
    ({"allOf": [True]}, "#/allOf/0", "it must be an object"),
    ({"allOf": [{"minimum": 1}], "minimum": 2}, "#/allOf/0/minimum", "it says more about the same"),
    (
        {"allOf": [{"properties": {"a": {}}, "additionalProperties": False}, {"properties": {"b": {}}}]},
        "#/allOf",
        "each part's own properties",
    ),
    (
        {"allOf": [{"properties": {"a": {}}, "unevaluatedProperties": False}, {"properties": {"b": {}}}]},
        "#/allOf",
        "unevaluatedProperties would count each part's own",
    ),
    ({"allOf": [{"unevaluatedProperties": False}, {"additionalProperties": INTEGER}]}, "#/allOf", "each part's own"),
    ({"allOf": [{"prefixItems": [INTEGER]}, {"items": False}]}, "#/allOf", "each part's own prefixItems"),
    ({"prefixItems": [INTEGER], "allOf": [{"items": STRING}]}, "#/allOf", "each part's own prefixItems"),
    ({"allOf": [{"items": [INTEGER]}, {"additionalItems": False}]}, "#/allOf", "each part's own items"),
    ({"allOf": [{"$id": "a", "$ref": "#/$defs/b"}], "$defs": {"b": {}}}, "#/allOf/0/$id", "in the whole schema"),
    ({"items": {"$id": "a", "items": {"$ref": "#/$defs/b"}}}, "#/items/items/$ref", "has an $id of its own"),
    ({"type": "object", "propertyNames": {"type": ["null"]}}, "#/propertyNames/type", "names are strings"),
    ({"prefixItems": [INTEGER], "items": [{}]}, "#/items", "a list stands beside prefixItems"),
    ({"prefixItems": [INTEGER], "items": False, "minItems": 2}, "#/minItems", "so many items are not allowed"),
    ({"properties": {"a": {}}, "minProperties": 2}, "#/minProperties", "so many properties are not allowed"),
    ({"required": ["a", "b", "b"], "maxProperties": 1}, "#/maxProperties", "more are required"),
    ({"type": "integer", "exclusiveMinimum": 2.5, "exclusiveMaximum": 3}, "#/exclusiveMinimum", "no number lies"),
    ({"type": "number", "maximum": 3, "exclusiveMinimum": 3}, "#/maximum", "no number lies between its limits"),
    ({"type": "number", "minimum": 1e-10, "maximum": 1e-9}, "#/minimum", "with at most six decimals"),
    ({"type": "number", "exclusiveMinimum": 0.1, "maximum": 0.1000005}, "#/maximum", "no number lies"),
    ({"type": "number", "minimum": 5195934097091.159}, "#/minimum", "and is no integer; round it"),
    ({"enum": [{"a": [10**30]}]}, "#/enum", "so it may be rounded"),
    ({"type": "null", "nullable": 1}, "#/nullable", "must be true or false"),
    ({"type": "array", "minItems": None}, "#/minItems", "must be an integer from 0"),
    ({"type": "integer", "enum": [10**400, 1]}, "#/enum", "so it may be rounded"),
    ({"propertie": {}}, "#/propertie", "the keyword is not known"),
    *(({keyword: 1}, f"#/{keyword}", reason) for keyword, reason in REFUSED.items()),
]
DEEP: dict[str, Any] = {}
for _ in range(70):
    DEEP = {"items": DEEP}
SCHEMAS.append((DEEP, "#" + "/items" * 65, "schemas lie deeper than 64"))
OTHERS = [
    (GuidedParams(grammar='root ::= "a" (= "b")'), "which GBNF does not have"),
    (GuidedParams(grammar='root ::= "a" root'), "fits no text that ends"),
    (GuidedParams(json_schema={"type": "array", "minItems": 1, "items": {"$ref": "#"}}), "fits no text that ends"),
    (GuidedParams(grammar='rot ::= "a"'), "is not understood: .*root"),
    (GuidedParams(regex="(a{1,999}){1,999}"), "it has more than 50000 parts"),
    (GuidedParams(regex="(a|b)*a(a|b){30}"), "it can stand in too many places at once"),
    (GuidedParams(json_schema={"pattern": "^\x01$"}), "asks for characters that cannot be written"),
    (GuidedParams(json_schema={"properties": {"a" * 5000: {}}, "additionalProperties": True}), "too deep in itself"),
]


def id_of(value: object) -> str | None:
    return json.dumps(value)[:40] if isinstance(value, dict) else ""


@pytest.mark.parametrize(("schema", "place", "reason"), SCHEMAS, ids=id_of)
def test_a_schema_that_cannot_be_honoured_is_refused(schema: Any, place: str, reason: str) -> None:
    with pytest.raises(InvalidParameterError) as refused:
        grammar_text(GuidedParams(json_schema=schema))
    assert place in str(refused.value) and reason in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("guided", "reason"), OTHERS, ids=range(len(OTHERS)))
def test_a_guide_without_a_grammar_is_refused(guided: GuidedParams, reason: str) -> None:
    with pytest.raises(InvalidParameterError, match=reason) as refused:
        grammar_text(guided)
    assert "\n" not in str(refused.value)


def test_no_reason_of_the_schema_reader_is_left_out() -> None:
    """The words between the braces of each reason in the source are among those that are tried above."""
    tried = " ".join(refusal(schema) for schema, _, _ in SCHEMAS)
    folder = Path(grammar_text_module.__file__).parent
    found = 0
    for file in sorted(folder.glob("schema_*.py")):
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(call, ast.Call) or ast.unparse(call.func) != "refuse":
                continue
            words = [part.value for part in ast.walk(call.args[1]) if isinstance(part, ast.Constant)]
            longest = max((word for word in words if isinstance(word, str)), key=len, default="")
            found += bool(longest)
            assert longest in tried, f"{file.name}:{call.lineno} {longest}"
    assert found > 30


def refusal(schema: object) -> str:
    try:
        grammar_text(GuidedParams(json_schema=schema))  # type: ignore[arg-type]
    except InvalidParameterError as error:
        return str(error)
    return ""
