"""HTTP on one connection, by uvicorn, and what that leaves open: endless heads, what is no HTTP, other protocols.

An offer to speak another protocol is not taken: the request is answered as if there were none.

A request that cannot be understood is refused where nothing before it is still being answered. Otherwise the connection
ends after those answers: a refusal in the middle of one would become a part of it.
"""

from __future__ import annotations

import http

import httptools
import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from aquiline.server.errors import Failure

MAX_URL_BYTES = 16384
MAX_HEAD_BYTES = 65536
FRAMING_HEADERS = (b"content-length", b"transfer-encoding")
MALFORMED = Failure(400, "the request is not valid HTTP/1.1", "invalid_request_error", code="invalid_http")
LONG_URL = Failure(414, f"the URL is longer than {MAX_URL_BYTES} bytes; shorten it", "invalid_request_error")
LONG_HEAD = Failure(431, f"the headers are longer than {MAX_HEAD_BYTES} bytes; shorten them", "invalid_request_error")
ENCODED = Failure(501, "only the transfer encoding chunked is known here; send no other", "invalid_request_error")


class CarefulProtocol(HttpToolsProtocol):
    """One connection.

    Attributes:
        has_begun: a byte of a request is here that is not complete.
        has_head: all of it but the body is here.
    """

    has_begun = False
    has_head = False
    _num_head_bytes = 0
    _failure = MALFORMED
    _is_deaf = False
    _is_rereading = False

    @property
    def is_waiting(self) -> bool:
        """Whether no answer is due on this connection."""
        return self.cycle is None or self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        self._unset_keepalive_if_required()
        try:
            while data and not self._is_deaf:
                data = self._feed(data)
        except httptools.HttpParserError:
            self._refuse()

    def _feed(self, data: bytes) -> bytes:
        """Have `data` parsed; returns what is to be parsed anew."""
        is_within_head = self.has_begun and not self.has_head
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # The parser hands the connection over here; what follows the head is a body like any other.
            self._begin_body_anew()
            return data[upgrade.args[0] :]
        if is_within_head and not self.has_head:
            # A header is told of when it is complete, and one without end never is.
            self._count_head(len(data))
        return b""

    def _begin_body_anew(self) -> None:
        """Parse what follows as the body of the request whose head is known."""
        framing = [b"%b: %b\r\n" % pair for pair in self.headers if pair[0] in FRAMING_HEADERS]
        self.parser = httptools.HttpRequestParser(self)
        self._is_rereading = True
        self.parser.feed_data(b"POST / HTTP/1.1\r\n" + b"".join(framing) + b"\r\n")

    def on_message_begin(self) -> None:
        """The first byte of a request is here."""
        if not self._is_rereading:
            super().on_message_begin()
            self.has_begun, self.has_head = True, False
            self._num_head_bytes = 0

    def on_url(self, url: bytes) -> None:
        """A part of the URL is here."""
        if self._is_rereading:
            return
        super().on_url(url)
        if len(self.url) > MAX_URL_BYTES:
            self._failure = LONG_URL
            raise httptools.HttpParserError("long URL")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header is here, or a trailer behind a body, which nobody has asked for."""
        if self._is_rereading:
            return
        self._count_head(len(name) + len(value) + len(b": \r\n"))
        if self.has_head:
            return
        if name.lower() == b"transfer-encoding" and value.strip().lower() != b"chunked":
            self._failure = ENCODED
            raise httptools.HttpParserError("unknown encoding")
        super().on_header(name, value)

    def _count_head(self, num_bytes: int) -> None:
        self._num_head_bytes += num_bytes
        if self._num_head_bytes > MAX_HEAD_BYTES:
            self._failure = LONG_HEAD
            raise httptools.HttpParserError("long head")

    def on_headers_complete(self) -> None:
        """All but the body of a request is here."""
        if not self._is_rereading:
            super().on_headers_complete()
            self.has_head = True
        self._is_rereading = False

    def on_message_complete(self) -> None:
        """The last byte of a request is here, or of its head where the body is still to be parsed."""
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        self.has_begun = self.has_head = False

    def _refuse(self) -> None:
        """Nothing that follows can be understood."""
        self._is_deaf = True
        if self.is_waiting:
            self.answer_alone(self._failure)
        elif self.has_head and self.pipeline:
            # Its body will never be complete: when its turn comes, it has none.
            self.cycle.body, self.cycle.more_body, self.cycle.keep_alive = bytearray(), False, False
            self.cycle.message_event.set()
        elif self.has_head and not self.cycle.response_started:
            self.answer_alone(self._failure)
        else:
            self.cycle.keep_alive = False

    def answer_alone(self, failure: Failure) -> None:
        """Answer without the application, and end the connection."""
        body = orjson.dumps(failure.body)
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"}
        lines = "".join(f"{name}: {value}\r\n" for name, value in (headers | dict(failure.headers)).items())
        status = f"{failure.status} {http.HTTPStatus(failure.status).phrase}"
        self.transport.write(f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body)
        self.transport.close()
