"""Writes the body of a stream straight to its connection.

Through ASGI every event would pass a message, a coroutine and the checks of each layer, which costs more than writing:

    head, end     application -> middleware -> uvicorn -> connection
    events        application ------------------------> connection

A client that does not read is not written to: at most `FULL_BYTES` and one part wait for it in this process.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl

FULL_BYTES = 65536


class BodyWriter:
    """The body of one answer, of a length that nobody knows before its end.

    Args:
        cycle: uvicorn's record of the request and its answer.
        flow: tells whether the connection takes more.
    """

    __slots__ = ("_cycle", "_flow", "_transport")

    def __init__(self, cycle: Any, flow: FlowControl, transport: asyncio.Transport) -> None:
        self._cycle = cycle
        self._flow = flow
        self._transport = transport

    def announce(self) -> None:
        """Call it before the head is sent: to a client of HTTP/1.0, which knows no chunks, the body ends with the
        connection."""
        if self._cycle.scope["http_version"] == "1.0":
            self._cycle.chunked_encoding = False
            self._cycle.expected_content_length = sys.maxsize

    def announce_last(self, num_bytes: int) -> None:
        """Call it before the last part is sent, which is so long."""
        if not self._cycle.chunked_encoding:
            self._cycle.expected_content_length = num_bytes

    @property
    def is_full(self) -> bool:
        """Whether the client has to read before more is written."""
        return self._flow.write_paused

    def write(self, part: bytes) -> None:
        """Send a part that is not empty, or drop it when the client has gone."""
        if self._cycle.disconnected:
            return
        if self._cycle.chunked_encoding:
            part = b"%x\r\n%b\r\n" % (len(part), part)
        self._transport.write(part)

    async def emptied(self) -> None:
        """Wait until the client has read, or gone."""
        await self._flow.drain()

    def cut(self) -> None:
        """End the connection at once, and drop what has not been read."""
        self._transport.abort()
