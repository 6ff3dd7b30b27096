"""Guesses of what comes next in one text, from what came before in it or in another."""

from __future__ import annotations

from typing import NamedTuple

from aquiline.engine.lookup_rates import NUM_LENGTHS, Kind, length_class
from aquiline.engine.suffix_automaton import Match, SuffixAutomaton

_FIRST_KINDS = ((Kind.NEWEST, Kind.NEWEST_AGAIN), (Kind.ONLY, Kind.ONLY_AGAIN))


class Guess(NamedTuple):
    """A token that may come next.

    Attributes:
        cell: class of the guess, see `lookup_rates`.
        state: of the part of the text that the token followed.
        next_state, next_length: of that part with the token behind it.
    """

    token_id: int
    cell: int
    state: int
    next_state: int
    next_length: int


class GuessSource:
    """A text as a source of guesses.

    A negative token separates texts: it matches nothing and is never guessed.
    """

    def __init__(self) -> None:
        self.automaton = SuffixAutomaton()
        # States from which the last guess was right.
        self._confirmed: set[int] = set()

    def guesses(self, match: Match) -> list[Guess]:
        """At most two guesses from a match, the better one first; none from an empty one.

        At the end of the text nothing follows the part: then its longest suffix speaks that something did follow. So a
        text that repeats itself is continued beyond its end, as often as it takes.
        """
        automaton = self.automaton
        followers = automaton.continuations(match)
        while not followers and match.state:
            match = automaton.shortened(match)
            followers = automaton.continuations(match)
        state, length = match
        if not state:
            return []
        found: list[Guess] = []
        tokens = reversed(followers)
        first = next(tokens)
        is_only = len(followers) == 1
        own_class = length_class(length)
        if first >= 0:
            kind = _FIRST_KINDS[is_only][state in self._confirmed]
            found.append(Guess(first, kind * NUM_LENGTHS + own_class, state, followers[first], length + 1))
        if not is_only:
            second, kind = next(tokens), Kind.OLDER
        else:
            state, length = automaton.shortened(match)
            if not state:
                return found
            followers = automaton.continuations(Match(state, length))
            second = next((token_id for token_id in reversed(followers) if token_id != first), -1)
            kind = Kind.SHORTER
        if second >= 0:
            found.append(Guess(second, kind * NUM_LENGTHS + own_class, state, followers[second], length + 1))
        return found

    def confirm(self, guess: Guess, is_right: bool) -> None:
        """Remember whether the first guess from a match came true."""
        if is_right:
            self._confirmed.add(guess.state)
        else:
            self._confirmed.discard(guess.state)
