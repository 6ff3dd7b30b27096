"""Counts and limits in JSON schemas, and how places in a schema are refused."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, NoReturn

from aquiline.errors import InvalidParameterError

Schema = dict[str, Any]
LARGEST_INTEGER = 2**53
LARGEST_DIVISOR = 1024
# The grammar of a range counts in decimals of this size, of which a float of that size still has some left.
DECIMAL = Decimal("1e-6")
LARGEST_FRACTION = 10**9


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
        for keyword, value in node.items():
            if abs(value) > LARGEST_FRACTION and not float(value).is_integer():
                refuse(f"{path}/{keyword}", f"{value} lies beyond {LARGEST_FRACTION} and is no integer; round it")
        _check_room({keyword: Decimal(str(value)) / DECIMAL for keyword, value in node.items()}, path)
        return node
    found = {}
    for keyword, value in node.items():
        # 2.5 and more is 3 and more; less than 2.5 is less than 3; more than 2.5 is more than 2.
        goes_up = not float(value).is_integer() and keyword in ("minimum", "exclusiveMaximum")
        found[keyword] = int(value // 1) + goes_up
    _check_room(found, path)
    return found


def _check_room(node: Mapping[str, int | Decimal], path: str) -> None:
    """Refuse limits that no integer lies between.

    Worked example: more than 2 and less than 3.5 is 3 and more, and 3 and less; less than 3 is 2 and less.
    """
    lows = [math.ceil(node["minimum"])] if "minimum" in node else []
    lows += [math.floor(node["exclusiveMinimum"]) + 1] if "exclusiveMinimum" in node else []
    highs = [math.floor(node["maximum"])] if "maximum" in node else []
    highs += [math.ceil(node["exclusiveMaximum"]) - 1] if "exclusiveMaximum" in node else []
    if lows and highs and max(lows) > min(highs):
        refuse(f"{path}/{next(iter(node))}", "no number lies between its limits, with at most six decimals")
