"""How far the loading of a model has come."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

LoadCallback = Callable[[int, int], None]
"""Called with how many weights have been loaded, and of how many."""


class LoadProgress:
    """Counts weights as their tensors are read, each tensor once."""

    def __init__(self, report: LoadCallback) -> None:
        self._report = report
        self._waiting: dict[tuple[str, str], int] = {}
        self._num_done = 0
        self._num_total = 0

    def expect(self, model: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Tensors of `model`, a word that tells target and draft apart, are going to be read."""
        sizes = {(model, name): math.prod(shape) for name, shape in shapes.items()}
        self._waiting |= sizes
        self._num_total += sum(sizes.values())

    def read(self, model: str, name: str) -> None:
        """A tensor was read; the second time it counts for nothing."""
        size = self._waiting.pop((model, name), 0)
        if size:
            self._num_done += size
            self._report(self._num_done, self._num_total)

    def finish(self) -> None:
        """Nothing more is read: what was not needed counts as done."""
        if self._num_done < self._num_total:
            self._num_done = self._num_total
            self._report(self._num_done, self._num_total)
