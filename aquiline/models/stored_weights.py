"""Weights that stay in their file until they are asked for, so that a model never lies in memory twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

Weight = TypeVar("Weight")
ReadCallback = Callable[[str], None]


class StoredWeights(Mapping[str, Weight], Generic[Weight]):
    """Weights by name, read anew whenever one is looked up.

    Args:
        readers: fetch the weight of each name; what they raise comes through.
        on_read: called with a name after its weight was read.
    """

    def __init__(self, readers: Mapping[str, Callable[[], Weight]], on_read: ReadCallback | None = None) -> None:
        self._readers = readers
        self._on_read = on_read

    def __getitem__(self, name: str) -> Weight:
        weight = self._readers[name]()
        if self._on_read is not None:
            self._on_read(name)
        return weight

    def __contains__(self, name: object) -> bool:
        return name in self._readers

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)
