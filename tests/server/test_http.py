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


@pytest.mark.parametrize("headers", ["", "Expect: 100-continue\r\n"], ids=["at_once", "expected"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "http://elsewhere/v1/chat/completions"])
def test_a_body_is_asked_for_where_the_client_waits_for_that(server: Running, headers: str, path: str) -> None:
    answer = exchange(server, request(WHOLE, f"{headers}Connection: close\r\n", path))
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\n") == bool(headers)
    assert b"HTTP/1.1 200 OK" in answer and SCRIPT.encode() in answer


@pytest.mark.parametrize("path", ["/", "/health", "/v1/models", "/metrics", "/v1/chat/completions", "/nowhere"])
def test_head_is_get_without_the_body(server: Running, path: str) -> None:
    ask = f"{{}} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    head, _, body = exchange(server, ask.format("HEAD").encode()).partition(b"\r\n\r\n")
    whole = exchange(server, ask.format("GET").encode())
    assert head.splitlines()[0] == whole.splitlines()[0] and b"content-length" in head and not body


@pytest.mark.parametrize("offer", ["h2c", "websocket", "foo"])
@pytest.mark.parametrize("body", [WHOLE, STREAM], ids=["whole", "stream"])
def test_an_offer_of_another_protocol_is_not_taken(server: Running, offer: str, body: bytes) -> None:
    headers = f"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: {offer}\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    chunked = request(b"", headers).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked") + chunks
    bodiless = f"GET /health HTTP/1.1\r\nHost: a\r\n{headers}\r\n".encode()
    last = b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    answer = exchange(server, request(body, headers) + chunked + bodiless + last)
    assert answer.count(b"HTTP/1.1 200 OK") == 4 and answer.count(b'"finish_reason":"stop"') == 2


MALFORMED = {
    "no_http": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "method": (b"FOO / HTTP/1.1\r\n\r\n", 400),
    "connect": (b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "two_lengths": (request(WHOLE, f"Content-Length: {len(WHOLE)}\r\n"), 400),
    "other_length": (request(WHOLE, "Content-Length: 5\r\n"), 400),
    "length_and_chunks": (request(WHOLE, "Transfer-Encoding: chunked\r\n"), 400),
    "negative_length": (request(WHOLE, "Content-Length: -5\r\n"), 400),
    "encoding": (request(WHOLE, "Transfer-Encoding: gzip, chunked\r\n"), 501),
    "chunk": (
        f"POST /v1/completions HTTP/1.1\r\nHost: a\r\n{JSON}Transfer-Encoding: chunked\r\n\r\nzz\r\n".encode(),
        400,
    ),
    "folded": (b"GET /health HTTP/1.1\r\nHost: a\r\nX: b\r\n c\r\n\r\n", 400),
    "long_url": (b"GET /%b HTTP/1.1\r\nHost: a\r\n\r\n" % (b"a" * 20000), 414),
    "long_query": (b"GET /health?%b HTTP/1.1\r\nHost: a\r\n\r\n" % (b"a" * 20000), 414),
    "long_header": (b"GET /health HTTP/1.1\r\nHost: a\r\nX: %b\r\n\r\n" % (b"a" * 70000), 431),
    "many_headers": (b"GET /health HTTP/1.1\r\nHost: a\r\n%b\r\n" % (b"X: a\r\n" * 12000), 431),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_cannot_be_understood_is_refused(server: Running, name: str) -> None:
    sent, status = MALFORMED[name]
    head, _, body = exchange(server, sent).partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode()) and b"connection: close" in head.lower()
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


def test_a_header_without_end_is_cut(server: Running) -> None:
    url = httpx.URL(server.url)
    num_sent = 0
    with socket.create_connection((url.host, url.port or 0), timeout=20) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nX: ")
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            while num_sent < 2**26:
                client.sendall(b"a" * 65536)
                num_sent += 65536
    assert httpx.get(f"{server.url}/health").status_code == 200


@pytest.mark.parametrize("first", [WHOLE, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize("last", ["no_http", "chunk", "long_header"])
def test_earlier_answers_are_whole_whatever_follows_them(server: Running, first: bytes, last: str) -> None:
    sound = exchange(server, 2 * request(first) + request(WHOLE, "Connection: close\r\n"))
    answer = exchange(server, 2 * request(first) + MALFORMED[last][0])
    ends = b"data: [DONE]\n\n\r\n0\r\n\r\n" if first is STREAM else SCRIPT.encode()
    assert answer.count(ends) == 2 <= sound.count(ends)
    assert answer.count(b"HTTP/1.1 ") == 2 + (last == "chunk") and answer.count(b"HTTP/1.1 200 OK") == 2


def test_trailers_are_no_headers(server: Running) -> None:
    chunks = b"%x\r\n%b\r\n0\r\nX-Request-Id: trailer\r\n\r\n" % (len(WHOLE), WHOLE)
    head = request(b"", "Connection: close\r\n").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    answer = exchange(server, head + chunks)
    assert b"200 OK" in answer and b"trailer" not in answer


@pytest.mark.parametrize(
    ("sent", "kind", "message"),
    [
        (WHOLE, "application/x-www-form-urlencoded", "send it with the header Content-Type: application/json"),
        (b"[]", "application/json", "the body: input should be an object, not []"),
        (b'{"prompt": "a", "speculation": 3}', "application/json", "speculation: input should be an object, not 3"),
    ],
)
def test_what_is_no_object_is_refused_in_words_of_json(server: Running, sent: bytes, kind: str, message: str) -> None:
    reply = httpx.post(f"{server.url}/v1/completions", content=sent, headers={"Content-Type": kind})
    assert reply.status_code == 400
    assert message in reply.json()["error"]["message"] and "b'" not in reply.text


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"messages": [', "the body is not valid JSON: expecting value at character 14"),
        (b'{"messages": "\xff"}', "send it in UTF-8"),
        (b'{"messages": []}', "messages is empty; give at least 1"),
    ],
    ids=["cut", "bytes", "empty"],
)
def test_what_is_wrong_with_a_body_is_said(server: Running, body: bytes, message: str) -> None:
    answer = httpx.post(f"{server.url}/v1/chat/completions", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


def test_wrong_paths_and_methods_say_what_is_right(server: Running) -> None:
    missing, wrong = httpx.get(f"{server.url}/chat/completions"), httpx.get(f"{server.url}/v1/completions")
    assert (missing.status_code, wrong.status_code) == (404, 405)
    assert "begin with /v1" in missing.json()["error"]["message"]
    assert wrong.json()["error"]["message"].endswith("takes POST")
