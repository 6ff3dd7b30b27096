"""What a step will cost: measured curves, corrected by every step that runs.

    seconds = verify(rows, context) + draft(new rows, rows of each level) + sample(drawn rows) + host(requests)

A profile holds what `aquiline tune` measured. While the engine runs, each step tells its own time for nothing: a
running correction per row count follows it, so that a machine whose mood changes is believed within some dozen steps.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

# A correction weighs its neighbours less the further away they are, in doublings of the row count.
NEIGHBOUR_FADING = 0.25
TRUST_IN_PROFILE = 0.2
# All neighbours together count for as many observations of a point itself.
WEIGHT_OF_NEIGHBOURS = 1.0
# Of a logarithm; where little was seen yet, more is believed.
LARGEST_SURPRISE = 0.15
FIRST_SURPRISE = 0.6
NO_SURPRISE = 0.02
SLOWEST_LEARNING = 0.05
STEPS_PER_REFRESH = 16
WEIGHT_KEPT_PER_REFRESH = 0.98
MOST_WEIGHT = 64.0
# So many surprises of one sign in a row are a change of the machine, which is then learnt faster.
STREAK_OF_CHANGE = 8
STREAK_TO_REFRESH = 3
WEIGHT_AFTER_CHANGE = 5.0


@dataclass(frozen=True, slots=True)
class StepSize:
    """What a step's time depends on.

    Attributes:
        num_rows: of the target's forward, prefill included.
        num_drawn_rows: rows that draw a token.
        num_requests: in the step.
        context: tokens in the pages of the decoding requests, summed over these.
        row_context: the same summed over their rows.
        num_new_rows: draft rows of newly committed tokens.
        level_rows: nodes with children on every level of all trees together, the roots' level first.
    """

    num_rows: int
    num_drawn_rows: int
    num_requests: int
    context: int = 0
    row_context: int = 0
    num_new_rows: int = 0
    level_rows: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Wall time of a step's phases."""

    verify: float
    draft: float
    sample: float
    host: float

    @property
    def total(self) -> float:
        return self.verify + self.draft + self.sample + self.host


class StepCosts(Protocol):
    """What the planner asks of costs. `version` changes whenever an answer might."""

    version: int

    def verify_seconds(self, num_rows: int, context: int, row_context: int) -> float:
        """Of one target forward."""

    def draft_seconds(self, num_new_rows: int, level_rows: Sequence[int]) -> float:
        """Of extending the draft cache and growing trees."""

    def other_seconds(self, num_drawn_rows: int, num_requests: int) -> float:
        """Of drawing tokens and of everything on the host."""

    def observe(self, size: StepSize, seconds: StepSeconds) -> None:
        """Learn from a step."""


@dataclass(frozen=True)
class Curve:
    """A function of a row count: straight between its points, rising as its last piece beyond them.

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
        if len(self.rows) == 1:
            return self.seconds[0]
        high = min(place, len(self.rows) - 1)
        low = high - 1
        slope = (self.seconds[high] - self.seconds[low]) / (self.rows[high] - self.rows[low])
        return self.seconds[low] + slope * (num_rows - self.rows[low])


@dataclass(frozen=True)
class CostProfile:
    """Costs as they were measured.

    Attributes:
        verify: of a target forward by its rows, without what context adds.
        seconds_per_context_token, seconds_per_row_context: times `StepSize.context` and `row_context`.
        extend: of the draft over newly committed rows.
        propose_roots: of the children of so many roots.
        level: of running so many nodes through the draft and proposing their children.
        sample_base, sample_per_row, host_base, host_per_request: in seconds.
    """

    verify: Curve
    seconds_per_context_token: float
    seconds_per_row_context: float
    extend: Curve
    propose_roots: Curve
    level: Curve
    sample_base: float
    sample_per_row: float
    host_base: float
    host_per_request: float


# Shares of a plain step with one request, about as a small 4-bit model on two CPU cores has them. Only ratios matter.
GENERIC_PROFILE = CostProfile(
    verify=Curve((1, 2, 4, 8, 16, 32, 64, 128), (0.85, 0.92, 1.05, 1.45, 2.4, 4.4, 8.5, 16.8)),
    seconds_per_context_token=1e-4,
    seconds_per_row_context=2e-4,
    extend=Curve((1, 4, 16, 64), (0.05, 0.06, 0.12, 0.4)),
    propose_roots=Curve((1, 4, 16, 64), (0.08, 0.1, 0.2, 0.7)),
    level=Curve((1, 4, 16, 64), (0.1, 0.14, 0.3, 1.0)),
    sample_base=0.03,
    sample_per_row=0.02,
    host_base=0.05,
    host_per_request=0.01,
)


class CostModel:
    """Costs of a profile, corrected by the steps that ran.

    Args:
        learns: False keeps to the profile, whatever steps take (for tests: no choice then depends on a clock).
    """

    def __init__(self, profile: CostProfile = GENERIC_PROFILE, learns: bool = True) -> None:
        self.profile = profile
        self.learns = learns
        self.version = 0
        self._verify = _CorrectedCurve(profile.verify)
        self._draft_scale = _Scale()
        self._sample_scale = _Scale()
        self._host_scale = _Scale()
        self._num_unread = 0

    def verify_seconds(self, num_rows: int, context: int, row_context: int) -> float:
        """See `StepCosts`."""
        return self._verify.at(num_rows, self.context_seconds(context, row_context))

    def context_seconds(self, context: int, row_context: int) -> float:
        """What the context adds to a target forward according to the profile."""
        profile = self.profile
        return context * profile.seconds_per_context_token + row_context * profile.seconds_per_row_context

    def draft_seconds(self, num_new_rows: int, level_rows: Sequence[int]) -> float:
        """See `StepCosts`."""
        profile = self.profile
        seconds = profile.extend.at(num_new_rows)
        if level_rows:
            seconds += profile.propose_roots.at(level_rows[0])
            for num_rows in level_rows[1:]:
                seconds += profile.level.at(num_rows)
        return seconds * self._draft_scale.factor

    def other_seconds(self, num_drawn_rows: int, num_requests: int) -> float:
        """See `StepCosts`."""
        return self._sample(num_drawn_rows) + self._host(num_requests)

    def _sample(self, num_drawn_rows: int) -> float:
        profile = self.profile
        return (profile.sample_base + profile.sample_per_row * num_drawn_rows) * self._sample_scale.factor

    def _host(self, num_requests: int) -> float:
        return (self.profile.host_base + self.profile.host_per_request * num_requests) * self._host_scale.factor

    def predict(self, size: StepSize) -> StepSeconds:
        """All phases of one step."""
        return StepSeconds(
            verify=self.verify_seconds(size.num_rows, size.context, size.row_context),
            draft=self.draft_seconds(size.num_new_rows, size.level_rows),
            sample=self._sample(size.num_drawn_rows),
            host=self._host(size.num_requests),
        )

    def observe(self, size: StepSize, seconds: StepSeconds) -> None:
        """Learn from a step."""
        if not self.learns:
            return
        foretold = self.predict(size)
        added = self.context_seconds(size.context, size.row_context)
        is_wrong = self._verify.observe(size.num_rows, added, seconds.verify)
        if size.num_new_rows or size.level_rows:
            self._draft_scale.observe(foretold.draft, seconds.draft)
        self._sample_scale.observe(foretold.sample, seconds.sample)
        self._host_scale.observe(foretold.host, seconds.host)
        self._num_unread += 1
        if is_wrong or self._num_unread >= STEPS_PER_REFRESH:
            self._num_unread = 0
            self._verify.refresh()
            self.version += 1


class _Scale:
    """A factor that follows observed over foretold, taking large surprises for accidents."""

    def __init__(self) -> None:
        self.factor = 1.0
        self._weight = 0.0

    def observe(self, foretold: float, seconds: float) -> None:
        if foretold <= 0.0 or seconds <= 0.0:
            return
        self._weight = min(self._weight + 1.0, MOST_WEIGHT)
        self.factor *= math.exp(_surprise(foretold, seconds) * _pace(self._weight))


class _CorrectedCurve:
    """A curve and, at each of its points, the logarithm of what to multiply it by."""

    def __init__(self, curve: Curve) -> None:
        self._curve = curve
        self._rows = curve.rows
        self._errors = [0.0] * len(curve.rows)
        self._weights = [0.0] * len(curve.rows)
        self._corrections = [0.0] * len(curve.rows)
        self._corrected = curve
        # How many surprises in a row had the same sign, which the number has too.
        self._streaks = [0] * len(curve.rows)
        self._factors: dict[int, float] = {}
        self._values: dict[int, float] = {}

    def at(self, num_rows: int, added: float) -> float:
        """Corrected value at `num_rows`, where `added` comes on top of the curve before it is corrected."""
        value = self._values.get(num_rows)
        if value is None:
            value = self._values[num_rows] = self._corrected.at(num_rows)
            self._factors[num_rows] = self._factor(num_rows)
        return value + added * self._factors[num_rows]

    def _factor(self, num_rows: int) -> float:
        rows = self._rows
        high = bisect_right(rows, num_rows)
        if high == 0 or high == len(rows):
            return math.exp(self._corrections[0 if high == 0 else -1])
        share = (num_rows - rows[high - 1]) / (rows[high] - rows[high - 1])
        return math.exp((1.0 - share) * self._corrections[high - 1] + share * self._corrections[high])

    def observe(self, num_rows: int, added: float, seconds: float) -> bool:
        """Learn from one forward; `refresh` makes it count. True: it should, for what is foretold now is far off."""
        uncorrected = self._curve.at(num_rows) + added
        if uncorrected <= 0.0 or seconds <= 0.0 or num_rows < 1:
            return False
        place = self._nearest(num_rows)
        if self._weights[place] == 0.0:
            self._errors[place] = self._corrections[place]
        self._weights[place] = min(self._weights[place] + 1.0, MOST_WEIGHT)
        foretold = uncorrected * math.exp(self._errors[place])
        surprise = _surprise(foretold, seconds, LARGEST_SURPRISE + FIRST_SURPRISE / self._weights[place])
        streak = self._streaks[place]
        if abs(surprise) < NO_SURPRISE:
            self._streaks[place] = 0
        else:
            self._streaks[place] = max(1, streak + 1) if surprise > 0.0 else min(-1, streak - 1)
        if abs(self._streaks[place]) >= STREAK_OF_CHANGE:
            self._weights[place] = min(self._weights[place], WEIGHT_AFTER_CHANGE)
        self._errors[place] += surprise * _pace(self._weights[place])
        is_off = abs(math.log(seconds / self.at(num_rows, added))) > LARGEST_SURPRISE
        return is_off and abs(self._streaks[place]) >= STREAK_TO_REFRESH

    def _nearest(self, num_rows: int) -> int:
        high = min(bisect_left(self._rows, num_rows), len(self._rows) - 1)
        if high > 0 and num_rows * num_rows < self._rows[high] * self._rows[high - 1]:
            return high - 1
        return high

    def refresh(self) -> None:
        """Take over what was observed; points that saw little follow their neighbours. Old observations fade."""
        logs = [math.log2(rows) for rows in self._rows]
        for place, log in enumerate(logs):
            weight, total = TRUST_IN_PROFILE, 0.0
            for other, other_log in enumerate(logs):
                if other != place:
                    near = self._weights[other] * NEIGHBOUR_FADING ** abs(log - other_log)
                    weight += near
                    total += near * self._errors[other]
            own = self._weights[place]
            expected = WEIGHT_OF_NEIGHBOURS * total / weight
            self._corrections[place] = (own * self._errors[place] + expected) / (own + WEIGHT_OF_NEIGHBOURS)
        self._weights = [weight * WEIGHT_KEPT_PER_REFRESH for weight in self._weights]
        seconds, lowest = [], 0.0
        for value, correction in zip(self._curve.seconds, self._corrections, strict=True):
            lowest = max(lowest, value * math.exp(correction))
            seconds.append(lowest)
        self._corrected = Curve(self._rows, tuple(seconds))
        self._factors.clear()
        self._values.clear()


def _surprise(foretold: float, seconds: float, largest: float = LARGEST_SURPRISE) -> float:
    return max(-largest, min(largest, math.log(seconds / foretold)))


def _pace(weight: float) -> float:
    return max(SLOWEST_LEARNING, 1.0 / (weight + 1.0))
