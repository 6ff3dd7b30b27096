"""Guesses of what comes next in one text, from what came before in it or in another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from aquiline.engine.lookup_rates import Kind, cell_of
from aquiline.engine.suffix_automaton import Match, SuffixAutomaton


class Guess(NamedTuple):
    """A token that may come next.

    Attributes:
        cell: class of the guess, see `lookup_rates`.
        match: the part that the token followed.
    """

    token_id: int
    cell: int
    match: Match


class GuessSource:
    """A text as a source of guesses.

    A negative token separates texts: it matches nothing and is never guessed.
    """

    def __init__(self) -> None:
        self.automaton = SuffixAutomaton()
        # States from which the last guess was right.
        self._confirmed: set[int] = set()

    def guesses(self, match: Match) -> Iterator[Guess]:
        """At most two guesses from a match, the better one first; none from an empty one.

        At the end of the text nothing follows the part: then its longest suffix speaks that something did follow. So a
        text that repeats itself is continued beyond its end, as often as it takes.
        """
        automaton = self.automaton
        count = automaton.num_continuations(match)
        while not count and match.length:
            match = automaton.shortened(match)
            count = automaton.num_continuations(match)
        if not match.length:
            return
        tokens = automaton.continuations(match)
        first = next(tokens)
        kinds = (Kind.ONLY, Kind.ONLY_AGAIN) if count == 1 else (Kind.NEWEST, Kind.NEWEST_AGAIN)
        if first >= 0:
            yield Guess(first, cell_of(kinds[match.state in self._confirmed], match.length), match)
        if count > 1:
            second = next(tokens)
            if second >= 0:
                yield Guess(second, cell_of(Kind.OLDER, match.length), match)
            return
        shorter = automaton.shortened(match)
        if shorter.length:
            for token_id in automaton.continuations(shorter):
                if token_id != first:
                    if token_id >= 0:
                        yield Guess(token_id, cell_of(Kind.SHORTER, match.length), shorter)
                    return

    def confirm(self, match: Match, is_right: bool) -> None:
        """Remember whether the first guess from a match came true."""
        if is_right:
            self._confirmed.add(match.state)
        else:
            self._confirmed.discard(match.state)
