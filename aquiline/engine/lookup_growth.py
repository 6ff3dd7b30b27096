"""Looked-up trees of all requests of a step, grown together: the most likely node of all comes next."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from aquiline.engine.host_tree import NO_NODES, HostTree
from aquiline.engine.lookup_reader import LookupReader
from aquiline.engine.row_worth import RowWorth
from aquiline.engine.suffix_automaton import Match
from aquiline.engine.suffix_guesses import Guess, GuessSource


def grow_trees(
    readers: Sequence[LookupReader], depths: Sequence[int], max_draft_tokens: int, worth: RowWorth
) -> list[HostTree]:
    """A tree behind the last token of each reader.

    Args:
        depths: most levels of each tree.
        max_draft_tokens: most nodes of each.
    """
    growth = _Growth(max_draft_tokens, worth)
    for reader, max_depth in zip(readers, depths, strict=True):
        growth.begin(reader, max_depth)
    return growth.grown()


@dataclass(slots=True)
class _GrowingTree:
    max_depth: int
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    survivals: list[float] = field(default_factory=list)
    number: dict[tuple[int, int], int] = field(default_factory=dict)

    def add(self, parent: int, token_id: int, survival: float) -> int:
        self.tokens.append(token_id)
        self.parents.append(parent)
        self.survivals.append(survival)
        self.number[parent, token_id] = len(self.tokens)
        return len(self.tokens)

    def first(self, num_nodes: int) -> HostTree:
        if not num_nodes:
            return NO_NODES
        columns = self.tokens, self.parents, self.survivals
        return HostTree(*(tuple(column[:num_nodes]) for column in columns))  # type: ignore[arg-type]


@dataclass(slots=True)
class _Place:
    """Below which node of which tree guesses stand, and where they come from."""

    tree: int
    parent: int
    depth: int
    source: GuessSource
    rates: list[float]


class _Growth:
    def __init__(self, max_draft_tokens: int, worth: RowWorth) -> None:
        self._max_draft_tokens = max_draft_tokens
        self._worth = worth
        self._trees: list[_GrowingTree] = []
        # (-survival, number of the guess, guess, place); no two guesses have one number.
        self._waiting: list[tuple[float, int, Guess, _Place]] = []
        self._num_guesses = 0
        # The tree of every node, in the order in which they came.
        self._order: list[int] = []

    def begin(self, reader: LookupReader, max_depth: int) -> None:
        """One more tree; its first level waits for its turn."""
        tree = len(self._trees)
        self._trees.append(_GrowingTree(max_depth))
        if max_depth > 0 and self._max_draft_tokens > 0:
            for source, rates, match in reader.starts():
                self._wait(_Place(tree, 0, 1, source, rates), match, 1.0)

    def grown(self) -> list[HostTree]:
        """The trees of those that began."""
        waiting, worth = self._waiting, self._worth
        while waiting:
            negative_survival, _, guess, place = heapq.heappop(waiting)
            survival, tree = -negative_survival, self._trees[place.tree]
            if survival < worth.least_survival:
                break
            node = tree.number.get((place.parent, guess.token_id))
            if node is None:
                if len(tree.tokens) == self._max_draft_tokens:
                    continue
                worth.take(survival)
                self._order.append(place.tree)
                node = tree.add(place.parent, guess.token_id, survival)
            if place.depth < tree.max_depth:
                below = _Place(place.tree, node, place.depth + 1, place.source, place.rates)
                self._wait(below, Match(guess.next_state, guess.next_length), survival)
        kept = self._order[: worth.settle()]
        return [tree.first(kept.count(index)) for index, tree in enumerate(self._trees)]

    def _wait(self, place: _Place, match: Match, survival: float) -> None:
        for guess in place.source.guesses(match):
            likely = survival * place.rates[guess.cell]
            if likely >= self._worth.least_survival:
                self._num_guesses += 1
                heapq.heappush(self._waiting, (-likely, self._num_guesses, guess, place))
