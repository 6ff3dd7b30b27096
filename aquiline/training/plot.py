"""The course of a run as a picture: loss, acceptance and time per committed token over the tokens seen."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aquiline.atomic_file import write_atomically
from aquiline.errors import UnsupportedFeatureError
from aquiline.training.history import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT, DPI = 14.0, 4.2, 110


def require_plotting() -> None:
    """Raise UnsupportedFeatureError where there is no matplotlib."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UnsupportedFeatureError(
            "there is no matplotlib to draw the course of the run; pip install matplotlib, or give --no-plot"
        ) from None


def write_plot(records: Sequence[Record], path: Path) -> None:
    """Draw a run as a PNG file, as a whole or not at all.

    Args:
        records: of a `History`; steps and evaluations are drawn, as far as there are any.

    Raises:
        UnsupportedFeatureError: there is no matplotlib.
        OSError: the file cannot be written.
    """
    require_plotting()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    FigureCanvasAgg(figure)
    left, middle, right = figure.subplots(1, 3)
    steps = [record for record in records if record["kind"] == "step"]
    evaluations = [record for record in records if record["kind"] == "evaluation"]
    _draw_loss(left, steps)
    _draw_acceptance(middle, evaluations)
    _draw_time(right, evaluations)
    for axes in (left, middle, right):
        axes.set_xlabel("trained tokens")
        axes.set_xlim(0.0, 1.02 * max([1000, *(record["num_tokens"] for record in [*steps, *evaluations])]))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.grid(True, alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize="small")
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=DPI)
    write_atomically(path, content.getvalue())


def _draw_loss(axes: Axes, steps: Sequence[Record]) -> None:
    axes.set_title("loss per trained token, by self-fed step")
    for index in range(max((len(step["losses"]) for step in steps), default=0)):
        points = [step for step in steps if len(step["losses"]) > index]
        axes.plot(_tokens(points), [step["losses"][index] for step in points], label=f"step {index}")


def _draw_acceptance(axes: Axes, evaluations: Sequence[Record]) -> None:
    axes.set_title("acceptance on held-out prompts")
    rates = [record["predicted"]["chain"]["conditional_acceptance_per_position"] for record in evaluations]
    for index in range(max(map(len, rates), default=0)):
        points = [(record, rate) for record, rate in zip(evaluations, rates, strict=True) if len(rate) > index]
        axes.plot(
            _tokens([record for record, _ in points]),
            [rate[index] for _, rate in points],
            marker=".",
            label=f"position {index + 1}, given all before",
        )
    axes.set_ylim(bottom=0.0)


def _draw_time(axes: Axes, evaluations: Sequence[Record]) -> None:
    axes.set_title("milliseconds per committed token, one request")
    if not evaluations:
        return
    times = [record["time_per_committed_token_ms"] for record in evaluations]
    best = min(range(len(times)), key=times.__getitem__)
    axes.plot(_tokens(evaluations), times, marker=".", label="best tree")
    axes.plot(_tokens([evaluations[best]]), [times[best]], "o", label=f"best: {evaluations[best]['best_shape']}")
    axes.axhline(evaluations[-1]["plain_time_per_token_ms"], color="grey", linestyle="--", label="plain decoding")


def _tokens(records: Sequence[Record]) -> list[Any]:
    return [record["num_tokens"] for record in records]
