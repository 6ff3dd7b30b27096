"""A server of the OpenAI API, as the client sees it."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp

from aquiline.benchmark.serving.event_reader import EventReader
from aquiline.benchmark.serving.reading import COMPLETE, Reading, TokenCounts
from aquiline.errors import EndpointError

EndpointKind = Literal["chat", "completions"]
PATHS: Mapping[EndpointKind, str] = {"chat": "chat/completions", "completions": "completions"}
CONNECT_SECONDS = 10.0
SHORT_SECONDS = 30.0
# Idle connections are given up before servers close them (uvicorn after 5 s): a request would meet the closing.
IDLE_SECONDS = 2.0
MESSAGE_LENGTH = 200
# Parts of a chat delta that a reader sees; the second is what servers of reasoning models call their thoughts.
READABLE = ("content", "reasoning_content")


@dataclass(frozen=True)
class EndpointSettings:
    """Where a server is and how it is asked.

    Attributes:
        url: as for OpenAI's client, usually ending in `/v1`.
        api_key: None: requests carry none.
        timeout: most seconds of one request.
        asks_usage: requests ask for the usage at the end of the stream.
    """

    url: str
    api_key: str | None = None
    kind: EndpointKind = "chat"
    timeout: float = 600.0
    asks_usage: bool = True

    @property
    def root(self) -> str:
        """The server's own address, where its metrics are."""
        return self.url.rstrip("/").removesuffix("/v1")


class Endpoint:
    """Asks a server and times what comes; to be used with `async with`.

    Every request has a connection for itself as soon as others are busy: none waits for another.
    """

    def __init__(self, settings: EndpointSettings) -> None:
        self.settings = settings
        self._url = f"{settings.url.rstrip('/')}/{PATHS[settings.kind]}"

    async def __aenter__(self) -> Endpoint:
        headers = {"Accept-Encoding": "identity"}
        if self.settings.api_key is not None:
            headers["Authorization"] = f"Bearer {self.settings.api_key}"
        self._session = aiohttp.ClientSession(
            headers=headers,
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(self, *failure: Any) -> None:
        await self._session.close()

    async def model_names(self) -> Sequence[str] | None:
        """The models that the server names; None where it has no list.

        Raises:
            EndpointError: it cannot be reached, does not let the client in, or answers in another way.
        """
        url = f"{self.settings.url.rstrip('/')}/models"
        try:
            status, text = await self._get(url)
            if status in (404, 405, 501):
                return None
            if status != 200:
                raise EndpointError(refusal(f"GET {url}", status, text))
            return [str(entry["id"]) for entry in json.loads(text)["data"]]
        except aiohttp.InvalidURL:
            raise EndpointError(f"{url} is no address; give http://HOST:PORT/v1") from None
        except (aiohttp.ClientError, TimeoutError) as error:
            raise EndpointError(f"{url} cannot be reached: {_reason(error)}; is the server running there?") from None
        except (ValueError, KeyError, TypeError):
            raise EndpointError(f"{url} lists no models as OpenAI's API does; give the URL of such an API") from None

    async def metrics(self) -> str | None:
        """The server's figures in Prometheus's text format; None where it tells none."""
        try:
            status, text = await self._get(f"{self.settings.root}/metrics")
        except (aiohttp.ClientError, TimeoutError):
            return None
        return text if status == 200 else None

    async def _get(self, url: str) -> tuple[int, str]:
        async with asyncio.timeout(SHORT_SECONDS), self._session.get(url, allow_redirects=False) as response:
            return response.status, (await response.read()).decode("utf-8", "replace")

    async def ask(self, body: Mapping[str, Any], due: float | None = None) -> Reading:
        """Send one request and read its answer to the end; failures become part of the reading.

        Args:
            body: fields of the request; that it is streamed, with usage, is added.
            due: when it was to be sent, by `time.perf_counter`; None: now.
        """
        fields = {**body, "stream": True}
        if self.settings.asks_usage:
            fields["stream_options"] = {"include_usage": True}
        content = json.dumps(fields).encode()
        sent = time.perf_counter()
        answer = _Answer(sent if due is None else due, sent)
        try:
            async with asyncio.timeout(self.settings.timeout):
                await self._read(content, answer)
        except aiohttp.ClientError as error:
            answer.fail("connection", _reason(error))
        except TimeoutError:
            answer.fail("timeout", f"no end after {self.settings.timeout:g} seconds")
        return answer.reading(time.perf_counter())

    async def _read(self, content: bytes, answer: _Answer) -> None:
        headers = {"Content-Type": "application/json"}
        async with self._session.post(self._url, data=content, headers=headers, allow_redirects=False) as response:
            if response.status != 200:
                text = (await response.read()).decode("utf-8", "replace")
                answer.fail(str(response.status), refusal(f"POST {self._url}", response.status, text))
                return
            reader = EventReader()
            async for piece in response.content.iter_any():
                now = time.perf_counter()
                answer.take(reader.feed(piece), now)


class _Answer:
    """An answer that is being read."""

    def __init__(self, due: float, sent: float) -> None:
        self._due = due
        self._sent = sent
        self._appeared: list[float] = []
        self._texts: list[str] = []
        self._num_events = 0
        self._counts: TokenCounts | None = None
        self._is_over = False
        self._outcome = COMPLETE
        self._message = ""

    def take(self, events: Sequence[bytes], now: float) -> None:
        """Events that came together at `now`."""
        num_before = self._num_events
        for data in events:
            if data == b"[DONE]":
                self._is_over = True
            else:
                self._take_one(data)
        if self._num_events > num_before:
            self._appeared.append(now)

    def _take_one(self, data: bytes) -> None:
        try:
            event = json.loads(data)
            if event.get("error"):
                self.fail("error", str(event["error"])[:MESSAGE_LENGTH])
            for choice in event.get("choices") or ():
                self._take_choice(choice)
            usage = event.get("usage")
            if usage:
                self._counts = TokenCounts(int(usage["prompt_tokens"]), int(usage["completion_tokens"]))
        except (ValueError, TypeError, KeyError, AttributeError):
            self.fail(
                "error", f"an event is not as in OpenAI's API: {data[:MESSAGE_LENGTH].decode('utf-8', 'replace')}"
            )

    def _take_choice(self, choice: Mapping[str, Any]) -> None:
        delta = choice.get("delta") or {}
        text = choice.get("text") or "".join(delta.get(name) or "" for name in READABLE)
        if delta.get("tool_calls"):
            text += "".join(call["function"].get("arguments") or " " for call in delta["tool_calls"])
        if text:
            self._num_events += 1
            self._texts.append(text)
        self._is_over = self._is_over or choice.get("finish_reason") is not None

    def fail(self, outcome: str, message: str) -> None:
        """The answer is not what was asked for; the first reason counts."""
        if self._outcome == COMPLETE:
            self._outcome, self._message = outcome, message

    def reading(self, ended: float) -> Reading:
        """What was read."""
        if not self._is_over:
            self.fail("cut", "the stream ended before the answer")
        return Reading(
            due=self._due,
            sent=self._sent,
            ended=ended,
            appeared=tuple(self._appeared),
            outcome=self._outcome,
            message=self._message,
            text="".join(self._texts),
            num_events=self._num_events,
            counts=self._counts,
        )


def refusal(request: str, status: int, text: str) -> str:
    """One line about an answer that is none."""
    try:
        content = json.loads(text)
        message = content["error"]["message"] if isinstance(content["error"], dict) else content["error"]
    except (ValueError, TypeError, KeyError):
        message = text
    said = " ".join(str(message).split())[:MESSAGE_LENGTH]
    line = f"{request} is answered with status {status}: {said}" if said else f"{request} is answered with {status}"
    hints = {401: "; name the right key with --api-key-file", 403: "; name the right key with --api-key-file"}
    return line + hints.get(status, "")


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError) and error.errno is not None:
        # The whole message speaks of TLS even where there is none. Names that are not found have negative numbers.
        return os.strerror(error.errno) if error.errno > 0 else str(error.strerror)
    return str(error) or type(error).__name__
