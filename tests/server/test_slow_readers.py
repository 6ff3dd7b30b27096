"""Clients that do not read what they asked for: they cost little memory, hold up nobody, and do not stay."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from aquiline.server.body_writer import FULL_BYTES
from aquiline.server.prompts import PromptLimits
from aquiline.server.settings import ServerSettings
from aquiline.tokenizer import Tokenizer
from tests.server.scripted import MAX_TOKENS, ScriptedEngine, ScriptedLLM
from tests.server.serving import QUESTION, Running, keep_little_unread, running

SECONDS = 1.5
# More than fits into a connection whose client does not read.
LONG: dict[str, Any] = {"messages": QUESTION, "logprobs": True, "top_logprobs": 2, "n": 2, "max_tokens": 1500}
SHORT: dict[str, Any] = {"messages": QUESTION, "stream": True, "max_tokens": 20}


@pytest.fixture
def engine(toy_folder: Path) -> ScriptedEngine:
    return ScriptedEngine(Tokenizer.from_path(toy_folder / "target"), "The eagle flies over the sea. " * 150)


@contextmanager
def serving(engine: ScriptedEngine, toy_folder: Path, **changes: Any) -> Iterator[Running]:
    tokenizer = Tokenizer.from_path(toy_folder / "target")
    limits = PromptLimits(2 * MAX_TOKENS, tokenizer.vocab_size)
    with running(ScriptedLLM(tokenizer), engine, ServerSettings(**changes), limits) as server:
        keep_little_unread(server.server)
        yield server


def ask_and_never_read(server: Running, *bodies: dict[str, Any]) -> socket.socket:
    url = httpx.URL(server.url)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(10)
    client.connect((url.host, url.port))
    for body in bodies:
        encoded = json.dumps(body).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(encoded)}\r\n"
        client.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + encoded)
    return client


def wait_until_there(server: Running) -> None:
    while not server.server.server_state.connections:
        time.sleep(0.01)


def wait_until_gone(server: Running, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while server.server.server_state.connections:
        assert time.monotonic() < deadline, "the connection is still there"
        time.sleep(0.02)


@pytest.mark.parametrize("is_streamed", [True, False], ids=["stream", "whole"])
def test_who_never_reads_does_not_outlive_the_request_timeout(
    engine: ScriptedEngine, toy_folder: Path, is_streamed: bool
) -> None:
    engine.max_run = 64
    with serving(engine, toy_folder, request_timeout=SECONDS) as server:
        began = time.monotonic()
        with ask_and_never_read(server, LONG | {"stream": is_streamed}):
            wait_until_there(server)
            wait_until_gone(server, 20)
            assert time.monotonic() - began >= SECONDS * 0.9
        assert server.client.num_unfinished == 0


def test_what_waits_behind_an_unread_answer_goes_with_it(engine: ScriptedEngine, toy_folder: Path) -> None:
    engine.max_run = 64
    body = LONG | {"stream": True}
    with (
        serving(engine, toy_folder, request_timeout=SECONDS) as server,
        ask_and_never_read(server, body, SHORT | {"stream": False}),
    ):
        wait_until_there(server)
        wait_until_gone(server, 20)


def test_unread_events_take_little_memory_and_hold_up_nobody(engine: ScriptedEngine, toy_folder: Path) -> None:
    engine.before_step = lambda: time.sleep(0.001)
    most = 0
    with serving(engine, toy_folder) as server:
        with ask_and_never_read(server, LONG | {"stream": True}):
            wait_until_full(server)
            for _ in range(10):
                began = time.monotonic()
                answer = httpx.post(f"{server.url}/v1/chat/completions", json=SHORT, timeout=10)
                # An event a token, but where the loop was late one event tells of several.
                assert answer.text.endswith("data: [DONE]\n\n") and '"finish_reason":"length"' in answer.text
                assert 11 < answer.text.count("data: ") <= 22 and time.monotonic() - began < 5
                most = max(most, buffer_of(server)[0])
        wait_until_gone(server, 10)
        assert 0 < most < 3 * FULL_BYTES


def wait_until_full(server: Running) -> None:
    deadline = time.monotonic() + 20
    while buffer_of(server)[1] < 1:
        assert time.monotonic() < deadline, "the client may still be written to"
        time.sleep(0.01)


def buffer_of(server: Running) -> tuple[int, int]:
    """Most bytes that wait for one client, and how many clients have to read before more is written to them."""
    told: list[tuple[int, int]] = []
    is_told = threading.Event()

    def look() -> None:
        connections: list[Any] = list(server.server.server_state.connections)
        sizes = [connection.transport.get_write_buffer_size() for connection in connections]
        told.append((max(sizes, default=0), sum(connection.flow.write_paused for connection in connections)))
        is_told.set()

    server.client.post(look)
    assert is_told.wait(10)
    return told[0]


def test_a_reader_that_pauses_misses_nothing(engine: ScriptedEngine, toy_folder: Path) -> None:
    engine.max_run = 16
    body = LONG | {"stream": True}
    with serving(engine, toy_folder) as server:
        quick = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).text
        with ask_and_never_read(server, body) as client:
            wait_until_full(server)
            time.sleep(0.5)
            received = b""
            while not received.endswith(b"0\r\n\r\n"):
                received += client.recv(2**20)
    assert tokens_of(unchunked(received).decode()) == tokens_of(quick)


def unchunked(answer: bytes) -> bytes:
    rest, whole = answer.partition(b"\r\n\r\n")[2], []
    while (size := int(rest.partition(b"\r\n")[0], 16)) > 0:
        start = rest.index(b"\r\n") + 2
        whole.append(rest[start : start + size])
        rest = rest[start + size + 2 :]
    return b"".join(whole)


def tokens_of(events: str) -> dict[int, list[Any]]:
    """The text and the log-probabilities of every choice."""
    grown: dict[int, list[Any]] = {}
    for line in events.split("\n\n"):
        if line.startswith("data: {"):
            for choice in json.loads(line[6:])["choices"]:
                known = grown.setdefault(choice["index"], ["", []])
                known[0] += choice["delta"].get("content", "")
                known[1] += (choice["logprobs"] or {"content": []})["content"]
    return grown
