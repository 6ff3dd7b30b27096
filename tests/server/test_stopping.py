"""A server that is told to stop: what runs gets its time, and whatever does not end by then is ended."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.serving import QUESTION, read_all

STREAM: dict[str, Any] = {"messages": QUESTION, "stream": True, "max_tokens": 4000}
GUIDED: dict[str, Any] = {"messages": QUESTION, "response_format": {"type": "json_object"}}
# Each event is long, so that one that nobody reads soon fills its connection.
UNREAD = STREAM | {"logprobs": True, "top_logprobs": 2, "n": 8}
DRAIN_SECONDS = 1.0
# Uvicorn looks every tenth of a second, and the machine may be busy.
MORE_SECONDS = 12.0


@dataclass(frozen=True)
class Stopping:
    """A server in a process."""

    process: subprocess.Popen[str]
    url: httpx.URL

    def ask(self, body: dict[str, Any], receive_bytes: int | None = None) -> socket.socket:
        client = socket.socket()
        if receive_bytes is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        client.settimeout(20)
        client.connect((self.url.host, self.url.port or 0))
        encoded = json.dumps(body).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(encoded)}\r\n"
        client.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + encoded)
        return client

    def stopped(self) -> str:
        output, errors = self.process.communicate(timeout=20)
        assert "Traceback" not in errors and "never retrieved" not in errors, errors
        assert self.process.returncode == 0, errors
        return output


@contextmanager
def stopping(folder: Path, drain_seconds: float, max_run: int = 1) -> Iterator[Stopping]:
    command = [sys.executable, "-m", "tests.server.scripted_process", str(folder), str(drain_seconds), str(max_run)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield Stopping(process, httpx.URL(process.stdout.readline().strip()))
    finally:
        process.kill()
        process.communicate()


def test_everything_is_ended_when_the_time_to_drain_is_over(toy_folder: Path) -> None:
    with stopping(toy_folder, DRAIN_SECONDS, max_run=16) as server, ExitStack() as stack:
        stream, whole, compiling, unread, idle = (
            stack.enter_context(client)
            for client in (
                server.ask(STREAM),
                server.ask(STREAM | {"stream": False}),
                server.ask(GUIDED),
                server.ask(UNREAD, 4096),
                server.ask({"messages": QUESTION, "max_tokens": 1}),
            )
        )
        assert stream.recv(15) == b"HTTP/1.1 200 OK" and idle.recv(15) == b"HTTP/1.1 200 OK"
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        last = read_all(stream).rpartition(b"data: {")[2]
        assert b'"code":"server_stopping"' in last and last.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert time.monotonic() - began >= DRAIN_SECONDS * 0.9
        for client in (whole, compiling):
            answer = read_all(client)
            assert answer.startswith(b"HTTP/1.1 503 ") and b"server_stopping" in answer
        assert server.stopped() == "stopped\n"
        assert time.monotonic() - began < DRAIN_SECONDS + MORE_SECONDS
        assert b"[DONE]" not in read_all(unread)


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT], ids=["term", "interrupt"])
def test_a_second_signal_stops_at_once(toy_folder: Path, second: signal.Signals) -> None:
    with stopping(toy_folder, 60.0) as server, ExitStack() as stack:
        clients = [stack.enter_context(server.ask(body)) for body in (STREAM, GUIDED, UNREAD)]
        assert clients[0].recv(15) == b"HTTP/1.1 200 OK"
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert server.process.poll() is None
        began = time.monotonic()
        server.process.send_signal(second)
        assert server.stopped() == "stopped\n"
        assert time.monotonic() - began < MORE_SECONDS


def test_without_requests_it_stops_soon(toy_folder: Path) -> None:
    with stopping(toy_folder, 60.0) as server, socket.create_connection((server.url.host, server.url.port or 0)):
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.stopped() == "stopped\n"
        assert time.monotonic() - began < MORE_SECONDS


def test_who_leaves_does_not_hold_up_the_end(toy_folder: Path) -> None:
    with stopping(toy_folder, 60.0) as server:
        with server.ask(STREAM) as stream, server.ask(GUIDED):
            assert stream.recv(15) == b"HTTP/1.1 200 OK"
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            assert server.process.poll() is None
        began = time.monotonic()
        assert server.stopped() == "stopped\n"
        assert time.monotonic() - began < MORE_SECONDS
