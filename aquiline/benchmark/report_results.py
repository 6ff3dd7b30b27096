"""Results of measurements, read back from what `--json` printed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from aquiline.benchmark.serving.load import load_text
from aquiline.errors import InvalidParameterError

Kind = Literal["offline", "latency", "serving", "tune"]
PROVENANCE = ("commit", "date", "arguments", "machine", "versions", "backend", "key", "url", "model", "slo")
# What the rows of each kind have at least.
FIELDS: Mapping[Kind, set[str]] = {
    "offline": {"batch_size", "speculate", "tokens_per_second", "phases_ms"},
    "latency": {"workload", "speculate", "lookup", "tpot_ms", "phases_ms"},
    "serving": {"load", "request_rate", "concurrency", "request_throughput", "output_throughput", "server"}
    | {"ttft_ms", "tpot_ms", "itl_ms"},
    "tune": {"objective", "num_requests", "text", "expected", "step_ms", "plain_tokens_per_second"},
}


@dataclass(frozen=True)
class Result:
    """One measurement.

    Attributes:
        name: of its file.
        rows: as the measurement printed them.
        provenance: who measured what, where and with which versions, as far as the file tells.
        label: of a measured server.
    """

    name: str
    kind: Kind
    rows: Sequence[dict[str, Any]]
    provenance: dict[str, Any]
    label: str = ""

    def heading(self, row: Mapping[str, Any]) -> str:
        """What a row is about, in words for the first column of a table."""
        if self.kind == "serving":
            return load_text(row)
        return str(row["objective"]) if self.kind == "tune" else variant_of(row)


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
    rows = _rows_of(content) if isinstance(content, dict) else None
    kind = _kind_of(rows)
    if kind is None:
        raise InvalidParameterError(
            f"{path} is no result of bench offline, latency or serving, nor of tune; give one of these"
        )
    assert rows is not None
    provenance = {name: content[name] for name in PROVENANCE if content.get(name) is not None}
    return Result(path.name, kind, rows, provenance, str(content.get("label") or path.stem))


def _rows_of(content: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The rows of a result; what `tune` chooses becomes a row for each objective and load."""
    objectives = content.get("objectives")
    rows = content.get("rows")
    if isinstance(objectives, dict) and all(isinstance(chosen, list) for chosen in objectives.values()):
        pairs = [(text, shape) for text, chosen in objectives.items() for shape in chosen]
        rows = [{"objective": text, **shape} if isinstance(shape, dict) else shape for text, shape in pairs]
    return rows if isinstance(rows, list) else None


def _kind_of(rows: list[dict[str, Any]] | None) -> Kind | None:
    if not rows or not all(isinstance(row, dict) for row in rows):
        return None
    return next((kind for kind, fields in FIELDS.items() if all(fields <= set(row) for row in rows)), None)


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
