"""What every request passes before its route: a name and a log line, the key, the size of its body."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aquiline.server.errors import Failure, late_failure
from aquiline.server.metrics import Metrics

OPEN_PATHS = frozenset(
    {"/", "/health", "/ready", "/docs", "/openapi.json", "/page/app.js", "/page/docs.js", "/page/style.css"}
)
LOGGER = logging.getLogger("aquiline.server.access")


@dataclass
class RequestRecord:
    """What is known about one HTTP request when it ends; never its prompt or answer.

    Attributes:
        figures: added by routes: token counts, finish reasons and the like.
    """

    request_id: str
    method: str
    path: str
    started_at: float = field(default_factory=time.perf_counter)
    status: int = 0
    figures: dict[str, Any] = field(default_factory=dict)


class RequestLog:
    """Names every request (`X-Request-Id`, the client's own if it is harmless) and logs it when it ends.

    HEAD is answered as GET; the connection leaves out the body.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if re.fullmatch(r"[A-Za-z0-9._-]{1,64}", given) else secrets.token_hex(12)
        record = RequestRecord(request_id, scope["method"], scope["path"])
        scope = {**scope, "method": "GET" if scope["method"] == "HEAD" else scope["method"]}
        scope.setdefault("state", {})["record"] = record

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = record.request_id
            await send(message)

        try:
            await self._app(scope, receive, send_named)
        finally:
            seconds = time.perf_counter() - record.started_at
            # Only paths that exist: whoever invents others must not invent series.
            self._metrics.observe_http(getattr(scope.get("route"), "path", "other"), record.status)
            shown = {"request_id": request_id, "method": record.method, "path": record.path, "status": record.status}
            LOGGER.info("request", extra={"fields": shown | {"seconds": round(seconds, 6)} | record.figures})


class KeyCheck:
    """Lets only those in who know a key; comparing takes the same time wherever a wrong key differs."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_open = scope["type"] != "http" or not self._digests or scope["path"] in OPEN_PATHS
        if is_open or scope["method"] == "OPTIONS" or self._knows_key(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        failure = Failure(
            401,
            "the API key is missing or wrong; send it as Authorization: Bearer KEY",
            "authentication_error",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
        await respond(failure, scope, receive, send)

    def _knows_key(self, headers: Headers) -> bool:
        kind, _, key = headers.get("authorization", "").partition(" ")
        given = _digest(key.strip().encode("latin-1", "replace"))
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]
        return kind.lower() == "bearer" and any(matches)


class BodyLimit:
    """Refuses bodies that are too long, by their declared length or while they come in, and those that come too slowly.

    Args:
        max_seconds: within which a body has to be here; 0 never mind.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, max_seconds: float) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._max_seconds = max_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdigit() and int(declared[:20]) > self._max_bytes:
            await respond(self._too_long(), scope, receive, send)
            return
        try:
            await self._app(scope, self._limited(receive), send)
        except BodyRefusedError as error:
            await respond(error.failure, scope, receive, send)

    def _limited(self, receive: Receive) -> Receive:
        num_bytes = 0
        is_complete = False
        deadline = asyncio.get_running_loop().time() + self._max_seconds if self._max_seconds else None

        async def limited() -> Message:
            nonlocal num_bytes, is_complete
            if is_complete:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise BodyRefusedError(late_failure(self._max_seconds)) from None
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_bytes:
                raise BodyRefusedError(self._too_long())
            is_complete = not message.get("more_body", False)
            return message

        return limited

    def _too_long(self) -> Failure:
        message = f"the body is longer than {self._max_bytes} bytes, which is the limit of this server; shorten it"
        return Failure(413, message, "invalid_request_error", code="body_too_long")


class BodyRefusedError(BaseException):
    """No more of a body is read; no part of an application that reads it may swallow this."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


async def respond(failure: Failure, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with a failure."""
    await JSONResponse(failure.body, failure.status, dict(failure.headers))(scope, receive, send)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
