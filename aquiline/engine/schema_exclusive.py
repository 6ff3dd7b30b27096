"""Whether at most one of several schemas can fit a value, as far as that shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

Schema = Mapping[str, Any]


def fits_type(value: object, name: str) -> bool:
    """Whether a value of JSON is of a type."""
    if name == "integer":
        return isinstance(value, int | float) and not isinstance(value, bool) and float(value).is_integer()
    kinds = {"string": str, "number": (int, float), "boolean": bool, "array": list, "object": dict}
    if name == "null":
        return value is None
    is_flag = isinstance(value, bool)
    return isinstance(value, kinds[name]) and (name == "boolean" or not is_flag)  # type: ignore[arg-type]


def are_exclusive(schemas: Sequence[Schema], definitions: Mapping[str, Schema]) -> bool:
    """Whether no value fits two of the schemas: by type, by value, or by a property that both require."""
    resolved = [_resolved(schema, definitions) for schema in schemas]
    return all(_exclude_each_other(one, other, definitions) for one, other in combinations(resolved, 2))


def _resolved(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    seen = 0
    while "$ref" in schema and seen <= len(definitions):
        schema = definitions[schema["$ref"].removeprefix("#/$defs/")]
        seen += 1
    return schema


def _exclude_each_other(one: Schema, other: Schema, definitions: Mapping[str, Schema]) -> bool:
    if "enum" in one and "enum" in other:
        return not any(value in other["enum"] for value in one["enum"])
    if "enum" in other:
        one, other = other, one
    if "type" not in other:
        return False
    if "enum" in one:
        return not any(fits_type(value, other["type"]) for value in one["enum"])
    if "type" not in one:
        return False
    kinds = {one["type"], other["type"]}
    if len(kinds) == 2:
        return kinds != {"integer", "number"}
    if kinds != {"object"}:
        return False
    return any(
        _exclude_values(one["properties"][name], other["properties"][name], definitions)
        for name in set(one["required"]) & set(other["required"])
    )


def _exclude_values(one: Schema, other: Schema, definitions: Mapping[str, Schema]) -> bool:
    one, other = _resolved(one, definitions), _resolved(other, definitions)
    return "enum" in one and "enum" in other and not any(value in other["enum"] for value in one["enum"])
