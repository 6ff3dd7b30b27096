"""What a step will cost: measured curves, corrected by every step that runs.

    seconds = verify(rows, context, any tree) + draft(new rows, rows of each level) + sample(drawn rows)
              + host(requests, any tree) + grammar(masked rows)

A step holds a tree where it draws more rows than it has requests.

A profile holds what `aquiline tune` measured. While the engine runs, each step tells its own time for nothing: see
`cost_correction`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from aquiline.engine.cost_correction import CorrectedForwards, Forward, ForwardTerms, Scale
from aquiline.engine.cost_curve import Curve, PreparedCurve

FloatArray = NDArray[np.float64]

STEPS_PER_REFRESH = 16
# Answers are said to have changed, so that choices are made anew, when one of them has by more than this share of a
# step, but not again within some dozen steps unless by far more. What all times have in common changes few choices.
NOTED_CHANGE = 0.05
NOTED_COMMON_CHANGE = 0.25
LARGE_CHANGE = 4.0
STEPS_BETWEEN_CHANGES = 48
TYPICAL_ROWS = 4
# Time of one row's grammar mask before any was seen, in seconds, and how fast it follows what is seen.
GENERIC_MASK_SECONDS = 3e-5
MASK_PACE = 0.1
MOST_MASK_SURPRISE = 3.0
# Of what deeper draft levels were measured to take, at least so much is left to them.
LEAST_LEVEL_SHARE = 0.2


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
        num_masked_rows: rows of guided requests, which need a mask each.
    """

    num_rows: int
    num_drawn_rows: int
    num_requests: int
    context: int = 0
    row_context: int = 0
    num_new_rows: int = 0
    level_rows: tuple[int, ...] = ()
    num_masked_rows: int = 0


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Wall time of a step's phases."""

    verify: float
    draft: float
    sample: float
    host: float
    grammar: float = 0.0

    @property
    def total(self) -> float:
        return self.verify + self.draft + self.sample + self.host + self.grammar


class StepCosts(Protocol):
    """What the planner asks of costs.

    Attributes:
        version: changes whenever an answer might have moved noticeably.
        learns: False: answers never follow the steps that run, and then nothing else may depend on their times either.
    """

    version: int
    learns: bool

    @property
    def num_observed(self) -> int:
        """Steps that were learnt from."""

    @property
    def mask_seconds(self) -> float:
        """Of the grammar mask of one row of a guided request."""

    @property
    def stairs(self) -> tuple[int, ...]:
        """Row counts behind which a forward takes a leap."""

    def verify_seconds(self, num_rows: int, context: int, row_context: int) -> float:
        """Of one target forward."""

    def draft_seconds(self, num_new_rows: int, level_rows: Sequence[int]) -> float:
        """Of extending the draft cache and growing trees."""

    def other_seconds(self, num_drawn_rows: int, num_requests: int) -> float:
        """Of drawing tokens and of everything on the host but grammars."""

    def verify_seconds_of(self, num_rows: FloatArray, context: int, row_context: FloatArray) -> FloatArray:
        """Of many target forwards over the same requests; each has a row."""

    def draft_seconds_of(self, num_new_rows: FloatArray, level_rows: FloatArray) -> FloatArray:
        """Of many draft runs; new rows [num_runs], level rows [num_runs, num_levels], 0 where there is nothing."""

    def other_seconds_of(self, num_drawn_rows: FloatArray, num_requests: int) -> FloatArray:
        """Of many numbers of drawn rows."""

    def observe(self, size: StepSize, seconds: StepSeconds, num_steps: int = 1) -> None:
        """Learn from a step that stands for some that were alike."""


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
        tree_verify, tree_host: what a forward and the host take longer for holding any tree, its rows not counted.
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
    tree_verify: float = 0.0
    tree_host: float = 0.0


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
        self._num_observed = 0
        self._verify = CorrectedForwards(
            profile.verify,
            ForwardTerms(profile.seconds_per_context_token, profile.seconds_per_row_context, profile.tree_verify),
        )
        self._extend = PreparedCurve.of(profile.extend)
        self._propose_roots = PreparedCurve.of(profile.propose_roots)
        self._level = PreparedCurve.of(profile.level)
        self._draft_scale = Scale()
        self._level_scale = Scale()
        self._sample_scale = Scale()
        self._host_scale = Scale()
        self._mask_seconds = GENERIC_MASK_SECONDS
        self._stairs = self._verify.prepared[0].stairs()
        self._num_unread = 0
        self._num_since_change = STEPS_BETWEEN_CHANGES
        # What answers rested on when the version last changed.
        self._said = self._grounds()

    @property
    def num_observed(self) -> int:
        """See `StepCosts`."""
        return self._num_observed

    @property
    def mask_seconds(self) -> float:
        """See `StepCosts`."""
        return self._mask_seconds

    @property
    def stairs(self) -> tuple[int, ...]:
        """See `StepCosts`."""
        return self._stairs

    def verify_seconds(self, num_rows: int, context: int, row_context: int) -> float:
        """See `StepCosts`."""
        return self._verify.at(num_rows, context, row_context)

    def verify_seconds_of(self, num_rows: FloatArray, context: int, row_context: FloatArray) -> FloatArray:
        """See `StepCosts`."""
        seconds, factors = self._verify.prepared
        added = self._verify.added_seconds_of(context, row_context)
        return seconds.many(num_rows) + added * factors.many(num_rows)

    def draft_seconds(self, num_new_rows: int, level_rows: Sequence[int]) -> float:
        """See `StepCosts`."""
        seconds = self._first_level(num_new_rows, level_rows) * self._draft_scale.factor
        return seconds + self._deeper_levels(level_rows) * self._level_scale.factor if len(level_rows) > 1 else seconds

    def _first_level(self, num_new_rows: int, level_rows: Sequence[int]) -> float:
        """New rows, and the children of the roots, as they were measured."""
        seconds = self._extend.at(num_new_rows) if num_new_rows > 0 else 0.0
        return seconds + self._propose_roots.at(level_rows[0]) if level_rows else seconds

    def _deeper_levels(self, level_rows: Sequence[int]) -> float:
        return sum([self._level.at(num_rows) for num_rows in level_rows[1:]])

    def draft_seconds_of(self, num_new_rows: FloatArray, level_rows: FloatArray) -> FloatArray:
        """See `StepCosts`."""
        seconds = self._extend.many(num_new_rows) + self._propose_roots.many(level_rows[:, 0])
        seconds *= self._draft_scale.factor
        # A level that runs in some steps only, with a row in the mean of less than 1, costs so much less than one.
        lower = level_rows[:, 1:]
        deeper = (self._level.many(np.maximum(lower, 1.0)) * np.minimum(lower, 1.0)).sum(axis=1)
        seconds += deeper * self._level_scale.factor
        return seconds

    def other_seconds(self, num_drawn_rows: int, num_requests: int) -> float:
        """See `StepCosts`."""
        return self._sample(num_drawn_rows) + self._host(num_requests, num_drawn_rows > num_requests)

    def other_seconds_of(self, num_drawn_rows: FloatArray, num_requests: int) -> FloatArray:
        """See `StepCosts`."""
        per_row = self.profile.sample_per_row * self._sample_scale.factor
        trees = np.where(num_drawn_rows > num_requests, self.profile.tree_host * self._host_scale.factor, 0.0)
        return num_drawn_rows * per_row + trees + (self._sample(0) + self._host(num_requests))

    def _sample(self, num_drawn_rows: int) -> float:
        profile = self.profile
        return (profile.sample_base + profile.sample_per_row * num_drawn_rows) * self._sample_scale.factor

    def _host(self, num_requests: int, has_trees: bool = False) -> float:
        profile = self.profile
        seconds = profile.host_base + profile.host_per_request * num_requests
        return (seconds + profile.tree_host if has_trees else seconds) * self._host_scale.factor

    def predict(self, size: StepSize) -> StepSeconds:
        """All phases of one step."""
        return StepSeconds(
            verify=self.verify_seconds(size.num_rows, size.context, size.row_context),
            draft=self.draft_seconds(size.num_new_rows, size.level_rows),
            sample=self._sample(size.num_drawn_rows),
            host=self._host(size.num_requests, size.num_drawn_rows > size.num_requests),
            grammar=self._mask_seconds * size.num_masked_rows,
        )

    def observe(self, size: StepSize, seconds: StepSeconds, num_steps: int = 1) -> None:
        """Learn from a step that stands for some that were alike."""
        if not self.learns:
            return
        forward = Forward(size.num_rows, size.context, size.row_context)
        is_wrong = self._verify.observe(forward, seconds.verify, num_steps)
        if size.num_new_rows or size.level_rows:
            self._observe_draft(size, seconds.draft, num_steps)
        self._sample_scale.observe(self._sample(size.num_drawn_rows), seconds.sample, num_steps)
        host = self._host(size.num_requests, size.num_drawn_rows > size.num_requests)
        self._host_scale.observe(host, seconds.host, num_steps)
        if size.num_masked_rows:
            seen = min(seconds.grammar / size.num_masked_rows, MOST_MASK_SURPRISE * self._mask_seconds)
            self._mask_seconds += (1.0 - (1.0 - MASK_PACE) ** num_steps) * (seen - self._mask_seconds)
        self._num_unread += num_steps
        self._num_observed += num_steps
        self._num_since_change += num_steps
        if is_wrong or self._num_unread >= STEPS_PER_REFRESH:
            self._refresh()

    def _observe_draft(self, size: StepSize, seconds: float, num_steps: int) -> None:
        """The first level and the deeper ones are slower or faster than measured each in its own way."""
        first = self._first_level(size.num_new_rows, size.level_rows)
        deeper = self._deeper_levels(size.level_rows)
        if deeper:
            left = max(LEAST_LEVEL_SHARE * deeper, seconds - first * self._draft_scale.factor)
            self._level_scale.observe(deeper * self._level_scale.factor, left, num_steps)
        else:
            self._draft_scale.observe(first * self._draft_scale.factor, seconds, num_steps)

    def _refresh(self) -> None:
        self._num_unread = 0
        self._verify.refresh()
        grounds = self._grounds()
        change = self._said.change(grounds)
        is_due = self._num_since_change >= STEPS_BETWEEN_CHANGES
        if change > NOTED_CHANGE * (1.0 if is_due else LARGE_CHANGE):
            self._said, self._num_since_change = grounds, 0
            self._stairs = self._verify.prepared[0].stairs()
            self.version += 1

    def _grounds(self) -> _Grounds:
        forwards = self._verify.prepared[0].points
        others = (
            self.draft_seconds(TYPICAL_ROWS, (1, TYPICAL_ROWS)),
            self._sample(TYPICAL_ROWS),
            self._host(1),
            self._mask_seconds * TYPICAL_ROWS,
        )
        return _Grounds(forwards, np.array(others))


@dataclass(frozen=True)
class _Grounds:
    """What answers rest on: times of forwards by their rows, and of everything else in a small step."""

    forwards: FloatArray
    others: FloatArray

    def change(self, new: _Grounds) -> float:
        """By how much choices may have to change, as a share of a step."""
        one, new_one = self.forwards[0], new.forwards[0]
        forwards = np.abs(new.forwards / new_one / (self.forwards / one) - 1.0).max()
        others = np.abs(new.others / new_one - self.others / one).max()
        common = abs(math.log(new_one / one)) * NOTED_CHANGE / NOTED_COMMON_CHANGE
        return float(max(forwards, others, common))
