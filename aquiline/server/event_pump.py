"""Writes events to a client at the very moment when the engine has told of them.

A task that waits for news would be woken once for every event; with many streams that costs more than the event itself.
So whoever brings the news writes as well, and a task takes over only where the client is slow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol


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

    @property
    def has_failed(self) -> bool:
        """Whether `take` will raise."""


class Body(Protocol):
    """Where events go."""

    @property
    def is_full(self) -> bool:
        """Whether the client has to read before more is written."""

    def write(self, part: bytes) -> None:
        """Send a part."""

    async def emptied(self) -> None:
        """Wait until it is not full."""


class EventPump:
    """Sends the events of one answer."""

    __slots__ = ("_body", "_over", "_slow", "_source")

    def __init__(self, body: Body, source: EventSource) -> None:
        self._body = body
        self._source = source
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._slow: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Send until the source is over.

        Raises:
            AquilineError: the answer cannot go on; a client that does not read holds this up no longer.
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
        if self._over.done() or (self._slow is not None and not self._source.has_failed):
            return
        # Whatever goes wrong belongs to the task of this answer, and not to whoever brings news to all answers.
        try:
            if self._body.is_full and not self._source.has_failed:
                self._slow = asyncio.ensure_future(self._body.emptied())
                self._slow.add_done_callback(self._catch_up)
                return
            part = self._source.take()
            if part:
                self._body.write(part)
        except Exception as error:
            self._over.set_exception(error)
            return
        if self._source.is_over:
            self._over.set_result(None)

    def _catch_up(self, emptied: asyncio.Task[None]) -> None:
        """The client has read; meanwhile there may be news."""
        self._slow = None
        if not emptied.cancelled():
            self._advance()
