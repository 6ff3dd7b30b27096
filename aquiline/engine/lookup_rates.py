"""How often what a text once continued with comes again: learnt from every token that an engine commits."""

from __future__ import annotations

from bisect import bisect_left
from enum import IntEnum

# Upper ends of the classes of match lengths; longer matches make the last class.
LENGTH_CLASSES = (1, 2, 3, 4, 6, 9, 14, 24)
NUM_LENGTHS = len(LENGTH_CLASSES) + 1
_NUM_LISTED = LENGTH_CLASSES[-1] + 1
_CLASS_OF = tuple(bisect_left(LENGTH_CLASSES, length) for length in range(_NUM_LISTED))

# Trials that the generic rates count for, and the shared ones count for within a request.
WEIGHT_OF_GENERIC = 8.0
WEIGHT_OF_SHARED = 6.0
# When a class has seen so many trials, all it saw counts half, so that it follows what comes.
MOST_TRIALS = 256.0


class Kind(IntEnum):
    """What speaks for a continuation."""

    ONLY = 0
    """Nothing else ever followed the matched part."""
    ONLY_AGAIN = 1
    """Nothing else ever followed it, and the last guess from it was right."""
    NEWEST = 2
    """It followed the part last; something else did before."""
    NEWEST_AGAIN = 3
    """As NEWEST, and the last guess from the part was right."""
    OLDER = 4
    """It followed the part before something else did."""
    SHORTER = 5
    """Nothing but the first guess followed the part; this one followed a shorter suffix of it."""


# Rates by kind and class of length, as a small chat model has them over mixed prompts.
GENERIC_RATES = (
    (0.28, 0.45, 0.56, 0.62, 0.76, 0.82, 0.90, 0.95, 0.97),
    (0.36, 0.72, 0.74, 0.78, 0.84, 0.88, 0.92, 0.95, 0.97),
    (0.10, 0.20, 0.28, 0.40, 0.46, 0.52, 0.60, 0.66, 0.70),
    (0.34, 0.52, 0.54, 0.60, 0.66, 0.72, 0.78, 0.84, 0.88),
    (0.09, 0.08, 0.13, 0.22, 0.22, 0.20, 0.18, 0.16, 0.14),
    (0.06, 0.11, 0.10, 0.03, 0.03, 0.02, 0.01, 0.01, 0.01),
)
# Texts that are drawn at random repeat themselves less: .15, .33, .44 and .50 behind matches of 1 to 4 tokens at
# temperature 1, against .29, .52, .64 and .71 at 0.
SAMPLED_FACTOR = 0.7
NUM_CELLS = len(Kind) * NUM_LENGTHS


def length_class(match_length: int) -> int:
    """Which of the NUM_LENGTHS classes a match of at least one token falls into; the cell is that and its kind's."""
    return _CLASS_OF[match_length] if match_length < _NUM_LISTED else NUM_LENGTHS - 1


def generic_rates(is_sampled: bool) -> list[float]:
    """What is expected of every cell before anything was seen, of requests that draw at random or do not."""
    return [rate * (SAMPLED_FACTOR if is_sampled else 1.0) for rates in GENERIC_RATES for rate in rates]


class SharedRates:
    """Rates over all requests of an engine that draw at random, or over all that do not, from generic ones on."""

    def __init__(self, is_sampled: bool = False) -> None:
        generic = generic_rates(is_sampled)
        self._trials = [WEIGHT_OF_GENERIC] * NUM_CELLS
        self._hits = [rate * WEIGHT_OF_GENERIC for rate in generic]

    def rate(self, cell: int) -> float:
        """Share of the guesses of a class that came true."""
        return self._hits[cell] / self._trials[cell]

    def observe(self, cell: int, came_true: bool) -> None:
        """Learn from one guess."""
        self._trials[cell] += 1.0
        if came_true:
            self._hits[cell] += 1.0
        if self._trials[cell] >= MOST_TRIALS:
            self._trials[cell] /= 2.0
            self._hits[cell] /= 2.0


class SourceRates:
    """Rates of guesses from a request's own text, and from a history of outputs.

    Args:
        is_sampled: of requests that draw at random.
    """

    def __init__(self, is_sampled: bool) -> None:
        self.own = SharedRates(is_sampled)
        self.history = SharedRates(is_sampled)


class RequestRates:
    """Rates of one request, drawn towards the shared ones as long as it has seen little.

    Worked example with a shared weight of 6: a class that is right in half of all guesses, and was right in 3 of 3 of
    this request, has the rate (3 + 6 * 0.5) / (3 + 6) = 2 / 3.

    Attributes:
        rates: how likely a guess of each class is to come true. What other requests learn shows in the classes that
            this one observes, and in all of them when it is made.
    """

    def __init__(self, shared: SharedRates) -> None:
        self._shared = shared
        self._trials = [0.0] * NUM_CELLS
        self._hits = [0.0] * NUM_CELLS
        self.rates = [shared.rate(cell) for cell in range(NUM_CELLS)]

    def observe(self, cell: int, came_true: bool) -> None:
        """Learn from one guess, for this request and for all."""
        self._shared.observe(cell, came_true)
        self._trials[cell] += 1.0
        if came_true:
            self._hits[cell] += 1.0
        shared = WEIGHT_OF_SHARED * self._shared.rate(cell)
        self.rates[cell] = (self._hits[cell] + shared) / (self._trials[cell] + WEIGHT_OF_SHARED)
