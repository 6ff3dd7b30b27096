"""What grammars take of the steps, and when that is more than others have to bear.

Where a text can be read in many ways, every token costs more than the one before. Masks of a large automaton cost much
where an answer comes by for the first time, and nothing from then on. So a grammar may take more than its share of a
step for a while, which counts against all requests that follow it, and what it leaves of its share makes up for that:

    share 20 ms   taken 50, 50, 5, 50   ahead by 30, 60, 45, 75
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from aquiline.config import GrammarConfig
from aquiline.engine.grammar import CompiledGrammar

# So many shares of a step a grammar may be ahead.
MAX_SHARES_AHEAD = 100
OVERDUE = "its grammar takes too much time of each step; give its texts fewer ways to be read"


class GrammarTime:
    """Processor time of grammars, request by request."""

    def __init__(self, limits: GrammarConfig) -> None:
        self._most = limits.max_mask_ms / 1000.0
        self._share = limits.max_mask_mean_ms / 1000.0
        self._taken: dict[str, float] = {}
        self._ahead: WeakKeyDictionary[CompiledGrammar, float] = WeakKeyDictionary()

    @contextmanager
    def taking(self, request_id: str) -> Iterator[None]:
        """Count what is done meanwhile against a request."""
        started = time.thread_time()
        yield
        self._taken[request_id] = self._taken.get(request_id, 0.0) + time.thread_time() - started

    def is_overdue(self, request_id: str, grammar: CompiledGrammar) -> bool:
        """Whether a request that follows a grammar has taken more in the step that ends than it may."""
        taken = self._taken.pop(request_id, 0.0)
        ahead = max(0.0, self._ahead.get(grammar, 0.0) + taken - self._share)
        self._ahead[grammar] = min(ahead, MAX_SHARES_AHEAD * self._share)
        return taken > self._most or ahead > MAX_SHARES_AHEAD * self._share

    def forget(self, request_id: str) -> None:
        """A request has ended."""
        self._taken.pop(request_id, None)
