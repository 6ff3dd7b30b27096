"""Values of JSON: which are of a type, and which are one value."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping


def fits_type(value: object, name: str) -> bool:
    """Whether a value of JSON is of a type."""
    if name == "integer":
        return not isinstance(value, bool) and (
            isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        )
    kinds = {"string": str, "number": (int, float), "boolean": bool, "array": list, "object": dict}
    if name == "null":
        return value is None
    is_flag = isinstance(value, bool)
    return isinstance(value, kinds[name]) and (name == "boolean" or not is_flag)  # type: ignore[arg-type]


def numbers_in(value: object) -> Iterator[int | float]:
    """All numbers of a value, however deep they lie."""
    if isinstance(value, Mapping):
        value = [*value.values()]
    if isinstance(value, list):
        for part in value:
            yield from numbers_in(part)
    elif isinstance(value, int | float):
        yield value


def json_key(value: object) -> Hashable:
    """Equal for values that JSON schemas count as one: 1 and 1.0 are, 1 and true are not, though Python says so."""
    if isinstance(value, Mapping):
        return "object", frozenset((name, json_key(part)) for name, part in value.items())
    if isinstance(value, list | tuple):
        return "array", tuple(map(json_key, value))
    if isinstance(value, bool):
        return "boolean", value
    return value


def are_equal(one: object, other: object) -> bool:
    """Whether JSON schemas count two values as one."""
    return json_key(one) == json_key(other)
