"""Whether one more row of a step is worth its time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aquiline.engine.cost_model import StepCosts

StepTime = Callable[[int], float]
"""From the rows of a step that only decodes to its time, in any unit; it never falls."""

# Rows of a step, and its time as a multiple of that with one row: 4-bit weights of a small model on two CPU cores.
_GENERIC_ROWS = (1, 2, 4, 8, 16, 32)
_GENERIC_TIMES = (1.0, 1.05, 1.2, 1.6, 2.6, 4.7)
# Of many guesses those are taken that look best, and rows seem cheaper than they are where few steps had so many: what
# looked-up rows add to a step counts as so much longer. Measured: beside 16 requests they brought 10 % more tokens in
# steps that took 20 % longer.
CAUTION = 2.0
# How many rows ahead a growing tree looks for cheaper ones.
LONGEST_LOOK = 16


def generic_step_time(num_rows: int) -> float:
    """Times of a machine that nobody has measured: straight between the points above, and beyond them."""
    last = len(_GENERIC_ROWS) - 1
    place = next((place for place in range(1, last) if num_rows <= _GENERIC_ROWS[place]), last)
    low, high = _GENERIC_ROWS[place - 1], _GENERIC_ROWS[place]
    slope = (_GENERIC_TIMES[place] - _GENERIC_TIMES[place - 1]) / (high - low)
    return _GENERIC_TIMES[place - 1] + slope * (num_rows - low)


class RowCosts:
    """Times of steps by their rows; every number of rows is asked for only once.

    Args:
        version: a number that changes when times do.
    """

    def __init__(self, step_time: StepTime = generic_step_time, version: Callable[[], int] = lambda: 0) -> None:
        self._step_time = step_time
        self._version = version
        self._known_version = version()
        self._times: dict[int, float] = {}
        self._slopes: dict[int, float] = {}

    @classmethod
    def of(cls, costs: StepCosts, num_requests: int, context: int) -> RowCosts:
        """Those of measured steps without a draft model, of so many requests with `context` tokens each.

        What rows beyond one for each request add counts `CAUTION` times.
        """

        def measured(num_rows: int) -> float:
            verify = costs.verify_seconds(num_rows, num_requests * context, num_rows * context)
            return verify + costs.other_seconds(num_rows, num_requests)

        def seconds(num_rows: int) -> float:
            if num_rows <= num_requests:
                return measured(num_rows)
            plain = measured(num_requests)
            return plain + CAUTION * (measured(num_rows) - plain)

        return cls(seconds, lambda: costs.version)

    def refresh(self) -> None:
        """Take over times that have changed."""
        if self._version() != self._known_version:
            self._known_version = self._version()
            self._times.clear()
            self._slopes.clear()

    def time(self, num_rows: int) -> float:
        """Of a step with so many rows."""
        seconds = self._times.get(num_rows)
        if seconds is None:
            seconds = self._times[num_rows] = self._step_time(num_rows)
        return seconds

    def least_slope(self, num_rows: int) -> float:
        """The least time per further row, over all numbers of further rows up to LONGEST_LOOK.

        Worked example, times 1.0, 2.0, 2.1 and 2.2 of 1 to 4 rows: the second row takes 1.0, but three further ones
        take 0.4 each.
        """
        slope = self._slopes.get(num_rows)
        if slope is None:
            now = self.time(num_rows)
            slope = min((self.time(num_rows + more) - now) / more for more in range(1, LONGEST_LOOK + 1))
            self._slopes[num_rows] = slope
        return slope


@dataclass(frozen=True, slots=True)
class StepBase:
    """A step before anything was looked up.

    Attributes:
        num_rows: of the target's forward, those of prefill and of the draft model's nodes among them.
        expected_tokens: that it commits.
        other_time: what it takes beside these rows; negative where some of them have to be computed anyhow.
    """

    num_rows: int
    expected_tokens: float
    other_time: float = 0.0

    def plus(self, more: StepBase) -> StepBase:
        """Both in one step."""
        return StepBase(
            self.num_rows + more.num_rows,
            self.expected_tokens + more.expected_tokens,
            self.other_time + more.other_time,
        )


class RowWorth:
    """Rows that a step holds and tokens that it is expected to commit, while the trees of its requests grow.

    Of all nodes in the order in which they are taken that number is kept with which the step commits tokens fastest.
    Times may rise in stairs, so growth goes on beyond a row that does not pay, as long as later ones might make up for
    it.

    Worked example, one request that commits 1 token in time 1.0, and a second row that takes 0.05 more: a node is worth
    it when it survives in more than 5 of 100 cases. With 8 rows that commit 5 tokens in 1.6, and 0.125 for the next
    row, it has to survive in 39 of 100.

    Args:
        base: what the step holds without any node.
        always_pays: every row is worth it, whatever it costs.
        tree_time: what the first node takes beside its row: trees have to be put together and walked.

    Attributes:
        num_first_rows: of the step without any node.
        least_survival: a node that survives less often cannot be worth its row, and neither can any behind it.
    """

    def __init__(self, base: StepBase, costs: RowCosts, always_pays: bool = False, tree_time: float = 0.0) -> None:
        self.costs = costs
        self.always_pays = always_pays
        self.tree_time = tree_time
        self.num_first_rows = base.num_rows
        self._other_time = base.other_time
        self._num_rows = base.num_rows
        self._expected_tokens = base.expected_tokens
        self._num_taken = 0
        self._best_num_rows = self._num_rows
        self._best_expected_tokens = self._expected_tokens
        self.least_survival = 0.0
        self._find_least()

    @property
    def base(self) -> StepBase:
        """What the step holds when it keeps what was settled so far."""
        return StepBase(self._best_num_rows, self._best_expected_tokens, self._other_time)

    def take(self, survival: float) -> None:
        """Try one more node; they come in falling order of survival until `settle` is called."""
        self._num_rows += 1
        self._num_taken += 1
        self._expected_tokens += survival
        best_time, time = self._time(self._best_num_rows), self._time(self._num_rows)
        if self.always_pays or self._expected_tokens * best_time > self._best_expected_tokens * time:
            self._best_num_rows, self._best_expected_tokens = self._num_rows, self._expected_tokens
        self._find_least()

    def settle(self) -> int:
        """All nodes are tried: keep as many of those taken as are worth it, and say how many."""
        num_kept = self._num_taken - (self._num_rows - self._best_num_rows)
        self.settle_at(self._best_num_rows, self._best_expected_tokens)
        return num_kept

    def settle_at(self, num_rows: int, expected_tokens: float) -> None:
        """Go on from what was kept elsewhere by the same rule."""
        self._num_rows = self._best_num_rows = num_rows
        self._expected_tokens = self._best_expected_tokens = expected_tokens
        self._num_taken = 0
        self._find_least()

    def _time(self, num_rows: int) -> float:
        time = self.costs.time(num_rows) + self._other_time
        return time + self.tree_time if num_rows > self.num_first_rows else time

    def _find_least(self) -> None:
        if not self.always_pays:
            best_rate = self._best_expected_tokens / self._time(self._best_num_rows)
            self.least_survival = best_rate * self.costs.least_slope(self._num_rows)
