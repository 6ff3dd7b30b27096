"""The pictures of every kind of result, as SVG by title."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from aquiline.benchmark.report_drawing import new_axes, require_plotting, show_counts, show_legend, stacked_bars, svg
from aquiline.benchmark.report_forecasts import forecast_figures
from aquiline.benchmark.report_planner import planner_figures
from aquiline.benchmark.report_results import Result, speedups, variant_of
from aquiline.benchmark.report_serving import frontier_figures, serving_figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plots_of(result: Result) -> dict[str, str]:
    """The pictures of one result.

    Raises:
        UnsupportedFeatureError: there is no matplotlib.
    """
    require_plotting()
    if result.kind == "offline":
        drawn = {
            "Speed-up against batch size": _speedup_by_batch(result.rows),
            "Time per committed token by phase": _phases(result.rows, "batch_size"),
            "Latency against throughput": _frontier(result.rows),
            **forecast_figures(result.rows, "batch_size"),
        }
    elif result.kind == "latency":
        drawn = {
            "Time per token after the first": _times_by_workload(result.rows),
            "Time per committed token by phase": _phases(result.rows, "workload"),
            **forecast_figures(result.rows, "workload"),
        }
    elif result.kind == "serving":
        drawn = serving_figures(result.rows)
    else:
        drawn = planner_figures(result.rows)
    return {title: svg(figure) for title, figure in drawn.items()}


def plots_of_all(results: Sequence[Result]) -> dict[str, str]:
    """The pictures that hold all measured servers together; none where no server was measured."""
    servers = [result for result in results if result.kind == "serving"]
    return {title: svg(figure) for title, figure in frontier_figures(servers).items()} if servers else {}


def _speedup_by_batch(rows: Sequence[dict[str, Any]]) -> Figure:
    figure, axes = new_axes()
    timed = [row | {"seconds_per_token": 1.0 / row["tokens_per_second"]} for row in rows]
    for variant, by_batch in speedups(timed, "batch_size", "seconds_per_token").items():
        axes.plot(list(by_batch), list(by_batch.values()), marker="o", label=variant)
    axes.axhline(1.0, color="black", linewidth=0.8)
    show_counts(axes, (row["batch_size"] for row in rows))
    axes.set_xlabel("requests that run together")
    axes.set_ylabel("times plain decoding")
    show_legend(axes)
    return figure


def _frontier(rows: Sequence[dict[str, Any]]) -> Figure:
    """What a reader waits for a token is what the machine takes for it times the requests that share the machine."""
    figure, axes = new_axes()
    variants: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        variants.setdefault(variant_of(row), []).append(row)
    for variant, own in variants.items():
        ordered = sorted(own, key=lambda row: float(row["batch_size"]))
        waits = [1e3 * row["batch_size"] / row["tokens_per_second"] for row in ordered]
        axes.plot([row["tokens_per_second"] for row in ordered], waits, marker="o", label=variant)
    axes.set_xlabel("committed tokens per second of the machine")
    axes.set_ylabel("ms per token for a reader")
    show_legend(axes)
    return figure


def _times_by_workload(rows: Sequence[dict[str, Any]]) -> Figure:
    figure, axes = new_axes()
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    variants = list(dict.fromkeys(variant_of(row) for row in rows))
    width = 0.8 / len(variants)
    for index, variant in enumerate(variants):
        times = {row["workload"]: row["tpot_ms"] or 0.0 for row in rows if variant_of(row) == variant}
        places = [place + index * width for place in range(len(workloads))]
        axes.bar(places, [times.get(name, 0.0) for name in workloads], width, label=variant)
    axes.set_xticks([place + 0.4 - width / 2 for place in range(len(workloads))], workloads)
    axes.set_ylabel("TPOT in ms")
    show_legend(axes)
    return figure


def _phases(rows: Sequence[dict[str, Any]], group: str) -> Figure:
    names = [f"{row[group]}\n{variant_of(row)}" for row in rows]
    parts = {phase: [row["phases_ms"].get(phase, 0.0) for row in rows] for phase in rows[0]["phases_ms"]}
    return stacked_bars(names, parts, "ms per committed token")
