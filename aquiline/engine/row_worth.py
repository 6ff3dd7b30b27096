"""Whether one more row of a step is worth its time."""

from __future__ import annotations

from collections.abc import Callable

from aquiline.engine.cost_model import StepCosts

StepTime = Callable[[int], float]
"""From the rows of a step that only decodes to its time, in any unit; it never falls."""

# Rows of a step, and its time as a multiple of that with one row: 4-bit weights of a small model on two CPU cores.
_GENERIC_ROWS = (1, 2, 4, 8, 16, 32)
_GENERIC_TIMES = (1.0, 1.05, 1.2, 1.6, 2.6, 4.7)


def generic_step_time(num_rows: int) -> float:
    """Times of a machine that nobody has measured: straight between the points above, and beyond them."""
    last = len(_GENERIC_ROWS) - 1
    place = next((place for place in range(1, last) if num_rows <= _GENERIC_ROWS[place]), last)
    low, high = _GENERIC_ROWS[place - 1], _GENERIC_ROWS[place]
    slope = (_GENERIC_TIMES[place] - _GENERIC_TIMES[place - 1]) / (high - low)
    return _GENERIC_TIMES[place - 1] + slope * (num_rows - low)


class RowCosts:
    """What the next row adds to a step, as a share of its time; every number of rows is asked for only once.

    Args:
        version: a number that changes when times do.
    """

    def __init__(self, step_time: StepTime = generic_step_time, version: Callable[[], int] = lambda: 0) -> None:
        self._step_time = step_time
        self._version = version
        self._known_version = version()
        self._shares: list[float] = [0.0]

    @classmethod
    def of(cls, costs: StepCosts) -> RowCosts:
        """Those of measured steps without a draft model, at a short context."""
        return cls(
            lambda num_rows: costs.verify_seconds(num_rows, 0, 0) + costs.other_seconds(num_rows, 1),
            lambda: costs.version,
        )

    def refresh(self) -> None:
        """Take over times that have changed."""
        if self._version() != self._known_version:
            self._known_version = self._version()
            self._shares = [0.0]

    def share(self, num_rows: int) -> float:
        """Time that one more row adds to a step of `num_rows`, divided by the time of that step."""
        while len(self._shares) <= num_rows:
            rows = len(self._shares)
            now = self._step_time(rows)
            self._shares.append(max(0.0, self._step_time(rows + 1) - now) / now)
        return self._shares[num_rows]


class RowWorth:
    """Rows that a step holds and tokens that it is expected to commit, while nodes are added to it.

    A node pays when it adds tokens at a faster rate than the step commits them without it.

    Worked example, one request that commits 1 token in time 1.0, and a second row that takes 0.05 more: a node is worth
    it when it survives in more than 5 of 100 cases. With 8 rows that commit 5 tokens in 1.6, and 0.125 for the next
    row, it has to survive in 39 of 100.

    Args:
        num_requests: that decode; each commits one token without any node.
        always_pays: every row is worth it, whatever it costs.
    """

    def __init__(self, num_requests: int, costs: RowCosts, always_pays: bool = False) -> None:
        self._costs = costs
        self._always_pays = always_pays
        self._num_rows = num_requests
        self._expected_tokens = float(num_requests)
        self.least_survival = 0.0
        self._find_least()

    def take(self, survival: float) -> None:
        """Add a node."""
        self._num_rows += 1
        self._expected_tokens += survival
        self._find_least()

    def _find_least(self) -> None:
        if not self._always_pays:
            self.least_survival = self._costs.share(self._num_rows) * self._expected_tokens
