"""Work that nobody waits for any more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock


class WithdrawnError(Exception):
    """Work was given up because nobody waits for it."""


class Withdrawal:
    """Tells work that its result is no longer wanted; any thread may."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._is_withdrawn = False
        self._callbacks: list[Callable[[], None]] = []

    @property
    def is_withdrawn(self) -> bool:
        return self._is_withdrawn

    def withdraw(self) -> None:
        """Nobody wants the result; once is enough."""
        with self._lock:
            if self._is_withdrawn:
                return
            self._is_withdrawn = True
            for callback in self._callbacks:
                callback()

    def check(self) -> None:
        """Go no further where nobody wants the result.

        Raises:
            WithdrawnError: nobody does.
        """
        if self._is_withdrawn:
            raise WithdrawnError

    @contextmanager
    def calling(self, callback: Callable[[], None]) -> Iterator[None]:
        """Have something short called when the result is withdrawn, at once where it is already; never afterwards."""
        with self._lock:
            if self._is_withdrawn:
                callback()
            else:
                self._callbacks.append(callback)
        try:
            yield
        finally:
            with self._lock:
                if callback in self._callbacks:
                    self._callbacks.remove(callback)
