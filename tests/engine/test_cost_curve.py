"""Costs as functions of a row count."""

from __future__ import annotations

import numpy as np
import pytest

from aquiline.engine.cost_curve import Curve, PreparedCurve, slope_beyond


def test_the_worked_example() -> None:
    assert slope_beyond((1, 16, 32, 33), (1.0, 2.0, 4.0, 4.0)) == pytest.approx(2.0 / 17.0)


@pytest.mark.parametrize(
    ("rows", "seconds"),
    [((1, 16, 32, 33), (1.0, 2.0, 4.0, 4.0)), ((1, 2), (1.0, 1.5)), ((8,), (3.0,)), ((1, 256), (0.2, 5.0))],
)
def test_curves_go_on_beyond_their_last_point_and_both_forms_agree(
    rows: tuple[int, ...], seconds: tuple[float, ...]
) -> None:
    """A last piece that chance made level does not make thousands of rows cost what the last point does."""
    curve = Curve(rows, seconds)
    prepared = PreparedCurve.of(curve)
    asked = [1, *rows, rows[-1] + 1, 2 * rows[-1], 1000]
    assert [prepared.at(each) for each in asked] == pytest.approx([curve.at(each) for each in asked])
    assert prepared.many(np.array(asked, dtype=float)).tolist() == pytest.approx([curve.at(each) for each in asked])
    if len(rows) > 1:
        assert curve.at(2 * rows[-1]) > seconds[-1]
