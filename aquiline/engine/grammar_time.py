"""What grammars take of the steps, and when that is more than others have to bear.

Where a text can be read in many ways, every token costs more than the one before. Masks of a large automaton cost much
where an answer comes by for the first time, and nothing from then on. So a grammar may take more than its share of a
step for a while, which counts against all requests that follow it, and what it leaves of its share makes up for that:

    share 20 ms   taken 50, 50, 5, 50   ahead by 30, 60, 45, 75

There are two such accounts. All that a grammar takes counts in one: beyond it, its requests go on without drafts, which
changes none of their tokens. What it would take without drafts too counts in the other: beyond that, they end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto
from weakref import WeakKeyDictionary, WeakSet

from aquiline.config import GrammarConfig
from aquiline.engine.grammar import CompiledGrammar

# So many shares of a step a grammar may be ahead.
MAX_SHARES_AHEAD = 100
OVERDUE = "its grammar takes too much time of each step; give its texts fewer ways to be read"


class GrammarVerdict(Enum):
    """How a request may go on."""

    FINE = auto()
    WITHOUT_DRAFTS = auto()
    OVERDUE = auto()


class _Account:
    """Processor time of grammars, request by request."""

    def __init__(self, limits: GrammarConfig) -> None:
        self._most = limits.max_mask_ms / 1000.0
        self._share = limits.max_mask_mean_ms / 1000.0
        self._taken: dict[str, float] = {}
        self._ahead: WeakKeyDictionary[CompiledGrammar, float] = WeakKeyDictionary()

    def add(self, request_id: str, seconds: float) -> None:
        self._taken[request_id] = self._taken.get(request_id, 0.0) + seconds

    def is_overdrawn(self, request_id: str, grammar: CompiledGrammar) -> bool:
        """Whether a request has taken more in the step that ends than it may, which begins the next one."""
        taken = self._taken.pop(request_id, 0.0)
        ahead = max(0.0, self._ahead.get(grammar, 0.0) + taken - self._share)
        self._ahead[grammar] = min(ahead, MAX_SHARES_AHEAD * self._share)
        return taken > self._most or ahead > MAX_SHARES_AHEAD * self._share

    def is_even(self, grammar: CompiledGrammar) -> bool:
        """Whether nothing is left of what a grammar was ahead."""
        return not self._ahead.get(grammar)

    def forget(self, request_id: str) -> None:
        self._taken.pop(request_id, None)


class GrammarTime:
    """What every request's grammar takes, with its drafts and without."""

    def __init__(self, limits: GrammarConfig) -> None:
        self._whole = _Account(limits)
        self._plain = _Account(limits)
        self._without_drafts: WeakSet[CompiledGrammar] = WeakSet()

    @contextmanager
    def taking(self, request_id: str, is_for_drafts: bool = False) -> Iterator[None]:
        """Count what is done meanwhile against a request."""
        started = time.thread_time()
        yield
        seconds = time.thread_time() - started
        self._whole.add(request_id, seconds)
        if not is_for_drafts:
            self._plain.add(request_id, seconds)

    def judge(self, request_id: str, grammar: CompiledGrammar) -> GrammarVerdict:
        """How a request that follows a grammar may go on behind the step that ends."""
        is_overdue = self._plain.is_overdrawn(request_id, grammar)
        if self._whole.is_overdrawn(request_id, grammar):
            self._without_drafts.add(grammar)
        elif self._whole.is_even(grammar):
            self._without_drafts.discard(grammar)
        if is_overdue:
            return GrammarVerdict.OVERDUE
        return GrammarVerdict.WITHOUT_DRAFTS if grammar in self._without_drafts else GrammarVerdict.FINE

    def forget(self, request_id: str) -> None:
        """A request has ended."""
        self._whole.forget(request_id)
        self._plain.forget(request_id)
