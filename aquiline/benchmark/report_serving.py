"""Pictures of servers under load."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from aquiline.benchmark.report_drawing import begin_at_zero, new_axes, show_legend, stacked_bars
from aquiline.benchmark.report_results import Result
from aquiline.benchmark.serving.load import load_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LATENCIES = {"TTFT": "ttft_ms", "TPOT": "tpot_ms", "ITL": "itl_ms"}


def serving_figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    """Pictures of one server by title."""
    drawn = {"Latency by load": _latencies(rows)}
    if any(row.get("goodput") is not None for row in rows):
        drawn["Goodput by load"] = _goodput(rows)
    told = [row for row in rows if row["server"]]
    if told:
        phases = list(dict.fromkeys(phase for row in told for phase in row["server"]["phases_ms"]))
        parts = {phase: [row["server"]["phases_ms"].get(phase, 0.0) for row in told] for phase in phases}
        names = [load_text(row) for row in told]
        drawn["Time per committed token by phase"] = stacked_bars(names, parts, "ms per committed token")
    return drawn


def frontier_figures(results: Sequence[Result]) -> dict[str, Figure]:
    """What readers wait for against what the machine delivers, a curve for each server and a point for each load."""
    return {
        "Time per token after the first against throughput": _frontier(results, "tpot_ms", "median TPOT in ms"),
        "Time to the first token against throughput": _frontier(results, "ttft_ms", "median TTFT in ms"),
    }


def _frontier(results: Sequence[Result], field: str, label: str) -> Figure:
    figure, axes = new_axes()
    for result in results:
        rows = [row for row in result.rows if row[field]]
        throughputs = [row["output_throughput"] for row in rows]
        axes.plot(throughputs, [row[field]["p50"] for row in rows], marker="o", label=result.label)
        for row in rows:
            axes.annotate(load_text(row), (row["output_throughput"], row[field]["p50"]), fontsize=6)
    axes.set_xlabel("output tokens per second of the server")
    axes.set_ylabel(label)
    begin_at_zero(axes)
    show_legend(axes)
    return figure


def _latencies(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Medians as lines and the 99th percentiles dashed, on a scale on which both can be read."""
    figure, axes = new_axes()
    for color, (name, field) in enumerate(LATENCIES.items()):
        for share, style in (("p50", "-"), ("p99", "--")):
            values = [row[field][share] if row[field] else math.nan for row in rows]
            axes.plot(range(len(rows)), values, marker="o", linestyle=style, color=f"C{color}", label=f"{name} {share}")
    axes.set_yscale("log")
    axes.set_xticks(range(len(rows)), [load_text(row) for row in rows])
    axes.set_ylabel("ms")
    show_legend(axes)
    return figure


def _goodput(rows: Sequence[Mapping[str, Any]]) -> Figure:
    figure, axes = new_axes()
    places = range(len(rows))
    axes.plot(places, [row["request_throughput"] for row in rows], marker="o", label="answers")
    axes.plot(places, [row["goodput"] for row in rows], marker="o", label="answers within the limits")
    begin_at_zero(axes)
    axes.set_xticks(places, [load_text(row) for row in rows])
    axes.set_ylabel("per second")
    show_legend(axes)
    return figure
