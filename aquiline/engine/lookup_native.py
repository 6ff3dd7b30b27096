"""Looking up continuations in native code: one call a step for all requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from aquiline.engine.host_tree import NO_NODES, HostTree
from aquiline.engine.lookup import Lookup, LookupIndex
from aquiline.engine.lookup_rates import (
    LENGTH_CLASSES,
    MOST_TRIALS,
    WEIGHT_OF_GENERIC,
    WEIGHT_OF_SHARED,
    generic_rates,
)
from aquiline.engine.output_history import TOKENS_READ_AGAIN
from aquiline.engine.row_worth import RowWorth
from aquiline.kernels.cpu.extension import is_available, native
from aquiline.request import Request

if TYPE_CHECKING:
    from aquiline.kernels.cpu import _native


def new_lookup(history_tokens: int) -> LookupIndex:
    """The quickest index of this installation."""
    return NativeLookup(history_tokens) if is_available() else Lookup(history_tokens)


class NativeLookup:
    """Proposes what `Lookup` defines.

    Memory: 24 bytes for each state and 16 to 24 for each transition of an automaton, of which a text has at most 2 and
    3 per token, and as much again at most while they grow; texts of a language take about 120 bytes per token.

    Args:
        history_tokens: most tokens of ended outputs to remember; 0: every request knows only its own text.
    """

    def __init__(self, history_tokens: int = 0) -> None:
        module = native()
        greedy, sampled = (
            module.rate_rules(
                list(LENGTH_CLASSES), generic_rates(is_sampled), WEIGHT_OF_GENERIC, WEIGHT_OF_SHARED, MOST_TRIALS
            )
            for is_sampled in (False, True)
        )
        self._memory: _native.LookupMemory = module.LookupMemory(greedy, sampled, history_tokens)
        self._keeps_history = history_tokens > 0
        self._new_reader = module.LookupReader
        self._new_worth = module.LookupWorth
        self._read_texts: Callable[[list[_native.LookupReader], list[list[int]], float], bool]
        self._read_texts = module.read_lookup_texts
        self._grow = module.grow_lookup_trees
        self._readers: dict[str, _native.LookupReader] = {}

    @property
    def num_requests(self) -> int:
        """See `LookupIndex`."""
        return len(self._readers)

    @property
    def num_bytes(self) -> int:
        """Memory that is allocated for texts."""
        return self._memory.num_history_bytes + sum(reader.num_bytes for reader in self._readers.values())

    def read(self, requests: Sequence[Request], least_survival: float) -> bool:
        """See `LookupIndex`."""
        known = self._readers
        readers = [known.get(request.request_id) or self._reader(request) for request in requests]
        return self._read_texts(readers, [request.token_ids for request in requests], least_survival)

    def propose(
        self, requests: Sequence[Request], depths: Sequence[int], max_draft_tokens: int, worth: RowWorth
    ) -> list[HostTree]:
        """See `LookupIndex`."""
        base = worth.base
        growing = self._new_worth(
            base.num_rows,
            base.expected_tokens,
            base.other_time,
            worth.num_first_rows,
            worth.tree_time,
            worth.always_pays,
            worth.least_survival,
        )
        readers = [self._readers.get(request.request_id) or self._reader(request) for request in requests]
        texts = [request.token_ids for request in requests]
        found = self._grow(readers, texts, depths, max_draft_tokens, growing, worth.costs)
        worth.settle_at(growing.num_rows, growing.expected_tokens)
        return [NO_NODES if columns is None else HostTree(*columns) for columns in found]

    def _reader(self, request: Request) -> _native.LookupReader:
        reader: _native.LookupReader = self._new_reader(
            self._memory, request.params.temperature > 0.0, request.num_prompt_tokens, TOKENS_READ_AGAIN
        )
        self._readers[request.request_id] = reader
        return reader

    def forget(self, request: Request) -> None:
        """See `LookupIndex`."""
        self._readers.pop(request.request_id, None)
        if self._keeps_history and request.num_output_tokens:
            self._memory.remember(request.output_token_ids)
