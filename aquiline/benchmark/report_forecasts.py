"""Pictures of what the planner expected of its steps, beside what came of them, and of the trees that grew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from aquiline.benchmark.report_drawing import new_axes, show_legend, stacked_bars
from aquiline.benchmark.report_results import variant_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# What a forecast should not miss by more.
TOLERANCE = 0.1
# Trees beyond the most usual ones are drawn as one.
MOST_SHAPES = 9
OTHERS = "others"


def forecast_figures(rows: Sequence[Mapping[str, Any]], group: str) -> dict[str, Figure]:
    """Pictures by title; none where nothing was forecast. `group` is the field that tells rows of a variant apart."""
    forecast = [row for row in rows if row.get("forecast")]
    if not forecast:
        return {}
    return {
        "Step time: expected against measured": _comparison(
            forecast, group, ("expected_step_ms", "measured_step_ms"), "ms per step"
        ),
        "Committed tokens of a step: expected against measured": _comparison(
            forecast, group, ("expected_tokens", "committed_tokens"), "tokens per step"
        ),
        "Trees that grew": _shapes(forecast, group),
    }


def _comparison(rows: Sequence[Mapping[str, Any]], group: str, fields: tuple[str, str], label: str) -> Figure:
    """A point per row; on the line both are the same, and between the dashes they differ by a tenth at most."""
    figure, axes = new_axes()
    expected, measured = fields
    for row in rows:
        name = f"{row[group]}, {variant_of(row)}"
        axes.plot(row["forecast"][measured], row["forecast"][expected], marker="o", linestyle="", label=name)
    most = 1.1 * max(max(row["forecast"][field] for field in fields) for row in rows)
    axes.plot([0.0, most], [0.0, most], color="black", linewidth=0.8)
    for factor in (1.0 - TOLERANCE, 1.0 + TOLERANCE):
        axes.plot([0.0, most], [0.0, factor * most], color="black", linewidth=0.5, linestyle="--")
    axes.set_xlabel(f"measured {label}")
    axes.set_ylabel("expected")
    show_legend(axes)
    return figure


def _shapes(rows: Sequence[Mapping[str, Any]], group: str) -> Figure:
    """Share of the steps by the tree that grew in them."""
    totals: Counter[str] = Counter()
    for row in rows:
        totals.update(row["forecast"]["num_steps_by_shape"])
    shown = [shape for shape, _ in totals.most_common(MOST_SHAPES)]
    shares = [_shares(row["forecast"]["num_steps_by_shape"], shown) for row in rows]
    parts = {shape: [share.get(shape, 0.0) for share in shares] for shape in (*shown, OTHERS)}
    if not any(parts[OTHERS]):
        del parts[OTHERS]
    return stacked_bars([f"{row[group]}\n{variant_of(row)}" for row in rows], parts, "share of the steps")


def _shares(counts: Mapping[str, int], shown: Sequence[str]) -> dict[str, float]:
    whole = max(1, sum(counts.values()))
    shares = {shape: counts[shape] / whole for shape in shown if shape in counts}
    return shares | {OTHERS: sum(count for shape, count in counts.items() if shape not in shown) / whole}
