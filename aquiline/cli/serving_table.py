"""How the figures of a server under load are drawn: three tables that fit on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from aquiline.benchmark.serving.load import load_text

SHOWN_PHASES = ("draft", "verify", "sample")
LATENCIES = {"TTFT": "ttft_ms", "TPOT": "tpot_ms", "ITL": "itl_ms", "E2EL": "e2el_ms"}
COUNTED_BY = {
    "tokenizer": "the server told no usage: tokens are those of --tokenizer",
    "events": "the server told no usage: every event counts as one token; give --tokenizer to count better",
}


def drawing(result: Mapping[str, Any]) -> Group:
    """The result of `bench serving`: throughput, latencies, what a server of ours says about itself, and remarks."""
    rows: Sequence[Mapping[str, Any]] = result["rows"]
    parts: list[Table | Text] = [_throughput(result), _latencies(rows)]
    if any(row["server"] for row in rows):
        parts.append(_server(rows))
    return Group(*parts, *(Text(remark) for remark in remarks(rows)))


def remarks(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a reader has to know before believing the figures, and why requests failed."""
    found = []
    for row in rows:
        if not row["kept_schedule"]:
            found.append(
                f"{load_text(row)}: this client was too slow for its schedule, one request in a hundred left "
                f"{row['sent_late_ms']['p99']:.0f} ms late or more"
            )
        if row["failures"]:
            counts = ", ".join(f"{count} {outcome}" for outcome, count in row["failures"].items())
            found.append(f"{load_text(row)}: failed: {counts}. {'; '.join(row['failure_messages'])}")
    memory = [row["server_peak_memory_mb"] for row in rows if row.get("server_peak_memory_mb")]
    if memory:
        found.append(f"peak memory of the server: {max(memory):.0f} MB")
    sources = {row["tokens_counted_by"] for row in rows}
    return found + [text for source, text in COUNTED_BY.items() if source in sources]


def _throughput(result: Mapping[str, Any]) -> Table:
    title = f"{result['model']}: {result['label']}"
    if result["slo"] is not None:
        title += f"; goodput under {result['slo']}"
    table = Table(title=Text(title), title_justify="left")
    table.add_column("load", no_wrap=True)
    for name in ("answers", "failed", "requests/s", "goodput", "tokens/s", "ms/token"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in result["rows"]:
        table.add_row(
            load_text(row),
            str(row["num_complete"]),
            str(row["num_requests"] - row["num_complete"]),
            f"{row['request_throughput']:.2f}",
            _number(row["goodput"]),
            f"{row['output_throughput']:.1f}",
            _number(row["time_per_committed_token_ms"]),
        )
    return table


def _latencies(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title="milliseconds", title_justify="left")
    table.add_column("load", no_wrap=True)
    table.add_column("", no_wrap=True)
    for name in ("mean", "p50", "p90", "p99"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        for name, key in LATENCIES.items():
            figures = row[key] or {}
            table.add_row(load_text(row), name, *(_number(figures.get(part)) for part in ("mean", "p50", "p90", "p99")))
    return table


def _server(rows: Sequence[Mapping[str, Any]]) -> Table:
    told = {load_text(row): row["server"] for row in rows if row["server"]}
    table = Table(title="the server's own steps, milliseconds per committed token", title_justify="left")
    table.add_column("load", no_wrap=True)
    for name in ("acceptance length", *SHOWN_PHASES, "others", "all"):
        table.add_column(name, justify="right", no_wrap=True)
    for load, server in told.items():
        spent = [server["phases_ms"].get(phase, 0.0) for phase in SHOWN_PHASES]
        whole = server["time_per_committed_token_ms"]
        figures = [server["acceptance_length"], *spent, whole - sum(spent), whole]
        table.add_row(load, *map(_number, figures))
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
