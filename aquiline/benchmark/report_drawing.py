"""What all pictures of a report share: axes, and how they become part of a page."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from aquiline.errors import UnsupportedFeatureError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 9.0, 3.6
# More names than this stand upright below the axis.
MOST_LEVEL_NAMES = 8


def require_plotting() -> None:
    """Raise UnsupportedFeatureError where there is no matplotlib."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UnsupportedFeatureError("there is no matplotlib to draw a report; pip install matplotlib") from None


def new_axes() -> tuple[Figure, Axes]:
    """An empty figure with a grid."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    axes.grid(axis="y", alpha=0.3)
    return figure, axes


def svg(figure: Figure) -> str:
    """The picture without the declaration that only a file of its own may have."""
    sink = io.StringIO()
    figure.savefig(sink, format="svg", metadata={"Date": None})
    text = sink.getvalue()
    return text[text.index("<svg") :]


def show_legend(axes: Axes) -> None:
    """Name the curves, where there are any."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)


def show_counts(axes: Axes, counts: Iterable[int]) -> None:
    """A scale on which doubling is a step, for counts of requests, each of which is written below the axis."""
    shown = sorted(set(counts))
    axes.set_xscale("log", base=2)
    axes.set_xticks(shown, [str(count) for count in shown])


def begin_at_zero(axes: Axes) -> None:
    """Let the vertical axis begin at 0, with room above the curves."""
    axes.set_ylim(0.0, 1.05 * axes.get_ylim()[1])


def stacked_bars(names: Sequence[str], parts: Mapping[str, Sequence[float]], label: str) -> Figure:
    """A bar for each name, of parts one on top of the other."""
    figure, axes = new_axes()
    floor = [0.0] * len(names)
    for part, heights in parts.items():
        axes.bar(range(len(names)), heights, bottom=floor, label=part)
        floor = [low + height for low, height in zip(floor, heights, strict=True)]
    axes.set_xticks(range(len(names)), names, rotation=90 if len(names) > MOST_LEVEL_NAMES else 0, fontsize=7)
    axes.set_ylabel(label)
    # Names of trees are long: inside the axes they would cover the bars, and three beside each other be cut off.
    figure.legend(loc="outside lower center", ncols=2, fontsize=7)
    return figure
