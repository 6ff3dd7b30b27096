"""Pictures of what the planner would begin with, under one objective and another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from aquiline.benchmark.report_drawing import begin_at_zero, new_axes, show_counts, show_legend
from aquiline.speculation import StaticTree, parse_speculation

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def planner_figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    """Pictures by title; rows as in a result of `tune`."""
    return {
        "Chosen tree by load": _by_load(rows, _num_nodes, "draft tokens of a request"),
        "Expected throughput by load": _by_load(rows, _speedup, "times plain decoding"),
        "Expected wait by load": _by_load(rows, _wait_ms, "ms per token for a reader"),
    }


def _by_load(rows: Sequence[Mapping[str, Any]], figure_of: Callable[[Mapping[str, Any]], float], label: str) -> Figure:
    figure, axes = new_axes()
    for objective in dict.fromkeys(row["objective"] for row in rows):
        own = [row for row in rows if row["objective"] == objective]
        axes.plot([row["num_requests"] for row in own], [figure_of(row) for row in own], marker="o", label=objective)
    show_counts(axes, (row["num_requests"] for row in rows))
    begin_at_zero(axes)
    axes.set_xlabel("requests that run together")
    axes.set_ylabel(label)
    show_legend(axes)
    return figure


def _num_nodes(row: Mapping[str, Any]) -> float:
    shape = parse_speculation(row["text"]).shape
    return float(shape.num_draft_tokens) if isinstance(shape, StaticTree) else 0.0


def _speedup(row: Mapping[str, Any]) -> float:
    return float(1e3 * row["expected"] / row["step_ms"] / row["plain_tokens_per_second"])


def _wait_ms(row: Mapping[str, Any]) -> float:
    """Worked example, 4 requests of which a step of 20 ms commits 8 tokens: each gets 2, so one takes 10 ms."""
    return float(row["step_ms"] * row["num_requests"] / row["expected"])
