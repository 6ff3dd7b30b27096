"""Clients that send slowly, or nothing at all: they are shown out, and keep nobody else out."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from aquiline.server.settings import ServerSettings
from aquiline.tokenizer import Tokenizer
from tests.server.scripted import ScriptedEngine, ScriptedLLM
from tests.server.serving import QUESTION, Running, read_all, running

BODY = json.dumps({"messages": QUESTION, "max_tokens": 3}).encode()
STREAM = json.dumps({"messages": QUESTION, "max_tokens": 30, "stream": True}).encode()
SECONDS = 0.4


def head(length: int, method: str = "POST", path: str = "/v1/chat/completions") -> bytes:
    lines = f"{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    return lines.encode()


@pytest.fixture
def engine(toy_folder: Path) -> ScriptedEngine:
    return ScriptedEngine(Tokenizer.from_path(toy_folder / "target"), "The eagle flies over the sea. " * 9)


@contextmanager
def timed(engine: ScriptedEngine, toy_folder: Path, **changes: Any) -> Iterator[Running]:
    settings = ServerSettings(**({"request_body_timeout": SECONDS} | changes))
    with running(ScriptedLLM(Tokenizer.from_path(toy_folder / "target")), engine, settings) as server:
        yield server


def connect(server: Running) -> socket.socket:
    url = httpx.URL(server.url)
    return socket.create_connection((url.host, url.port or 0), timeout=10)


def assert_late(answer: bytes) -> None:
    start, _, body = answer.partition(b"\r\n\r\n")
    assert start.startswith(b"HTTP/1.1 408 ") and b"connection: close" in start.lower()
    error = json.loads(body)["error"]
    assert error["code"] == "request_too_slow" and f"{SECONDS:g} seconds" in error["message"]


@pytest.mark.parametrize(
    "begin",
    [head(len(BODY)) + BODY[:-1], head(len(BODY)), head(len(BODY))[:40], b"P"],
    ids=["body", "no_body", "head", "byte"],
)
def test_a_request_that_does_not_arrive_is_408_and_ends_the_connection(
    engine: ScriptedEngine, toy_folder: Path, begin: bytes
) -> None:
    with timed(engine, toy_folder) as server, connect(server) as client:
        began = time.monotonic()
        client.sendall(begin)
        assert_late(read_all(client))
        assert SECONDS * 0.9 <= time.monotonic() - began < 8
        assert server.client.num_unfinished == 0
        assert httpx.post(f"{server.url}/v1/chat/completions", json=json.loads(BODY)).status_code == 200


def test_a_body_that_trickles_is_late_all_the_same(engine: ScriptedEngine, toy_folder: Path) -> None:
    with timed(engine, toy_folder) as server, connect(server) as client:
        client.sendall(head(len(BODY)))
        deadline = time.monotonic() + 8
        try:
            for place in range(len(BODY)):
                assert time.monotonic() < deadline
                client.sendall(BODY[place : place + 1])
                time.sleep(SECONDS / 10)
        except (BrokenPipeError, ConnectionResetError):
            return
        pytest.fail("the server read it to its end")


@pytest.mark.parametrize("begin", [b"", head(100, "GET", "/health") + b"a"], ids=["silent", "body_nobody_reads"])
def test_connections_that_wait_for_nothing_are_closed(engine: ScriptedEngine, toy_folder: Path, begin: bytes) -> None:
    with timed(engine, toy_folder) as server, connect(server) as client:
        client.sendall(begin)
        assert read_all(client)[:15] == (b"HTTP/1.1 200 OK" if begin else b"")


def test_answers_may_take_longer_than_requests(engine: ScriptedEngine, toy_folder: Path) -> None:
    """Two requests at once on one connection, and half of a third, which waits for its own fault alone."""
    engine.before_step = lambda: time.sleep(3 * SECONDS / 30)
    with timed(engine, toy_folder) as server, connect(server) as client:
        client.sendall(2 * (head(len(STREAM)) + STREAM) + head(len(BODY))[:30])
        answer = read_all(client)
    assert answer.count(b"HTTP/1.1 200 OK") == 2 and answer.count(b"data: [DONE]") == 2


def test_a_connection_is_kept_between_requests(engine: ScriptedEngine, toy_folder: Path) -> None:
    with timed(engine, toy_folder) as server, connect(server) as client:
        for _ in range(2):
            client.sendall(head(len(BODY)) + BODY)
            assert client.recv(65536).startswith(b"HTTP/1.1 200 OK")
            time.sleep(2 * SECONDS)


def test_whoever_waits_longest_makes_room(engine: ScriptedEngine, toy_folder: Path) -> None:
    with timed(engine, toy_folder, max_connections=4, request_body_timeout=60.0) as server, ExitStack() as stack:
        slow = [stack.enter_context(connect(server)) for _ in range(12)]
        for client in slow:
            client.sendall(head(len(BODY))[:50])
        for _ in range(6):
            assert httpx.post(f"{server.url}/v1/chat/completions", json=json.loads(BODY)).status_code == 200
        # Those whose first bytes the server has read are told why.
        assert all(read_all(client)[:12] in (b"", b"HTTP/1.1 408") for client in slow[:8])


def test_answers_are_never_cut_for_newcomers(engine: ScriptedEngine, toy_folder: Path) -> None:
    engine.before_step = lambda: time.sleep(0.1)
    with timed(engine, toy_folder, max_connections=2) as server, ExitStack() as stack:
        served = [stack.enter_context(connect(server)) for _ in range(2)]
        for client in served:
            client.sendall(head(len(STREAM)) + STREAM)
            assert client.recv(15) == b"HTTP/1.1 200 OK"
        refused = httpx.get(f"{server.url}/health")
        assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["code"] == "too_many_connections"
        engine.before_step = None
        for client in served:
            received = b""
            while b"data: [DONE]" not in received:
                received += client.recv(65536)
        assert httpx.get(f"{server.url}/health").status_code == 200
