"""Whether at most one of several schemas can fit a value, as far as that shows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from typing import Any

from aquiline.engine.schema_values import fits_type, json_key

Schema = Mapping[str, Any]


def are_exclusive(
    schemas: Sequence[Schema], definitions: Mapping[str, Schema], untyped: Collection[int] = frozenset()
) -> bool:
    """Whether no value fits two of the schemas: by type, by value, or by a property that both require.

    Args:
        untyped: ids of schemas whose type only follows from their keywords. By the rules of JSON Schema every value of
            another type fits them, although none is written: `{"format": "date"}` fits 5.
    """
    resolved = [_resolved(schema, definitions) for schema in schemas]
    for one, other in combinations(resolved, 2):
        if (id(one) in untyped or id(other) in untyped) and one.get("type") != other.get("type"):
            return False
        if not _exclude_each_other(one, other, definitions):
            return False
    return True


def _resolved(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    seen = 0
    while "$ref" in schema and seen <= len(definitions):
        schema = definitions[schema["$ref"].removeprefix("#/$defs/")]
        seen += 1
    return schema


def _exclude_each_other(one: Schema, other: Schema, definitions: Mapping[str, Schema]) -> bool:
    if "enum" in one and "enum" in other:
        return _share_no_value(one["enum"], other["enum"])
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
    return "enum" in one and "enum" in other and _share_no_value(one["enum"], other["enum"])


def _share_no_value(some: Sequence[object], others: Sequence[object]) -> bool:
    return set(map(json_key, some)).isdisjoint(map(json_key, others))
