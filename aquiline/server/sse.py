"""Server-sent events, and noticing that the client has gone."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from aquiline.errors import AquilineError
from aquiline.server.body_writer import BodyWriter
from aquiline.server.errors import failure_of
from aquiline.server.event_pump import EventPump, EventSource

CLIENT_CLOSED = 499
LINE_BREAKS = re.compile("\x85|\u2028|\u2029".encode())
DONE = b"data: [DONE]\n\n"
Result = TypeVar("Result")


class ClientGoneError(AquilineError):
    """The client closed its connection before the answer was complete."""


def event(content: Any) -> bytes:
    """One event that holds `content` as JSON."""
    return b"data: " + on_one_line(content) + b"\n\n"


def on_one_line(content: Any) -> bytes:
    """`content` as JSON.

    The format of events knows no other line breaks than CR and LF, but many clients split at those of Unicode as well.
    """
    encoded = orjson.dumps(content)
    return encoded if encoded.isascii() else LINE_BREAKS.sub(_escaped, encoded)


def _escaped(character: re.Match[bytes]) -> bytes:
    return b"\\u%04x" % ord(character[0].decode())


class EventStream(Response):
    """Streams events and ends when they end, when something fails, or when the client goes.

    Args:
        events: sent at once, as soon as they are there.
        on_close: called once, however the stream ends.
    """

    media_type = "text/event-stream"

    def __init__(self, events: EventSource, on_close: Callable[[], None]) -> None:
        self._events = events
        self._on_close = on_close
        self.background = None
        self.body = b""
        self.status_code = 200
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self.raw_headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body: BodyWriter = scope["state"]["body_writer"]
        try:
            body.announce()
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await unless_gone(receive, self._send_all(body, send))
        except ClientGoneError:
            pass
        finally:
            self._on_close()

    async def _send_all(self, body: BodyWriter, send: Send) -> None:
        last = DONE
        try:
            await EventPump(body, self._events).run()
        except AquilineError as error:
            if body.is_full:
                # Who does not read will not read why it ends either.
                body.cut()
                return
            last = event(failure_of(error).body) + DONE
        body.announce_last(len(last))
        await send({"type": "http.response.body", "body": last, "more_body": False})


async def unless_gone(receive: Callable[[], Awaitable[Any]], work: Coroutine[Any, Any, Result]) -> Result:
    """Do `work`; it is cancelled when the client closes its connection before the work is done.

    Raises:
        ClientGoneError: it has.
    """
    worker = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_wait_until_gone(receive))
    try:
        await asyncio.wait((worker, watcher), return_when=asyncio.FIRST_COMPLETED)
        if not worker.done():
            raise ClientGoneError("the client closed its connection")
        return worker.result()
    finally:
        watcher.cancel()
        worker.cancel()
        await asyncio.gather(worker, watcher, return_exceptions=True)


async def _wait_until_gone(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
