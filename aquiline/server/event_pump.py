"""Writes events to a client at the very moment when the engine has told of them.

A task that waits for news would be woken once for every event; with many streams that costs more than the event itself.
So whoever brings the news writes as well, and a task takes over only where the client is slow.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Protocol

from starlette.types import Send


class EventSource(Protocol):
    """Events that come about step by step."""

    def subscribe(self, on_news: Callable[[], None]) -> None:
        """Have `on_news` called, on the event loop, whenever there is something to take."""

    def take(self) -> bytes:
        """What has come since the last call.

        Raises:
            AquilineError: the answer cannot go on.
        """

    @property
    def is_over(self) -> bool:
        """Whether nothing will come any more."""


class EventPump:
    """Sends the events of one answer.

    Args:
        send: takes the parts of a body, as in ASGI.
    """

    def __init__(self, send: Send, source: EventSource) -> None:
        self._send = send
        self._source = source
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._slow: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Send until the source is over.

        Raises:
            AquilineError: the answer cannot go on.
        """
        self._source.subscribe(self._advance)
        self._advance()
        try:
            await self._over
        finally:
            if self._slow is not None:
                self._slow.cancel()

    def _advance(self) -> None:
        """Send what is new, unless the client has not yet taken what was sent before."""
        if self._slow is not None or self._over.done():
            return
        # Whatever goes wrong belongs to the task of this answer, and not to whoever brings news to all answers.
        try:
            rest = begun(self._send_part())
        except Exception as error:
            self._over.set_exception(error)
            return
        if rest is not None:
            self._slow = asyncio.ensure_future(rest)
            self._slow.add_done_callback(self._catch_up)
        elif self._source.is_over:
            self._over.set_result(None)

    async def _send_part(self) -> None:
        part = self._source.take()
        if part:
            await self._send({"type": "http.response.body", "body": part, "more_body": True})

    def _catch_up(self, sent: asyncio.Task[None]) -> None:
        """The client is as far as the server again; meanwhile there may be news."""
        self._slow = None
        if sent.cancelled() or self._over.done():
            return
        error = sent.exception()
        if error is not None:
            self._over.set_exception(error)
        elif self._source.is_over:
            self._over.set_result(None)
        else:
            self._advance()


def begun(work: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None] | None:
    """Do the part of some work that needs no waiting, at once and without a task.

    Returns:
        The rest of the work; None when it is done.
    """
    try:
        waits_for = work.send(None)
    except StopIteration:
        return None
    return _rest(work, waits_for)


async def _rest(work: Coroutine[Any, Any, None], waits_for: object) -> None:
    await _resumed(work, waits_for)


@types.coroutine
def _resumed(work: Coroutine[Any, Any, None], waits_for: object) -> Generator[object, None, None]:
    """Go on with a coroutine that has begun, when the future that it waits for is done."""
    try:
        yield waits_for
    except BaseException:
        work.close()
        raise
    yield from work
