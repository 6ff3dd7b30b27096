"""Whether one more row of a step is worth its time."""

from __future__ import annotations

from collections.abc import Callable

from aquiline.engine.cost_model import StepCosts

StepTime = Callable[[int], float]
"""From the rows of a step that only decodes to its time, in any unit; it never falls."""

# Rows of a step, and its time as a multiple of that with one row: 4-bit weights of a small model on two CPU cores.
_GENERIC_ROWS = (1, 2, 4, 8, 16, 32)
_GENERIC_TIMES = (1.0, 1.05, 1.2, 1.6, 2.6, 4.7)
# How many rows ahead a growing tree looks for cheaper ones.
LONGEST_LOOK = 16
TYPICAL_CONTEXT = 512


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
        self._times: list[float] = [0.0]
        self._slopes: dict[int, float] = {}

    @classmethod
    def of(cls, costs: StepCosts) -> RowCosts:
        """Those of measured steps without a draft model, of one request with TYPICAL_CONTEXT tokens."""

        def seconds(num_rows: int) -> float:
            verify = costs.verify_seconds(num_rows, TYPICAL_CONTEXT, num_rows * TYPICAL_CONTEXT)
            return verify + costs.other_seconds(num_rows, 1)

        return cls(seconds, lambda: costs.version)

    def refresh(self) -> None:
        """Take over times that have changed."""
        if self._version() != self._known_version:
            self._known_version = self._version()
            self._times = [0.0]
            self._slopes.clear()

    def time(self, num_rows: int) -> float:
        """Of a step with so many rows."""
        while len(self._times) <= num_rows:
            self._times.append(self._step_time(len(self._times)))
        return self._times[num_rows]

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


class RowWorth:
    """Rows that a step holds and tokens that it is expected to commit, while the trees of its requests grow.

    Of every tree that number of nodes is kept with which the step commits tokens fastest. Times may rise in stairs, so
    growth goes on beyond a row that does not pay, as long as later ones might make up for it.

    Worked example, one request that commits 1 token in time 1.0, and a second row that takes 0.05 more: a node is worth
    it when it survives in more than 5 of 100 cases. With 8 rows that commit 5 tokens in 1.6, and 0.125 for the next
    row, it has to survive in 39 of 100.

    Args:
        num_requests: that decode; each commits one token without any node.
        always_pays: every row is worth it, whatever it costs.

    Attributes:
        least_survival: a node that survives less often cannot be worth its row, and neither can any behind it.
    """

    def __init__(self, num_requests: int, costs: RowCosts, always_pays: bool = False) -> None:
        self._costs = costs
        self._always_pays = always_pays
        self._num_rows = num_requests
        self._expected_tokens = float(num_requests)
        self._num_taken = 0
        self._best_num_rows = self._num_rows
        self._best_expected_tokens = self._expected_tokens
        self.least_survival = 0.0
        self._find_least()

    def take(self, survival: float) -> None:
        """Try one more node of a tree; they come in falling order of survival."""
        self._num_rows += 1
        self._num_taken += 1
        self._expected_tokens += survival
        best_time, time = self._costs.time(self._best_num_rows), self._costs.time(self._num_rows)
        if self._always_pays or self._expected_tokens * best_time > self._best_expected_tokens * time:
            self._best_num_rows, self._best_expected_tokens = self._num_rows, self._expected_tokens
        self._find_least()

    def settle(self) -> int:
        """The tree is grown: keep as many of its nodes as are worth it, and say how many."""
        num_kept = self._num_taken - (self._num_rows - self._best_num_rows)
        self._num_rows, self._expected_tokens, self._num_taken = self._best_num_rows, self._best_expected_tokens, 0
        self._find_least()
        return num_kept

    def _find_least(self) -> None:
        if not self._always_pays:
            best_rate = self._best_expected_tokens / self._costs.time(self._best_num_rows)
            self.least_survival = best_rate * self._costs.least_slope(self._num_rows)
