"""Counts and limits in JSON schemas, and how places in a schema are refused."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from aquiline.errors import InvalidParameterError

Schema = dict[str, Any]
LARGEST_INTEGER = 2**53
LARGEST_DIVISOR = 1024


def refuse(path: str, reason: str) -> NoReturn:
    """Say that a schema cannot be honoured, and where."""
    raise InvalidParameterError(f"the JSON schema cannot be honoured at {path}: {reason}")


def escaped(name: str) -> str:
    """A name as a JSON pointer writes it."""
    return name.replace("~", "~0").replace("/", "~1")


def shown(value: object) -> str:
    """A value, shortened."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _count(node: Schema, keyword: str, path: str, most: int) -> int | None:
    if keyword not in node:
        return None
    value = node[keyword]
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        refuse(f"{path}/{keyword}", f"{shown(value)} must be an integer from 0 to {most}")
    return value


def limits(node: Schema, keywords: tuple[str, str], path: str, most: int) -> Schema:
    """The least and the most of something, as far as they are given."""
    least, largest = (_count(node, keyword, path, most) for keyword in keywords)
    if least is not None and largest is not None and least > largest:
        refuse(f"{path}/{keywords[0]}", f"{least} is more than {keywords[1]}, {largest}")
    found = zip(keywords, (least, largest), strict=True)
    return {keyword: value for keyword, value in found if value is not None}


def number_limits(name: str, node: Schema, path: str) -> Schema:
    """The limits of numbers or integers; those of integers are rounded to integers."""
    for keyword, value in node.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            refuse(f"{path}/{keyword}", f"{shown(value)} must be a number")
        if abs(value) > LARGEST_INTEGER:
            refuse(f"{path}/{keyword}", f"{value} lies beyond {LARGEST_INTEGER}")
    if "multipleOf" in node and (name != "integer" or not float(node["multipleOf"]).is_integer()):
        refuse(f"{path}/multipleOf", "it is understood for integers, as an integer; give an enum or a pattern")
    if "multipleOf" in node and not 1 <= node["multipleOf"] <= LARGEST_DIVISOR:
        refuse(f"{path}/multipleOf", f"{node['multipleOf']} must be an integer from 1 to {LARGEST_DIVISOR}")
    if "multipleOf" in node and len(node) > 1:
        refuse(f"{path}/multipleOf", "it stands beside limits; give an enum")
    if name == "number":
        _check_room(node, path, 0)
        return node
    found = {}
    for keyword, value in node.items():
        # 2.5 and more is 3 and more; less than 2.5 is less than 3; more than 2.5 is more than 2.
        goes_up = not float(value).is_integer() and keyword in ("minimum", "exclusiveMaximum")
        found[keyword] = int(value // 1) + goes_up
    _check_room(found, path, 1)
    return found


def _check_room(node: Schema, path: str, step: int) -> None:
    """Refuse limits that no number lies between.

    Args:
        step: from one number to the next; 0 where there is always one between two.
    """
    is_strict = {"minimum": False, "maximum": False, "exclusiveMinimum": True, "exclusiveMaximum": True}
    lows = [
        (node[keyword] + step * is_strict[keyword], is_strict[keyword])
        for keyword in ("minimum", "exclusiveMinimum")
        if keyword in node
    ]
    highs = [
        (node[keyword] - step * is_strict[keyword], not is_strict[keyword])
        for keyword in ("maximum", "exclusiveMaximum")
        if keyword in node
    ]
    if not lows or not highs:
        return
    (low, is_above), (high, is_reached) = max(lows), min(highs)
    if low > high or (not step and low == high and (is_above or not is_reached)):
        refuse(
            f"{path}/{next(keyword for keyword in node if keyword in is_strict)}", "no number lies between its limits"
        )
