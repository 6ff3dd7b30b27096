"""What came of steps with what was chosen, against what was foretold of them.

Costs and acceptance are learnt piece by piece, and a choice looks for the best among a hundred sums of such pieces. So
it finds those of which too much is foretold, and pieces that were timed alone may take another time in a row. What was
chosen has run, though: the time and the committed tokens of its steps, in sum, tell by how much its forecasts are off.
"""

from __future__ import annotations

from dataclasses import dataclass

# Steps fade with this half-life. Forecasts are believed like so many seen steps, and like so many tokens that came.
FADING = 0.5 ** (1 / 100)
PRIOR_STEPS = 12.0
PRIOR_TOKENS = 100.0
TOKENS_FADING = 0.5 ** (1 / 500)
# A step counts within bounds, and so do all together.
LEAST_RATIO, MOST_RATIO = 0.5, 2.0
LEAST_TIMES, MOST_TIMES = 0.75, 1.33
LEAST_GAIN, MOST_GAIN = 0.6, 1.25
# What is said of a load changes only by more than this.
NOTED_CHANGE = 0.01
# The first steps behind one of the other sort are slower than those that follow.
STEPS_TO_WARM_UP = 2


@dataclass(frozen=True, slots=True)
class Correction:
    """Factors of forecasts at one load.

    Attributes:
        plain_seconds, tree_seconds: of the time of steps without and with trees.
        tree_gain: of the tokens that trees are expected to add to one for each request.
    """

    plain_seconds: float = 1.0
    tree_seconds: float = 1.0
    tree_gain: float = 1.0

    def differs(self, other: Correction) -> bool:
        """Whether any factor differs noticeably."""
        return (
            abs(self.plain_seconds - other.plain_seconds) > NOTED_CHANGE
            or abs(self.tree_seconds - other.tree_seconds) > NOTED_CHANGE
            or abs(self.tree_gain - other.tree_gain) > NOTED_CHANGE
        )


AS_FORETOLD = Correction()


@dataclass(frozen=True, slots=True)
class Foretold:
    """What a step was expected to be like.

    Attributes:
        expected: committed tokens of all requests.
        correction: that is in these figures already.
    """

    num_requests: int
    grows: bool
    seconds: float
    expected: float
    correction: Correction = AS_FORETOLD


class Hindsight:
    """Corrections for every doubling of the number of requests.

    Worked example, trees of 4 requests that are foretold to take 5 ms and to commit 6 tokens, and take 5.5 and commit
    5.5: behind 12 steps `tree_seconds` is (12 * 1.1 + 12) / 24 = 1.05, for forecasts weigh as many, and behind 48
    steps 1.08. `tree_gain` is (12 * 1.5 + 100) / (12 * 2 + 100) = .95 and .87.

    Args:
        corrects_gains: False: only times. Shapes that are settled before anything is drawn have few rates, of which
            each is tried often.

    Attributes:
        version: changes whenever a correction does.
    """

    def __init__(self, corrects_gains: bool = True) -> None:
        self.version = 0
        self._corrects_gains = corrects_gains
        self._loads: dict[int, _Load] = {}
        self._last_sort: tuple[int, bool] | None = None
        self._num_alike = 0

    def of(self, num_requests: int) -> Correction:
        """The correction for so many decoding requests."""
        load = self._loads.get(num_requests.bit_length())
        return AS_FORETOLD if load is None else load.said

    def has_seen(self, num_requests: int, grows: bool) -> bool:
        """Whether steps of a sort have ever said anything of times at such a load."""
        load = self._loads.get(num_requests.bit_length())
        return load is not None and load.has_seen(grows)

    def interrupt(self) -> None:
        """Something else has run between the steps that are seen."""
        self._last_sort = None

    def forget_times(self) -> None:
        """Steps take another time than before, and forecasts are about to follow."""
        for load in self._loads.values():
            load.forget_times()

    def forget_gains(self) -> None:
        """What is foretold of trees has changed for a reason of its own."""
        for load in self._loads.values():
            load.forget_gains()

    def see(self, foretold: Foretold, seconds: float, num_committed: int) -> None:
        """A step has run as it was planned."""
        sort = (foretold.num_requests, foretold.grows)
        self._num_alike = self._num_alike + 1 if sort == self._last_sort else 1
        self._last_sort = sort
        load = self._loads.setdefault(foretold.num_requests.bit_length(), _Load(self._corrects_gains))
        load.see(foretold, seconds if self._num_alike > STEPS_TO_WARM_UP else None, num_committed)

    def refresh(self) -> None:
        """Say what was seen, where it differs from what was said."""
        if any([load.is_news() for load in self._loads.values()]):
            self.version += 1


class _Times:
    """Measured over foretold time of one sort of steps, in sums."""

    def __init__(self) -> None:
        self._measured = self._num_steps = 0.0

    def see(self, ratio: float) -> None:
        ratio = min(MOST_RATIO, max(LEAST_RATIO, ratio))
        self._measured = self._measured * FADING + ratio
        self._num_steps = self._num_steps * FADING + 1.0

    @property
    def factor(self) -> float:
        factor = (self._measured + PRIOR_STEPS) / (self._num_steps + PRIOR_STEPS)
        return min(MOST_TIMES, max(LEAST_TIMES, factor))


class _Load:
    """Sums over steps with about so many requests."""

    def __init__(self, corrects_gains: bool) -> None:
        self.said = AS_FORETOLD
        self._corrects_gains = corrects_gains
        self._plain, self._trees = _Times(), _Times()
        self._sorts_seen: set[bool] = set()
        self._gained = self._promised = 0.0

    def see(self, foretold: Foretold, seconds: float | None, num_committed: int) -> None:
        known = foretold.correction
        if seconds is not None and foretold.seconds > 0.0:
            ratio = seconds / foretold.seconds
            self._sorts_seen.add(foretold.grows)
            if foretold.grows:
                self._trees.see(ratio * known.tree_seconds)
            else:
                self._plain.see(ratio * known.plain_seconds)
        if foretold.grows and self._corrects_gains:
            kept = TOKENS_FADING**foretold.num_requests
            promised = (foretold.expected - foretold.num_requests) / known.tree_gain
            self._promised = self._promised * kept + promised
            self._gained = self._gained * kept + num_committed - foretold.num_requests

    def forget_times(self) -> None:
        self._plain, self._trees = _Times(), _Times()

    def forget_gains(self) -> None:
        self._gained = self._promised = 0.0

    def has_seen(self, grows: bool) -> bool:
        return grows in self._sorts_seen

    def is_news(self) -> bool:
        gain = (self._gained + PRIOR_TOKENS) / (self._promised + PRIOR_TOKENS)
        new = Correction(self._plain.factor, self._trees.factor, min(MOST_GAIN, max(LEAST_GAIN, gain)))
        if not new.differs(self.said):
            return False
        self.said = new
        return True
