"""What the steps that run say about costs that were measured another time.

The same machine has moods: its arithmetic, its memory or both are slower for some minutes, by up to four tenths. So two
numbers follow at once what a forward takes, one for the part that a forward of one row has too, which is memory's, and
one for what further rows add, which is arithmetic's. What they leave unexplained is learnt slowly, row count by row
count.

    seconds(rows) = (first * u + more * x) * factor(rows)     u: one row and the contexts' pages, x: all that is beyond

A row of a tree sees the pages of its root, so a forward holds a tree where its rows see more context in sum than its
requests have.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from aquiline.engine.cost_curve import Curve, PreparedCurve

FloatArray = NDArray[np.float64]
Times = TypeVar("Times", float, FloatArray)

# Share of the weight of earlier steps that is left after one more: half of it after ten steps.
SCALE_KEPT = 0.93
# How firmly the two scales keep the ratio that they were last seen in, and each its own value, as a number of steps.
RATIO_WEIGHT = 0.15
OWN_WEIGHT = 0.02
LOOSE_HOLD = 0.05
RATIO_PACE = 0.1
SMALLEST_SCALE = 0.02
# Further rows become cheaper beside the first by so much at once; moods of one machine differ by less. Should they
# become dearer, that is believed as it comes, for then trees are left, which shows the truth.
MOST_FALL = 1.5
# Of a logarithm; where little was seen yet, more is believed.
LARGEST_SURPRISE = 0.15
FIRST_SURPRISE = 0.6
NO_SURPRISE = 0.02
# So many surprises of one sign in a row are a change, which is then learnt faster.
STREAK_OF_CHANGE = 12
STREAK_TO_REFRESH = 3
MOST_WEIGHT = 64.0
SLOWEST_LEARNING = 0.06
SLOWEST_POINT_LEARNING = 0.03
# A row count learns no faster than this many steps would let it, for the scales come first.
POINT_HEAD_START = 16.0
WEIGHT_AFTER_CHANGE = 5.0
WEIGHT_KEPT_PER_REFRESH = 0.98
# A correction weighs its neighbours less the further away they are, in doublings of the row count; all neighbours
# together count for as many observations of a point itself.
NEIGHBOUR_FADING = 0.2
TRUST_IN_PROFILE = 1.0
WEIGHT_OF_NEIGHBOURS = 1.0


class Scale:
    """A factor that follows observed over foretold, taking large surprises for accidents."""

    def __init__(self) -> None:
        self.factor = 1.0
        self._weight = 0.0

    def observe(self, foretold: float, seconds: float, num_steps: int = 1) -> None:
        """Learn from a time that stands for some alike; `foretold` was reckoned with the factor."""
        if foretold <= 0.0 or seconds <= 0.0:
            return
        self._weight = min(self._weight + num_steps, MOST_WEIGHT)
        pace = _pace_of(max(SLOWEST_LEARNING, 1.0 / (self._weight + 1.0)), num_steps)
        self.factor *= math.exp(_limited(math.log(seconds / foretold), num_steps * LARGEST_SURPRISE) * pace)


class TwoScales:
    """Factors of the first row's time and of what further rows add, by least squares over the last dozens of steps.

    Worked example, a profile of 1.0 for one row and 0.1 for each further one: steps of 1 row that take 1.2 and steps of
    11 rows that take 2.0 give `first` 1.2 and `more` 0.8. Steps of one size alone cannot tell the two apart: then they
    keep their ratio.

    Attributes:
        first, more: the factors.
    """

    def __init__(self) -> None:
        self.first = self.more = 1.0
        self._ratio = 1.0
        self._uu = self._ux = self._xx = self._uy = self._xy = 0.0
        self._streak = 0

    def of(self, first_seconds: float, more_seconds: float) -> float:
        """What a forward takes whose parts take so long by the profile."""
        return self.first * first_seconds + self.more * more_seconds

    def observe(self, first_seconds: float, more_seconds: float, seconds: float, num_steps: int = 1) -> None:
        """Learn from a forward that stands for some alike; errors count relative to its time."""
        foretold = self.of(first_seconds, more_seconds)
        surprise = math.log(seconds / foretold)
        self._streak = _streak_after(self._streak, surprise, LARGEST_SURPRISE, num_steps)
        weight = self._uu + self._xx
        most = LARGEST_SURPRISE + FIRST_SURPRISE / (1.0 + weight)
        if abs(self._streak) >= STREAK_TO_REFRESH:
            # Not an accident but another machine, of which earlier steps say little.
            most = abs(surprise)
            self._fade(0.5)
        # What disturbs a step only ever makes it longer, so there is no accident that makes it shorter.
        target = foretold * math.exp(min(surprise, most))
        u, x = first_seconds / target, more_seconds / target
        self._fade(SCALE_KEPT**num_steps)
        self._uu += num_steps * u * u
        self._ux += num_steps * u * x
        self._xx += num_steps * x * x
        self._uy += num_steps * u
        self._xy += num_steps * x
        self._solve()
        informed = x * self.more / (u * self.first + x * self.more)
        self._ratio += _pace_of(RATIO_PACE * informed, num_steps) * (self.more / self.first - self._ratio)

    def _fade(self, share: float) -> None:
        self._uu *= share
        self._ux *= share
        self._xx *= share
        self._uy *= share
        self._xy *= share

    def _solve(self) -> None:
        """Least squares of first * u + more * x = 1, of more = ratio * first, and faintly of both staying as they are.

        The last two count relative to the scales, as the first does to times.
        """
        # While one surprise follows another, nothing that was known holds any more.
        hold = LOOSE_HOLD if abs(self._streak) >= STREAK_TO_REFRESH else 1.0
        ratio, tie = self._ratio, hold * RATIO_WEIGHT / (self.more * self.more)
        keep_first = hold * OWN_WEIGHT / (self.first * self.first)
        keep_more = hold * OWN_WEIGHT / (self.more * self.more)
        uu = self._uu + tie * ratio * ratio + keep_first
        ux = self._ux - tie * ratio
        xx = self._xx + tie + keep_more
        uy, xy = self._uy + keep_first * self.first, self._xy + keep_more * self.more
        determinant = uu * xx - ux * ux
        first = (uy * xx - xy * ux) / determinant
        more = (xy * uu - uy * ux) / determinant
        first, more = max(first, SMALLEST_SCALE), max(more, SMALLEST_SCALE)
        least = ratio / MOST_FALL
        if more < least * first:
            # Among steps of about one size a few slow plain ones would make further rows free.
            first = max(SMALLEST_SCALE, (uy + least * xy) / (uu + 2.0 * least * ux + least * least * xx))
            more = least * first
        self.first, self.more = first, more


@dataclass(frozen=True, slots=True)
class Forward:
    """A target forward: its rows, and contexts as in `StepSize`."""

    num_rows: int
    context: float
    row_context: float


@dataclass(frozen=True, slots=True)
class ForwardTerms:
    """What a forward takes beside its rows, in seconds.

    Attributes:
        per_context, per_row_context: times the contexts of a `Forward`.
        any_tree: once, where there is any tree.
    """

    per_context: float
    per_row_context: float
    any_tree: float = 0.0

    def parts(self, context: float, row_context: Times) -> tuple[float, Times]:
        """What they come to: for the first row of every request, and beyond it."""
        first = (self.per_context + self.per_row_context) * context
        more = self.per_row_context * (row_context - context) + self.any_tree * (row_context > context)
        return first, more


@dataclass(frozen=True, slots=True)
class ForwardParts:
    """A target forward by the profile: the time of one row for each request's context, and all that is beyond."""

    first: float
    more: float


class CorrectedForwards:
    """Times of target forwards: a curve over row counts, two scales, and a factor at each point of the curve.

    Attributes:
        scales: what steps have shown so far; forwards are foretold by those of the last `refresh`.
    """

    def __init__(self, curve: Curve, terms: ForwardTerms) -> None:
        self.scales = TwoScales()
        self._curve = curve
        self._rows = curve.rows
        self._measured = PreparedCurve.of(curve)
        self._terms = terms
        size = len(curve.rows)
        self._errors = np.zeros(size)
        self._weights = np.zeros(size)
        # How many surprises in a row had the same sign, which the number has too.
        self._streaks = [0] * size
        logs = np.log2(np.array(curve.rows, dtype=np.float64))
        self._nearness: FloatArray = NEIGHBOUR_FADING ** np.abs(logs[:, None] - logs[None, :])
        np.fill_diagonal(self._nearness, 0.0)
        self._corrections = np.zeros(size)
        self._first = self._more = 1.0
        self._corrected = self._measured
        self._factors = PreparedCurve.of(Curve(curve.rows, (1.0,) * size))

    @property
    def prepared(self) -> tuple[PreparedCurve, PreparedCurve]:
        """By row count: the time without any context, and the factor of what is added; as of the last `refresh`."""
        return self._corrected, self._factors

    def added_seconds_of(self, context: float, row_context: FloatArray) -> FloatArray:
        """What contexts and trees add to forwards before the factor of their row counts."""
        first, more = self._terms.parts(context, row_context)
        added: FloatArray = self._first * first + self._more * more
        return added

    def at(self, num_rows: int, context: float, row_context: float) -> float:
        """Of one forward."""
        if num_rows <= 0:
            return 0.0
        first, more = self._terms.parts(context, row_context)
        return self._corrected.at(num_rows) + (self._first * first + self._more * more) * self._factors.at(num_rows)

    def parts(self, forward: Forward) -> ForwardParts:
        """What the profile says of a forward."""
        base = self._curve.seconds[0]
        first, more = self._terms.parts(forward.context, forward.row_context)
        return ForwardParts(base + first, self._measured.at(forward.num_rows) - base + more)

    def observe(self, forward: Forward, seconds: float, num_steps: int = 1) -> bool:
        """Learn from a forward that stands for some alike; `refresh` makes it count.

        Returns:
            Whether it should, for what is foretold now is far off.
        """
        parts, num_rows = self.parts(forward), forward.num_rows
        if parts.first <= 0.0 or parts.more < 0.0 or seconds <= 0.0 or num_rows < 1:
            return False
        place = self._nearest(num_rows)
        self.scales.observe(parts.first, parts.more, seconds / self._factors.at(num_rows), num_steps)
        self._observe_point(place, math.log(seconds / self.scales.of(parts.first, parts.more)), num_steps)
        is_off = abs(math.log(seconds / self.at(num_rows, forward.context, forward.row_context))) > LARGEST_SURPRISE
        return is_off and abs(self._streaks[place]) >= STREAK_TO_REFRESH

    def _observe_point(self, place: int, error: float, num_steps: int) -> None:
        if self._weights[place] == 0.0:
            self._errors[place] = self._corrections[place]
        weight = min(float(self._weights[place]) + num_steps, MOST_WEIGHT)
        surprise = _limited(error - float(self._errors[place]), LARGEST_SURPRISE + FIRST_SURPRISE / weight)
        self._streaks[place] = _streak_after(self._streaks[place], surprise, NO_SURPRISE, num_steps)
        head_start = POINT_HEAD_START
        if abs(self._streaks[place]) >= STREAK_OF_CHANGE:
            # What the scales have not explained by now, they cannot.
            weight, head_start = min(weight, WEIGHT_AFTER_CHANGE), 1.0
        self._weights[place] = weight
        pace = max(SLOWEST_POINT_LEARNING, 1.0 / (weight + head_start))
        self._errors[place] += surprise * _pace_of(pace, num_steps)

    def _nearest(self, num_rows: int) -> int:
        high = min(bisect_left(self._rows, num_rows), len(self._rows) - 1)
        if high > 0 and num_rows * num_rows < self._rows[high] * self._rows[high - 1]:
            return high - 1
        return high

    def refresh(self) -> None:
        """Take over what was observed; points that saw little follow their neighbours. Old observations fade."""
        near = self._nearness * self._weights
        expected = WEIGHT_OF_NEIGHBOURS * (near @ self._errors) / (TRUST_IN_PROFILE + near.sum(axis=1))
        self._corrections = (self._weights * self._errors + expected) / (self._weights + WEIGHT_OF_NEIGHBOURS)
        self._weights *= WEIGHT_KEPT_PER_REFRESH
        self._first, self._more = self.scales.first, self.scales.more
        factors = np.exp(self._corrections)
        base, points = self._curve.seconds[0], self._measured.points
        values = (self._first * base + self._more * (points - base)) * factors
        self._corrected = PreparedCurve.from_values(self._rows, np.maximum.accumulate(values))
        self._factors = PreparedCurve.from_values(self._rows, factors, is_level=True)


def _streak_after(streak: int, surprise: float, least: float, num_steps: int) -> int:
    """Steps in a row that were surprising in one direction, which the sign tells."""
    if abs(surprise) < least:
        return 0
    return max(num_steps, streak + num_steps) if surprise > 0.0 else min(-num_steps, streak - num_steps)


def _pace_of(pace: float, num_steps: int) -> float:
    """Which share of the way so many steps go that go `pace` of what is left, one after the other."""
    return 1.0 - (1.0 - pace) ** num_steps if num_steps > 1 else pace


def _limited(surprise: float, largest: float) -> float:
    return max(-largest, min(largest, surprise))
