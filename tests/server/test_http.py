"""Unusual HTTP: each gets an answer that its client understands, and the server goes on."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from aquiline.server.settings import ServerSettings
from aquiline.tokenizer import Tokenizer
from tests.server.scripted import ScriptedEngine, ScriptedLLM
from tests.server.serving import QUESTION, Running, running

SCRIPT = "The eagle flies over the sea."
WHOLE = json.dumps({"messages": QUESTION}).encode()
STREAM = json.dumps({"messages": QUESTION, "stream": True}).encode()
JSON = "Content-Type: application/json\r\n"


@pytest.fixture(scope="module")
def server(toy_folder: Path) -> Iterator[Running]:
    tokenizer = Tokenizer.from_path(toy_folder / "target")
    settings = ServerSettings(request_body_timeout=1.0)
    with running(ScriptedLLM(tokenizer), ScriptedEngine(tokenizer, SCRIPT), settings) as server:
        yield server


def exchange(server: Running, sent: bytes) -> bytes:
    """Everything that comes until the server ends the connection."""
    url = httpx.URL(server.url)
    received = b""
    with socket.create_connection((url.host, url.port or 0), timeout=20) as client:
        client.sendall(sent)
        try:
            while part := client.recv(65536):
                received += part
        except ConnectionResetError:
            pass
    assert httpx.get(f"{server.url}/health").status_code == 200
    return received


def request(body: bytes, headers: str = "", path: str = "/v1/chat/completions", version: str = "1.1") -> bytes:
    head = f"POST {path} HTTP/{version}\r\nHost: a\r\n{JSON}{headers}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def text_of(events: bytes) -> str:
    lines = [json.loads(line[6:]) for line in events.split(b"\n\n") if line.startswith(b"data: {")]
    return "".join(choice["delta"].get("content", "") for event in lines for choice in event["choices"])


@pytest.mark.parametrize("headers", ["", "Connection: keep-alive\r\n"], ids=["plain", "keep_alive"])
def test_a_stream_of_http_1_0_ends_with_its_connection(server: Running, headers: str) -> None:
    head, _, body = exchange(server, request(STREAM, headers, version="1.0")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ") and b"connection: close" in head
    assert b"transfer-encoding" not in head and b"content-length" not in head
    assert body.startswith(b"data: {") and body.endswith(b"data: [DONE]\n\n") and text_of(body) == SCRIPT


def test_a_whole_answer_of_http_1_0_has_its_length(server: Running) -> None:
    head, _, body = exchange(server, request(WHOLE, version="1.0")).partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in head and b"connection: close" in head
    assert json.loads(body)["choices"][0]["message"]["content"] == SCRIPT


def test_a_stream_of_http_1_1_comes_in_chunks(server: Running) -> None:
    head, _, body = exchange(server, request(STREAM, "Connection: close\r\n")).partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head and body.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
