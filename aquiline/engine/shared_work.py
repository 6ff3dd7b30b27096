"""Work that several callers wait for, and that ends when none of them does any more."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from threading import Lock
from typing import Generic, TypeVar

from aquiline.withdrawal import Withdrawal, WithdrawnError

Result = TypeVar("Result")


class SharedWork(Generic[Result]):
    """Work that one thread does and others wait for.

    Args:
        abandon: called when the last caller has left before the work was done.

    Attributes:
        withdrawal: of the work, when nobody waits for it.
    """

    def __init__(self, abandon: Callable[[SharedWork[Result]], None]) -> None:
        self.withdrawal = Withdrawal()
        self._abandon = abandon
        self._future: Future[Result] = Future()
        self._lock = Lock()
        self._num_waiting = 0

    @property
    def result(self) -> Result | None:
        """What came of it; None where nothing did or has."""
        return self._future.result() if self._future.done() and self._future.exception() is None else None

    def join(self) -> None:
        """One more caller waits."""
        with self._lock:
            self._num_waiting += 1

    def wait(self, withdrawal: Withdrawal, work: Callable[[], Result] | None) -> Result:
        """What comes of the work, for a caller that has joined.

        Args:
            withdrawal: of this caller alone.
            work: to be done by this caller, who returns no sooner, also when it has withdrawn and others wait; None:
                another one does it.

        Raises:
            WithdrawnError: the caller has withdrawn.
            Exception: whatever the work raises.
        """
        mine: Future[Result] = Future()
        with withdrawal.calling(lambda: self._leave(mine)):
            if work is not None:
                self._do(work)
            self._future.add_done_callback(lambda done: _copy(done, mine))
            return mine.result()

    def _do(self, work: Callable[[], Result]) -> None:
        try:
            self._future.set_result(work())
        except BaseException as error:
            self._future.set_exception(error)
            raise

    def _leave(self, mine: Future[Result]) -> None:
        with suppress(InvalidStateError):
            mine.set_exception(WithdrawnError())
        with self._lock:
            self._num_waiting -= 1
            is_abandoned = not self._num_waiting and not self._future.done()
        if is_abandoned:
            # First, so that whoever asks from now on asks for work that goes on.
            self._abandon(self)
            self.withdrawal.withdraw()


def _copy(done: Future[Result], mine: Future[Result]) -> None:
    error = done.exception()
    with suppress(InvalidStateError):
        mine.set_result(done.result()) if error is None else mine.set_exception(error)
