"""The second proposer: what a request continues with is looked up in its own text, and in what the engine wrote lately.

It needs no model. Summaries, edits and answers that quote their source repeat long parts of the prompt, and a tree
node from the right place costs no more than one from a draft model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from aquiline.engine.host_tree import HostTree
from aquiline.engine.lookup_growth import grow_trees
from aquiline.engine.lookup_rates import SourceRates
from aquiline.engine.lookup_reader import LookupReader
from aquiline.engine.output_history import OutputHistory
from aquiline.engine.row_worth import RowWorth
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


class LookupIndex(Protocol):
    """Looks up continuations.

    A token that is committed costs constant time on average, whatever the text; so does a node that is proposed.
    """

    @property
    def num_requests(self) -> int:
        """Requests of which something is kept."""

    def read(self, requests: Sequence[Request], least_survival: float) -> bool:
        """Take in tokens that are new; whether any request has a guess that is at least so likely.

        Where there is none, `propose` finds nothing as long as a node has to be at least so likely.
        """

    def propose(
        self, requests: Sequence[Request], depths: Sequence[int], max_draft_tokens: int, worth: RowWorth
    ) -> list[HostTree]:
        """Nodes below the last token of each request, as long as they are worth a row of the step.

        All compete: the most likely node of all requests is taken next.

        Args:
            depths: most levels for each request.
            max_draft_tokens: most nodes of each.
            worth: of the step that will hold all of them; settled when this returns.
        """

    def forget(self, request: Request) -> None:
        """A request has ended: what it wrote may serve others, if there is a history, and its own index goes."""


class Lookup:
    """The definition of what is looked up, in plain Python.

    Args:
        history_tokens: most tokens of ended outputs to remember; 0: every request knows only its own text.
    """

    def __init__(self, history_tokens: int = 0) -> None:
        self._history = OutputHistory(history_tokens) if history_tokens else None
        self._rates = {is_sampled: SourceRates(is_sampled) for is_sampled in (False, True)}
        self._readers: dict[str, LookupReader] = {}

    @property
    def num_requests(self) -> int:
        """See `LookupIndex`."""
        return len(self._readers)

    def read(self, requests: Sequence[Request], least_survival: float) -> bool:
        """See `LookupIndex`."""
        readers = self._read(requests)
        return any(reader.has_guess(least_survival) for reader in readers)

    def propose(
        self, requests: Sequence[Request], depths: Sequence[int], max_draft_tokens: int, worth: RowWorth
    ) -> list[HostTree]:
        """See `LookupIndex`."""
        return grow_trees(self._read(requests), depths, max_draft_tokens, worth)

    def _read(self, requests: Sequence[Request]) -> list[LookupReader]:
        readers = [self._reader(request) for request in requests]
        for reader, request in zip(readers, requests, strict=True):
            reader.read(request.token_ids, request.num_prompt_tokens)
        return readers

    def _reader(self, request: Request) -> LookupReader:
        reader = self._readers.get(request.request_id)
        if reader is None:
            rates = self._rates[request.params.temperature > 0.0]
            reader = self._readers[request.request_id] = LookupReader(rates, self._history)
        return reader

    def forget(self, request: Request) -> None:
        """See `LookupIndex`."""
        self._readers.pop(request.request_id, None)
        if self._history is not None and request.num_output_tokens:
            self._history.add(request.output_token_ids)
