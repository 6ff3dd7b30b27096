"""What an engine wrote lately, as a source of guesses for whoever writes next; bounded in memory."""

from __future__ import annotations

from collections.abc import Sequence

from aquiline.engine.suffix_automaton import NO_MATCH, Match
from aquiline.engine.suffix_guesses import GuessSource

# A reader of a text that was exchanged begins anew with so many of its last tokens.
TOKENS_READ_AGAIN = 64


class OutputHistory:
    """The outputs of requests that have ended, in two halves: when the newer is full, the older is forgotten.

    Args:
        max_tokens: most tokens of both halves together.
    """

    def __init__(self, max_tokens: int) -> None:
        self._tokens_per_half = max(1, max_tokens // 2)
        self.newer = GuessSource()
        self.older = GuessSource()
        self._num_texts = 0

    def add(self, token_ids: Sequence[int]) -> None:
        """Remember an output; of one that is longer than half the history its end."""
        kept = token_ids[-self._tokens_per_half :]
        if self.newer.automaton.num_tokens + len(kept) > self._tokens_per_half:
            self.older, self.newer = self.newer, GuessSource()
        for token_id in kept:
            self.newer.automaton.append(token_id)
        self._num_texts += 1
        self.newer.automaton.append(-self._num_texts)


class HistoryReader:
    """Where one text stands in one half of a history.

    Args:
        is_older: which half.
    """

    def __init__(self, history: OutputHistory, is_older: bool) -> None:
        self._history = history
        self._is_older = is_older
        self.source = self._half()
        self.match: Match = NO_MATCH

    def _half(self) -> GuessSource:
        return self._history.older if self._is_older else self._history.newer

    def follow(self, token_id: int) -> None:
        """Read the next token of the text."""
        self.match = self.source.automaton.read(self.match, token_id)

    def catch_up(self, token_ids: Sequence[int]) -> None:
        """Settle the place in the half, or find it anew, if that is another one by now."""
        if self.source is self._half():
            self.match = self.source.automaton.settled(self.match)
        else:
            self.source, self.match = self._half(), NO_MATCH
            for token_id in token_ids[-TOKENS_READ_AGAIN:]:
                self.follow(token_id)
