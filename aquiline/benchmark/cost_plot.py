"""A picture of what steps cost."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from aquiline.engine.cost_model import CostProfile
from aquiline.errors import UserError

PLOTTED_ROWS = tuple(range(1, 65))


def plot_costs(path: Path, costs: CostProfile) -> None:
    """Draw the curves of a profile as a PNG file, whole or not at all.

    Raises:
        UserError: matplotlib is not installed, or the file cannot be written.
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
    for label, curve in curves.items():
        axes.plot(PLOTTED_ROWS, [1000.0 * curve.at(rows) for rows in PLOTTED_ROWS], label=label)
    axes.set_xlabel("rows")
    axes.set_ylabel("milliseconds")
    axes.set_ylim(bottom=0.0)
    axes.grid(alpha=0.3)
    axes.legend()
    try:
        with tempfile.NamedTemporaryFile("wb", dir=path.parent, prefix=".plot-", delete=False) as file:
            figure.savefig(file, format="png", dpi=120)
        os.replace(file.name, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
