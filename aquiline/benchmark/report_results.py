"""Results of measurements, read back from what `--json` printed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from aquiline.errors import InvalidParameterError

Kind = Literal["offline", "latency"]
PROVENANCE = ("commit", "date", "arguments", "machine", "versions", "backend")


@dataclass(frozen=True)
class Result:
    """One measurement.

    Attributes:
        name: of its file.
        rows: as the measurement printed them.
        provenance: who measured what, where and with which versions, as far as the file tells.
    """

    name: str
    kind: Kind
    rows: Sequence[dict[str, Any]]
    provenance: dict[str, Any]


def read_result(path: Path) -> Result:
    """Read one file.

    Raises:
        InvalidParameterError: it cannot be read, or is not a result that a report knows.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidParameterError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise InvalidParameterError(f"{path} is not JSON; give what a measurement printed with --json") from None
    rows = content.get("rows") if isinstance(content, dict) else None
    kind = _kind_of(rows)
    if kind is None:
        raise InvalidParameterError(f"{path} is no result of bench offline or bench latency; give one of these")
    assert isinstance(rows, list)
    return Result(path.name, kind, rows, {name: content[name] for name in PROVENANCE if name in content})


def _kind_of(rows: object) -> Kind | None:
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        return None
    if all({"batch_size", "speculate", "tokens_per_second", "phases_ms"} <= set(row) for row in rows):
        return "offline"
    if all({"workload", "speculate", "lookup", "tpot_ms", "phases_ms"} <= set(row) for row in rows):
        return "latency"
    return None


def variant_of(row: Mapping[str, Any]) -> str:
    """How a row decoded, in words for a legend."""
    if row["speculate"] == "off":
        return "plain"
    lookup = row.get("lookup")
    return str(row["speculate"]) if lookup is None else f"{row['speculate']}, lookup {lookup}"


def speedups(rows: Sequence[dict[str, Any]], group: str, figure: str) -> dict[str, dict[Any, float]]:
    """By variant and value of `group`: how much better `figure` is than that of plain decoding.

    `figure` is a time, so plain divided by the variant's. Rows without it, and groups without plain, are left out.

    Worked example, plain 10 ms and auto 4 ms at batch size 1: {"auto": {1: 2.5}}.
    """
    plain = {row[group]: row[figure] for row in rows if row["speculate"] == "off" and row[figure]}
    found: dict[str, dict[Any, float]] = {}
    for row in rows:
        if row["speculate"] != "off" and row[figure] and row[group] in plain:
            found.setdefault(variant_of(row), {})[row[group]] = plain[row[group]] / row[figure]
    return found
