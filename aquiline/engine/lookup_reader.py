"""One request's text as it is read: what it matches, and which guesses came true."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aquiline.engine.lookup_rates import RequestRates, SourceRates
from aquiline.engine.output_history import HistoryReader, OutputHistory
from aquiline.engine.suffix_automaton import Match
from aquiline.engine.suffix_guesses import GuessSource


class LookupReader:
    """One request's place in all sources of guesses, and the rates of each."""

    def __init__(self, rates: SourceRates, history: OutputHistory | None) -> None:
        self.num_read = 0
        self._own = GuessSource()
        self._own_rates = RequestRates(rates.own)
        self._history_rates = RequestRates(rates.history)
        self._halves = [] if history is None else [HistoryReader(history, is_older) for is_older in (False, True)]

    def read(self, token_ids: Sequence[int], num_prompt_tokens: int) -> None:
        """Take in the tokens that are new; those behind the prompt show which guesses were right."""
        automaton = self._own.automaton
        for place in range(self.num_read, min(num_prompt_tokens, len(token_ids))):
            automaton.append(token_ids[place])
        for place in range(max(self.num_read, num_prompt_tokens), len(token_ids)):
            _learn(self._own, automaton.own_match(), self._own_rates, token_ids[place])
            automaton.append(token_ids[place])
        for half in self._halves:
            for place in range(self.num_read, len(token_ids)):
                if place >= num_prompt_tokens:
                    _learn(half.source, half.match, self._history_rates, token_ids[place])
                half.follow(token_ids[place])
            half.catch_up(token_ids)
        self.num_read = len(token_ids)

    def starts(self) -> Iterator[tuple[GuessSource, list[float], Match]]:
        """Where guesses behind the last token begin, and the rates of each source."""
        yield self._own, self._own_rates.rates, self._own.automaton.own_match()
        for half in self._halves:
            yield half.source, self._history_rates.rates, half.match

    def has_guess(self, least_survival: float) -> bool:
        """Whether anything that may come next is at least so likely."""
        return any(
            rates[guess.cell] >= least_survival
            for source, rates, match in self.starts()
            for guess in source.guesses(match)
        )


def _learn(source: GuessSource, match: Match, rates: RequestRates, token_id: int) -> None:
    guesses = source.guesses(match)
    for guess in guesses:
        rates.observe(guess.cell, guess.token_id == token_id)
    if guesses:
        source.confirm(guesses[0], guesses[0].token_id == token_id)
