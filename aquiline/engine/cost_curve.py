"""Functions of a row count: as a profile holds them, and prepared for many questions at once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

# Prepared curves go on straight up to here.
FARTHEST_ROWS = 2**24
# Two neighbouring row counts are a stair when the second adds so many times what a row adds on the way there.
STAIR_STEEPNESS = 3.0
# And by at least this share of the whole.
LEAST_STAIR = 0.03


@dataclass(frozen=True)
class Curve:
    """A function of a row count: straight between its points, and beyond them as over the last doubling of rows.

    Where kernels work on rows in panels, times make a stair behind each full panel. The curve has a point on both sides
    of it, 16 and 17 rows for instance, and so nothing is ever reckoned across it.

    Attributes:
        rows: ascending, the first at least 1.
        seconds: as many; they never fall.
    """

    rows: tuple[int, ...]
    seconds: tuple[float, ...]

    def at(self, num_rows: int) -> float:
        """Value at `num_rows`; below the first point that of the first, and 0 at no rows at all."""
        if num_rows <= 0:
            return 0.0
        place = bisect_left(self.rows, num_rows)
        if place < len(self.rows) and (place == 0 or self.rows[place] == num_rows):
            return self.seconds[place]
        low = place - 1
        if place == len(self.rows):
            slope = slope_beyond(self.rows, self.seconds)
        else:
            slope = (self.seconds[place] - self.seconds[low]) / (self.rows[place] - self.rows[low])
        return self.seconds[low] + slope * (num_rows - self.rows[low])


def slope_beyond(rows: Sequence[int], values: Sequence[float] | FloatArray) -> float:
    """What a row more than the last point's adds: as over the last doubling.

    The last piece alone may be a stair, or so short that chance makes it level.

    Worked example, points at 16, 32 and 33 rows: from 16 to 33.
    """
    low = max((place for place, each in enumerate(rows[:-1]) if each <= rows[-1] / 2), default=0)
    return float(values[-1] - values[low]) / (rows[-1] - rows[low]) if len(rows) > 1 else 0.0


@dataclass(frozen=True)
class PreparedCurve:
    """A curve as arrays, with a point more at no rows, where it is 0, and one far beyond the others.

    Attributes:
        known: values by row count for small ones, filled as they are asked for.
    """

    rows: FloatArray  # [num_points + 3]
    values: FloatArray  # [num_points + 3]
    known: dict[int, float]

    @classmethod
    def of(cls, curve: Curve) -> PreparedCurve:
        """Of the points of a curve."""
        return cls.from_values(curve.rows, np.array(curve.seconds, dtype=np.float64))

    @classmethod
    def from_values(cls, rows: Sequence[int], values: FloatArray, is_level: bool = False) -> PreparedCurve:
        """Points and, beyond the last, a straight line; `is_level`: a level one."""
        last = values[-1]
        if not is_level:
            last += slope_beyond(rows, values) * (FARTHEST_ROWS - rows[-1])
        # Below its first point the curve is level; what lies between no rows and a whole one, nobody asks for.
        first = [0.0, min(1.0, rows[0] / 2.0)]
        return cls(
            np.array([*first, *rows, FARTHEST_ROWS], dtype=np.float64),
            np.concatenate(([0.0, values[0]], values, [last])),
            {},
        )

    @property
    def points(self) -> FloatArray:
        """Values at the points of the curve itself."""
        return self.values[2:-1]

    def at(self, num_rows: int) -> float:
        """Value at one row count."""
        value = self.known.get(num_rows)
        if value is None:
            value = self.known[num_rows] = float(np.interp(num_rows, self.rows, self.values))
        return value

    def many(self, num_rows: FloatArray) -> FloatArray:
        """Values at many row counts."""
        found: FloatArray = np.interp(num_rows, self.rows, self.values)
        return found

    def stairs(self) -> tuple[int, ...]:
        """Row counts behind which one row more costs far more than those before it did."""
        rows, values = self.rows[2:-1], self.points
        found = []
        for place in range(1, len(rows) - 1):
            if rows[place + 1] - rows[place] != 1.0:
                continue
            rise = values[place + 1] - values[place]
            slope = (values[place] - values[place - 1]) / (rows[place] - rows[place - 1])
            if rise > STAIR_STEEPNESS * slope and rise > LEAST_STAIR * values[place]:
                found.append(int(rows[place]))
        return tuple(found)
