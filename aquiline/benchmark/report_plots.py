"""Pictures of results, as SVG that stands in a page by itself."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from aquiline.benchmark.report_results import Result, speedups, variant_of
from aquiline.errors import UnsupportedFeatureError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 9.0, 3.6


def require_plotting() -> None:
    """Raise UnsupportedFeatureError where there is no matplotlib."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UnsupportedFeatureError("there is no matplotlib to draw a report; pip install matplotlib") from None


def plots_of(result: Result) -> dict[str, str]:
    """SVG pictures by title.

    Raises:
        UnsupportedFeatureError: there is no matplotlib.
    """
    require_plotting()
    if result.kind == "offline":
        drawn = {
            "Speed-up against batch size": _speedup_by_batch(result.rows),
            "Time per committed token by phase": _phases(result.rows, "batch_size"),
            "Latency against throughput": _frontier(result.rows),
        }
    else:
        drawn = {
            "Time per token after the first": _times_by_workload(result.rows),
            "Time per committed token by phase": _phases(result.rows, "workload"),
        }
    return {title: _svg(figure) for title, figure in drawn.items()}


def _new_axes() -> tuple[Figure, Axes]:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    axes.grid(axis="y", alpha=0.3)
    return figure, axes


def _svg(figure: Figure) -> str:
    """The picture without the declaration that only a file of its own may have."""
    sink = io.StringIO()
    figure.savefig(sink, format="svg", metadata={"Date": None})
    text = sink.getvalue()
    return text[text.index("<svg") :]


def _speedup_by_batch(rows: Sequence[dict[str, Any]]) -> Figure:
    figure, axes = _new_axes()
    for variant, by_batch in speedups(rows, "batch_size", "time_per_committed_token_ms").items():
        axes.plot(list(by_batch), list(by_batch.values()), marker="o", label=variant)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("requests that run together")
    axes.set_ylabel("times plain decoding")
    if axes.has_data() and axes.get_legend_handles_labels()[0]:
        axes.legend()
    return figure


def _frontier(rows: Sequence[dict[str, Any]]) -> Figure:
    """What a reader waits for a token is what the machine takes for it times the requests that share the machine."""
    figure, axes = _new_axes()
    variants: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        variants.setdefault(variant_of(row), []).append(row)
    for variant, own in variants.items():
        ordered = sorted(own, key=lambda row: float(row["batch_size"]))
        waits = [row["time_per_committed_token_ms"] * row["batch_size"] for row in ordered]
        axes.plot([row["tokens_per_second"] for row in ordered], waits, marker="o", label=variant)
    axes.set_xlabel("committed tokens per second of the machine")
    axes.set_ylabel("ms per token for a reader")
    axes.legend()
    return figure


def _times_by_workload(rows: Sequence[dict[str, Any]]) -> Figure:
    figure, axes = _new_axes()
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    variants = list(dict.fromkeys(variant_of(row) for row in rows))
    width = 0.8 / len(variants)
    for index, variant in enumerate(variants):
        times = {row["workload"]: row["tpot_ms"] or 0.0 for row in rows if variant_of(row) == variant}
        places = [place + index * width for place in range(len(workloads))]
        axes.bar(places, [times.get(name, 0.0) for name in workloads], width, label=variant)
    axes.set_xticks([place + 0.4 - width / 2 for place in range(len(workloads))], workloads)
    axes.set_ylabel("TPOT in ms")
    axes.legend()
    return figure


def _phases(rows: Sequence[dict[str, Any]], group: str) -> Figure:
    figure, axes = _new_axes()
    names = [f"{row[group]}\n{variant_of(row)}" for row in rows]
    floor = [0.0] * len(rows)
    for phase in rows[0]["phases_ms"]:
        heights = [row["phases_ms"].get(phase, 0.0) for row in rows]
        axes.bar(range(len(rows)), heights, bottom=floor, label=phase)
        floor = [low + height for low, height in zip(floor, heights, strict=True)]
    axes.set_xticks(range(len(rows)), names, rotation=90 if len(rows) > 8 else 0, fontsize=7)
    axes.set_ylabel("ms per committed token")
    axes.legend(ncols=3, fontsize=7)
    return figure
