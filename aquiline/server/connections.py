"""Connections that take their time: a request has to arrive soon, and nobody keeps others out by sending none.

    opened, or a request begins --------> its last byte is here --> answered --> idle --> the next begins
      ^ waiting: at most so many seconds                                          ^ waiting, as long as uvicorn allows

At most so many connections are open. One more closes the one that has been waiting for the longest time; where none
waits, because all are being answered, the new one is turned away.

Who reads slowly is not written to until there is room, and who does not read at all is cut off after the time that a
request may take.
"""

from __future__ import annotations

import asyncio
import functools
from typing import Any

from aquiline.server.body_writer import FULL_BYTES, BodyWriter
from aquiline.server.careful_http import CarefulProtocol
from aquiline.server.errors import Failure, late_failure
from aquiline.server.settings import ServerSettings

# A body that is late is answered by the application; its connection is closed here where that does not help.
SECONDS_TO_ANSWER = 1.0


class ConnectionLimits:
    """What the connections of one server share.

    Attributes:
        seconds: within which a request has to be here; 0 never mind.
        seconds_to_read: within which an answer has to be taken; 0 never mind.
        waiting: connections of which nobody waits for an answer, the longest first.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self.max_connections = settings.max_connections
        self.seconds = settings.request_body_timeout
        self.seconds_to_read = settings.request_timeout
        self.waiting: dict[TimedProtocol, None] = {}


class TimedProtocol(CarefulProtocol):
    """HTTP on one connection, with a time for requests to arrive."""

    def __init__(self, limits: ConnectionLimits, **settings: Any) -> None:
        super().__init__(**settings)
        self._limits = limits
        self._timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has come."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=FULL_BYTES)
        if len(self.connections) > self._limits.max_connections:
            longest = next(iter(self._limits.waiting), None)
            if longest is None:
                self.answer_alone(
                    Failure(503, "too many connections are open; ask again later", "server_busy_error",
                            code="too_many_connections", headers={"Retry-After": "1"})
                )  # fmt: skip
                return
            longest.leave()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        self._stop_waiting()
        self._stop_watching()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client has to read before more is written."""
        super().pause_writing()
        self._watch_unread()

    def resume_writing(self) -> None:
        """The client has read."""
        super().resume_writing()
        self._stop_watching()
        if self.is_waiting:
            self._watch_unread()

    def on_message_begin(self) -> None:
        """The first byte of a request is here."""
        super().on_message_begin()
        self._wait()

    def on_headers_complete(self) -> None:
        """All but the body of a request is here."""
        super().on_headers_complete()
        # Its task begins with the next turn of the event loop, so that it finds this.
        if self.cycle is not None and self.cycle.scope is self.scope:
            self.scope["state"]["body_writer"] = BodyWriter(self.cycle, self.flow, self.transport)

    def on_message_complete(self) -> None:
        """The last byte of a request is here."""
        super().on_message_complete()
        if self.has_begun:
            return
        self._stop_waiting()
        if self.cycle.response_complete:
            # It was answered before it was here, and uvicorn has stopped to look after the connection.
            self._wait()

    def on_response_complete(self) -> None:
        """A request is answered; the next one may take its time to begin."""
        super().on_response_complete()
        if self.is_waiting and not self.transport.is_closing():
            self._limits.waiting[self] = None
        if self.transport.get_write_buffer_size():
            self._watch_unread()

    def leave(self) -> None:
        """Make room for others."""
        self._stop_waiting()
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        elif self._is_being_read:
            self.answer_alone(late_failure(self._limits.seconds))
        else:
            self.transport.close()

    @property
    def _is_being_read(self) -> bool:
        """Whether a request has begun of which the application knows nothing."""
        return self.has_begun and not self.has_head

    @property
    def _is_busy(self) -> bool:
        """Whether an earlier request is still being answered, or this one waits behind it: no fault of the client."""
        return bool(self.pipeline) or (not self.has_head and not self.is_waiting)

    def _wait(self) -> None:
        self._stop_waiting()
        if self.is_waiting:
            self._limits.waiting[self] = None
        if self._limits.seconds:
            self._timer = self.loop.call_later(self._limits.seconds, self._expire)

    def _stop_waiting(self) -> None:
        self._limits.waiting.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        if self.transport.is_closing():
            return
        if self._is_busy:
            self._wait()
        elif self.has_head:
            self._timer = self.loop.call_later(SECONDS_TO_ANSWER, self.transport.abort)
        else:
            self.leave()

    def _watch_unread(self) -> None:
        if self._limits.seconds_to_read and self._unread_timer is None:
            self._unread_timer = self.loop.call_later(self._limits.seconds_to_read, self.cut_off_unread)

    def _stop_watching(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def cut_off_unread(self) -> None:
        """End the connection if nothing else happens on it than that its client does not read."""
        self._unread_timer = None
        if self.flow.write_paused or (self.is_waiting and self.transport.get_write_buffer_size()):
            self.transport.abort()


def protocol_factory(settings: ServerSettings) -> Any:
    """What uvicorn makes the protocol of each connection with."""
    return functools.partial(TimedProtocol, ConnectionLimits(settings))
