"""A picture of what steps cost."""

from __future__ import annotations

import io

from aquiline.engine.cost_model import CostProfile
from aquiline.errors import UserError

PLOTTED_ROWS = tuple(range(1, 65))


def cost_picture(costs: CostProfile) -> bytes:
    """The curves of a profile, drawn as a PNG file.

    Raises:
        UserError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("there is no matplotlib for --plot; pip install matplotlib") from None
    figure = Figure(figsize=(7.0, 4.5), layout="constrained")
    axes = figure.add_subplot()
    curves = {
        "target forward": costs.verify,
        "draft: new rows": costs.extend,
        "draft: children of roots": costs.propose_roots,
        "draft: one level": costs.level,
    }
    plotted = [rows for rows in PLOTTED_ROWS if rows <= costs.verify.rows[-1]]  # beyond is guessed, not measured
    for label, curve in curves.items():
        axes.plot(plotted, [1000.0 * curve.at(rows) for rows in plotted], label=label)
    axes.set_xlabel("rows")
    axes.set_ylabel("milliseconds")
    axes.set_ylim(bottom=0.0)
    axes.grid(alpha=0.3)
    axes.legend()
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    return picture.getvalue()
