"""The second proposer: what a request continues with is looked up in its own text, and in what the engine wrote lately.

It needs no model. Summaries, edits and answers that quote their source repeat long parts of the prompt, and a tree
node from the right place costs no more than one from a draft model.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from aquiline.engine.host_tree import NO_NODES, HostTree
from aquiline.engine.lookup_rates import RequestRates, SharedRates
from aquiline.engine.output_history import HistoryReader, OutputHistory
from aquiline.engine.row_worth import RowWorth
from aquiline.engine.suffix_automaton import Match
from aquiline.engine.suffix_guesses import Guess, GuessSource
from aquiline.request import Request


@dataclass(frozen=True, slots=True)
class LookupLimits:
    """How large the looked-up tree of one request may be.

    Attributes:
        max_draft_tokens: most nodes.
        max_depth: most levels.
    """

    max_draft_tokens: int
    max_depth: int


class _Reader:
    """One request's place in all sources of guesses, and the rates of each."""

    def __init__(self, rates: SharedRates, history_rates: SharedRates, history: OutputHistory | None) -> None:
        self.num_read = 0
        self._own = GuessSource()
        self._own_rates = RequestRates(rates)
        self._history_rates = RequestRates(history_rates)
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


def _learn(source: GuessSource, match: Match, rates: RequestRates, token_id: int) -> None:
    guesses = source.guesses(match)
    for guess in guesses:
        rates.observe(guess.cell, guess.token_id == token_id)
    if guesses:
        source.confirm(guesses[0], guesses[0].token_id == token_id)


class Lookup:
    """Looks up continuations.

    A token that is committed costs constant time on average, whatever the text; so does a node that is proposed.

    Args:
        history_tokens: most tokens of ended outputs to remember; 0: every request knows only its own text.
    """

    def __init__(self, history_tokens: int = 0) -> None:
        self._history = OutputHistory(history_tokens) if history_tokens else None
        self._rates = SharedRates()
        self._history_rates = SharedRates()
        self._readers: dict[str, _Reader] = {}

    @property
    def num_requests(self) -> int:
        """Requests of which something is kept."""
        return len(self._readers)

    def propose(self, request: Request, limits: LookupLimits, worth: RowWorth) -> HostTree:
        """Nodes below the request's last token, the most likely first, as long as they are worth a row of the step."""
        reader = self._readers.get(request.request_id)
        if reader is None:
            reader = self._readers[request.request_id] = _Reader(self._rates, self._history_rates, self._history)
        reader.read(request.token_ids, request.num_prompt_tokens)
        if limits.max_draft_tokens < 1 or limits.max_depth < 1:
            return NO_NODES
        return _Growth(limits, worth).grown(reader)

    def forget(self, request: Request) -> None:
        """A request has ended: what it wrote may serve others, if there is a history, and its own index goes."""
        self._readers.pop(request.request_id, None)
        if self._history is not None and request.num_output_tokens:
            self._history.add(request.output_token_ids)


class _Growth:
    """One tree while it grows, the most likely node first."""

    def __init__(self, limits: LookupLimits, worth: RowWorth) -> None:
        self._limits = limits
        self._worth = worth
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._survivals: list[float] = []
        # (-survival, number of the guess, parent, depth, guess, source, rates); no two guesses have one number.
        self._waiting: list[tuple[float, int, int, int, Guess, GuessSource, list[float]]] = []
        self._num_guesses = 0

    def grown(self, reader: _Reader) -> HostTree:
        """The tree behind the last token that was read."""
        max_draft_tokens, max_depth = self._limits.max_draft_tokens, self._limits.max_depth
        tokens, worth, waiting = self._tokens, self._worth, self._waiting
        number: dict[tuple[int, int], int] = {}
        for source, rates, match in reader.starts():
            self._wait(source, rates, match, 1.0, 0, 1)
        while waiting:
            negative_survival, _, parent, depth, guess, source, rates = heapq.heappop(waiting)
            node = number.get((parent, guess.token_id))
            if node is None:
                if len(tokens) == max_draft_tokens or -negative_survival < worth.least_survival:
                    break
                worth.take(-negative_survival)
                tokens.append(guess.token_id)
                self._parents.append(parent)
                self._survivals.append(-negative_survival)
                node = number[parent, guess.token_id] = len(tokens)
            if depth < max_depth:
                match = Match(guess.next_state, guess.next_length)
                self._wait(source, rates, match, -negative_survival, node, depth + 1)
        kept = worth.settle()
        if not kept:
            return NO_NODES
        return HostTree(tuple(tokens[:kept]), tuple(self._parents[:kept]), tuple(self._survivals[:kept]))

    def _wait(
        self, source: GuessSource, rates: list[float], match: Match, survival: float, parent: int, depth: int
    ) -> None:
        for guess in source.guesses(match):
            likely = survival * rates[guess.cell]
            if likely >= self._worth.least_survival:
                self._num_guesses += 1
                heapq.heappush(self._waiting, (-likely, self._num_guesses, parent, depth, guess, source, rates))
