"""Keywords of JSON schemas: those that are known, those that are refused, and several schemas that hold at once."""

from __future__ import annotations

from collections.abc import Mapping

from aquiline.engine.schema_limits import Schema, escaped, refuse
from aquiline.engine.schema_values import are_equal

ANNOTATIONS = {
    *("title", "description", "default", "example", "examples", "deprecated", "readOnly", "writeOnly", "discriminator"),
    *("$comment", "$schema", "$id", "$anchor", "$defs", "definitions"),
    *("contentEncoding", "contentMediaType", "contentSchema"),
}
KEYWORDS = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "array": ("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "unevaluatedItems"),
    "object": (
        *("properties", "required", "additionalProperties", "minProperties", "maxProperties"),
        *("unevaluatedProperties", "propertyNames"),
    ),
    "boolean": (),
    "null": (),
}
TYPES = {**{name: name for name in KEYWORDS}, "integer": "number"}
KNOWN = {"type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "nullable"}.union(*KEYWORDS.values())
REFUSED = {
    **dict.fromkeys(("not", "if", "then", "else"), "a grammar cannot follow what must not be"),
    **dict.fromkeys(("contains", "minContains", "maxContains"), "give items or prefixItems instead"),
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "dependencies"), "use anyOf of closed objects instead"),
    "patternProperties": "name the properties, or give additionalProperties",
    "$dynamicRef": "use $ref",
    "$recursiveRef": "use $ref",
}
# Keywords that judge what the others of their own schema leave over, and those others.
LEFT_OVER = {
    "additionalProperties": ("properties",),
    "unevaluatedProperties": ("properties", "additionalProperties"),
    "items": ("prefixItems",),
    "additionalItems": ("items",),
}


def check_keyword(keyword: str, path: str) -> None:
    """Refuse a keyword that cannot be honoured, or that nobody knows.

    Raises:
        InvalidParameterError: it is one.
    """
    if keyword in REFUSED:
        refuse(f"{path}/{keyword}", REFUSED[keyword])
    if keyword not in KNOWN and not _says_nothing(keyword):
        refuse(f"{path}/{escaped(keyword)}", "the keyword is not known")


def merged(node: Schema, path: str) -> Schema:
    """A schema with its `allOf` written into it, where no keyword says two things.

    Raises:
        InvalidParameterError: one does, or it cannot be honoured.
    """
    parts = node["allOf"]
    if not isinstance(parts, list) or not parts:
        refuse(f"{path}/allOf", "it must be a list of at least one schema")
    whole = {keyword: value for keyword, value in node.items() if keyword in KNOWN and keyword != "allOf"}
    # What stands beside allOf sees into it where nothing is evaluated, and is judged with all the rest.
    holders = [{keyword: value for keyword, value in whole.items() if not keyword.startswith("unevaluated")}]
    for index, part in enumerate(parts):
        place = f"{path}/allOf/{index}"
        if not isinstance(part, Mapping):
            refuse(place, "it must be an object")
        for keyword in part:
            check_keyword(keyword, place)
        if moves_references(part):
            refuse(f"{place}/$id", "references are looked up in the whole schema; leave it out")
        holders.append(merged(dict(part), place) if "allOf" in part else {**part})
        for keyword, value in holders[-1].items():
            if keyword in KNOWN:
                whole[keyword] = _both(whole.get(keyword, value), value, keyword, place)
    for holder in holders:
        _check_left_over(holder, whole, f"{path}/allOf")
    return whole


def _check_left_over(holder: Schema, whole: Schema, path: str) -> None:
    for keyword, others in LEFT_OVER.items():
        if holder.get(keyword, True) is True:
            continue
        if any(not are_equal(holder.get(other), whole.get(other)) for other in others):
            refuse(path, f"{keyword} would count each part's own {' and '.join(others)} alone")


def moves_references(node: Mapping[str, object]) -> bool:
    """Whether references below a schema begin at it rather than at the whole; `$id` may also be a name for itself."""
    return "$id" in node and not str(node["$id"]).startswith("#")


def _both(one: object, other: object, keyword: str, place: str) -> object:
    """What a keyword says that says one thing here and another there."""
    if are_equal(one, other):
        return one
    if keyword == "required" and isinstance(one, list) and isinstance(other, list):
        return [*one, *other]
    if (
        keyword == "properties"
        and isinstance(one, Mapping)
        and isinstance(other, Mapping)
        and not set(one) & set(other)
    ):
        return {**one, **other}
    refuse(f"{place}/{escaped(keyword)}", "it says more about the same elsewhere")


def _says_nothing(keyword: str) -> bool:
    """Whether a keyword describes values and leaves them all."""
    return keyword in ANNOTATIONS or keyword.startswith("x-")
