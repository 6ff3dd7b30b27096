"""Whether what comes true of late is still the share of the foretold that came true before."""

from __future__ import annotations

# Hits may stay this share below what is expected, or above it, for ever.
ALLOWANCE = 0.1
# What is missing beyond that, or too much, may come to so many hits; chance alone makes it once in 1,000 trials where
# half of them hit or fewer, and far less often where most do.
MOST_HITS = 10.0
LEAST_SHARE = 0.01
MOST_SHARE = 2.0


class ChangeWatch:
    """Compares hits with what is foretold, and finds where both parted (a two-sided CUSUM, Page 1954).

    Worked example, .7 hits expected of every trial, of which none comes: each trial adds .63 to what is missing, and
    after the sixteenth it is 10.08. Those sixteen trials say what is to be expected from now on.
    """

    def __init__(self) -> None:
        self._missing, self._surplus = _Side(), _Side()

    def see(self, hits: float, foretold: float, share: float) -> float | None:
        """Some trials.

        Args:
            foretold: hits that the draft's confidence promised.
            share: of them that came true before.

        Returns:
            The share that comes true since something changed; None: nothing has.
        """
        expected = share * foretold
        found = self._missing.add(expected * (1.0 - ALLOWANCE) - hits, hits, foretold)
        if found is None:
            found = self._surplus.add(hits - expected * (1.0 + ALLOWANCE), hits, foretold)
        if found is not None:
            self._missing, self._surplus = _Side(), _Side()
        return found


class _Side:
    """Too few hits, or too many, summed since they last were neither."""

    def __init__(self) -> None:
        self._excess = self._hits = self._foretold = 0.0

    def add(self, excess: float, hits: float, foretold: float) -> float | None:
        self._excess += excess
        self._hits += hits
        self._foretold += foretold
        if self._excess <= 0.0:
            self._excess = self._hits = self._foretold = 0.0
        if self._excess < MOST_HITS:
            return None
        return min(MOST_SHARE, max(LEAST_SHARE, self._hits / max(1e-9, self._foretold)))
