"""How often what a text once continued with comes again: learnt from every token that an engine commits."""

from __future__ import annotations

from bisect import bisect_left
from enum import IntEnum

# Upper ends of the classes of match lengths; longer matches make the last class.
LENGTH_CLASSES = (1, 2, 3, 4, 6, 9, 14, 24)
NUM_LENGTHS = len(LENGTH_CLASSES) + 1
_CLASS_OF = tuple(bisect_left(LENGTH_CLASSES, length) for length in range(LENGTH_CLASSES[-1] + 2))

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
_GENERIC_RATES = (
    (0.20, 0.40, 0.50, 0.60, 0.68, 0.76, 0.84, 0.90, 0.94),
    (0.40, 0.62, 0.72, 0.78, 0.84, 0.88, 0.92, 0.95, 0.97),
    (0.15, 0.28, 0.36, 0.42, 0.48, 0.55, 0.62, 0.68, 0.72),
    (0.30, 0.45, 0.54, 0.60, 0.66, 0.72, 0.78, 0.84, 0.88),
    (0.07, 0.14, 0.18, 0.20, 0.20, 0.20, 0.18, 0.16, 0.14),
    (0.06, 0.05, 0.05, 0.05, 0.04, 0.04, 0.03, 0.02, 0.02),
)
NUM_CELLS = len(Kind) * NUM_LENGTHS


def cell_of(kind: Kind, match_length: int) -> int:
    """Number of the class that a guess falls into; `match_length` is at least 1."""
    length_class = _CLASS_OF[match_length] if match_length < len(_CLASS_OF) else NUM_LENGTHS - 1
    return kind * NUM_LENGTHS + length_class


class SharedRates:
    """Rates over all requests of an engine, from generic ones on."""

    def __init__(self) -> None:
        generic = [rate for rates in _GENERIC_RATES for rate in rates]
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


class RequestRates:
    """Rates of one request, drawn towards the shared ones as long as it has seen little.

    Worked example with a shared weight of 6: a class that is right in half of all guesses, and was right in 3 of 3 of
    this request, has the rate (3 + 6 * 0.5) / (3 + 6) = 2 / 3.
    """

    def __init__(self, shared: SharedRates) -> None:
        self._shared = shared
        self._trials = [0.0] * NUM_CELLS
        self._hits = [0.0] * NUM_CELLS

    def rate(self, cell: int) -> float:
        """How likely a guess of a class is to come true."""
        shared = self._shared.rate(cell)
        return (self._hits[cell] + WEIGHT_OF_SHARED * shared) / (self._trials[cell] + WEIGHT_OF_SHARED)

    def observe(self, cell: int, came_true: bool) -> None:
        """Learn from one guess, for this request and for all."""
        self._shared.observe(cell, came_true)
        self._trials[cell] += 1.0
        if came_true:
            self._hits[cell] += 1.0
