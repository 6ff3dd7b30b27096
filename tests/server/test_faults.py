"""What goes wrong: clients that leave, full queues, slow and failing engines, keys, sizes, and stopping."""

from __future__ import annotations

import json
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from aquiline.server.engine_thread import StepNews
from aquiline.server.logs import JsonLines, TextLines
from aquiline.server.settings import ServerSettings
from aquiline.server.step_report import StepReport
from aquiline.tokenizer import Tokenizer
from tests.server.folding import events_of
from tests.server.scripted import ScriptedEngine, ScriptedLLM
from tests.server.serving import NAME, QUESTION, Running, running

SCRIPT = "The eagle flies over the sea. " * 40
SECONDS = 10


@pytest.fixture(scope="module")
def tokenizer(toy_folder: Path) -> Tokenizer:
    return Tokenizer.from_path(toy_folder / "target")


@pytest.fixture
def engine(tokenizer: Tokenizer) -> ScriptedEngine:
    return ScriptedEngine(tokenizer, SCRIPT)


@contextmanager
def scripted(engine: ScriptedEngine, tokenizer: Tokenizer, **settings: Any) -> Iterator[Running]:
    with running(ScriptedLLM(tokenizer), engine, ServerSettings(**settings)) as server:
        try:
            yield server
        finally:
            engine.gate.set()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.005)


def ask(server: Running, **changes: Any) -> httpx.Response:
    with server.http() as http:
        return http.post("/v1/chat/completions", json={"messages": QUESTION} | changes)


def error_of(response: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and "\n" not in error["message"]
    return error


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
def test_a_client_that_leaves_frees_everything_at_once(
    engine: ScriptedEngine, tokenizer: Tokenizer, is_streamed: bool
) -> None:
    engine.before_step = lambda: time.sleep(0.01)
    body = json.dumps({"messages": QUESTION, "n": 3, "stream": is_streamed}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n"
    with scripted(engine, tokenizer) as server:
        address = httpx.URL(server.url)
        with socket.create_connection((address.host, address.port)) as client:
            client.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
            wait_for(lambda: engine.has_unfinished)
            assert not is_streamed or client.recv(1)
            assert server.client.num_unfinished == 3
        wait_for(lambda: not engine.has_unfinished and server.client.num_unfinished == 0)
        assert engine.aborted


def test_a_full_queue_is_429_with_a_time_to_retry(engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    engine.gate.clear()
    with scripted(engine, tokenizer, max_queue=0) as server, ThreadPoolExecutor() as pool:
        running_asks = [pool.submit(ask, server, n=2, max_tokens=3) for _ in range(2)]
        wait_for(lambda: server.client.num_unfinished == 4)
        refused = ask(server)
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
        assert error_of(refused)["code"] == "server_busy"
        assert httpx.get(f"{server.url}/health").status_code == 200
        engine.gate.set()
        assert [future.result().status_code for future in running_asks] == [200, 200]
        assert ask(server, max_tokens=2).status_code == 200


def test_a_request_may_not_take_for_ever(engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    engine.before_step = lambda: time.sleep(0.02)
    with scripted(engine, tokenizer, request_timeout=0.15) as server:
        late = ask(server)
        assert late.status_code == 504 and error_of(late)["code"] == "request_timeout"
        wait_for(lambda: not engine.has_unfinished)
        assert engine.aborted
        events = events_of(ask(server, stream=True))
        assert events[-1]["error"]["code"] == "request_timeout"
        with pytest.raises(openai.APIError, match="took longer"):
            list(server.openai().chat.completions.create(model=NAME, messages=QUESTION, stream=True))
        wait_for(lambda: not engine.has_unfinished)


def test_a_failing_step_ends_its_requests_and_no_others(engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    with scripted(engine, tokenizer) as server:
        engine.failure = RuntimeError("secret detail")
        failed = ask(server)
        assert failed.status_code == 500 and "secret" not in failed.text
        assert error_of(failed)["type"] == "server_error"
        assert ask(server, max_tokens=2).status_code == 200
        engine.before_step = lambda: time.sleep(0.1)
        engine.failure = RuntimeError("again")
        assert "error" in events_of(ask(server, stream=True))[-1]
        assert ask(server, max_tokens=2).status_code == 200
        assert httpx.get(f"{server.url}/health").status_code == 200
        assert httpx.head(f"{server.url}/ready").status_code == 200


@pytest.mark.parametrize("is_failing", [False, True], ids=["left", "failed"])
def test_a_server_whose_last_request_ends_beside_a_step_says_that_it_has_none(
    engine: ScriptedEngine, tokenizer: Tokenizer, is_failing: bool
) -> None:
    engine.before_step = lambda: time.sleep(0.01)
    with scripted(engine, tokenizer) as server, server.http() as http:

        def num_running() -> set[float]:
            text = http.get("/metrics").text
            told = re.search(r"^aquiline:num_requests_running{.*} (.*)$", text, re.MULTILINE)
            assert told is not None
            return {float(told[1]), server.client.live.figures()["num_running"]}

        with http.stream("POST", "/v1/chat/completions", json={"messages": QUESTION, "stream": True}) as response:
            lines = response.iter_lines()
            next(lines)
            server.client.on_step(StepNews([], [], StepReport(0.01, num_running=1)))
            assert num_running() == {1}
            if is_failing:
                engine.failure = RuntimeError("broken")
                assert any("the engine failed" in line for line in lines)
        wait_for(lambda: num_running() == {0})


def test_an_engine_that_keeps_failing_is_given_up(engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    given_up = threading.Event()
    with scripted(engine, tokenizer) as server:
        server.client.after_give_up = given_up.set
        for _ in range(3):
            engine.failure = RuntimeError("broken")
            assert ask(server).status_code == 500
        assert given_up.wait(SECONDS)
        health = httpx.get(f"{server.url}/health")
        assert health.status_code == 503 and health.json()["error"]["code"] == "engine_failed"
        assert httpx.head(f"{server.url}/health").status_code == 503
        assert httpx.get(f"{server.url}/ready").status_code == 503
        assert ask(server).status_code == 500


def test_a_server_that_stops_answers_what_runs_and_takes_no_more(engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    engine.gate.clear()
    with scripted(engine, tokenizer) as server, ThreadPoolExecutor() as pool, server.http() as http:
        assert http.get("/ready").status_code == 200
        answered = pool.submit(ask, server, max_tokens=5)
        wait_for(lambda: server.client.num_unfinished == 1)
        server.client.refuse_new()
        assert http.get("/ready").status_code == 503
        refused = http.post("/v1/chat/completions", json={"messages": QUESTION})
        assert refused.status_code == 503 and error_of(refused)["code"] == "server_stopping"
        engine.gate.set()
        assert answered.result().status_code == 200


def test_what_does_not_finish_while_the_server_stops_is_told_so(engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    engine.before_step = lambda: time.sleep(0.02)
    with scripted(engine, tokenizer, drain_timeout=0.1) as server, ThreadPoolExecutor() as pool:
        answers = [pool.submit(ask, server), pool.submit(ask, server, stream=True)]
        wait_for(lambda: server.client.num_unfinished == 2)
        server.server.should_exit = True
        assert answers[0].result().status_code == 503
        assert events_of(answers[1].result())[-1]["error"]["code"] == "server_stopping"


@pytest.mark.parametrize(
    ("header", "status"),
    [
        pytest.param(None, 401, id="no key"),
        pytest.param("Bearer wrong", 401, id="wrong key"),
        pytest.param("Bearer key-on", 401, id="a part of the key"),
        pytest.param("Bearer key-onee", 401, id="more than the key"),
        pytest.param("Basic key-one", 401, id="another scheme"),
        pytest.param("Bearer", 401, id="scheme only"),
        pytest.param("Bearer kéy".encode("latin-1"), 401, id="not ASCII"),
        pytest.param("Bearer key-one", 200, id="first key"),
        pytest.param("bearer  key-two", 200, id="second key"),
    ],
)
def test_keys(engine: ScriptedEngine, tokenizer: Tokenizer, header: Any, status: int) -> None:
    with scripted(engine, tokenizer, api_keys=("key-one", "key-two")) as server:
        headers = {} if header is None else {"Authorization": header}
        for path in ("/v1/models", "/version", "/no/such/path" if status == 401 else "/v1/models"):
            response = httpx.get(f"{server.url}{path}", headers=headers)
            assert response.status_code == status, path
        assert status == 200 or error_of(response)["code"] == "invalid_api_key"
        assert httpx.get(f"{server.url}/health").status_code == 200


def test_long_bodies_are_refused(engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    with scripted(engine, tokenizer, max_body_bytes=2000) as server, server.http() as http:
        declared = http.post("/v1/completions", json={"prompt": "x" * 3000})
        chunked = http.post("/v1/completions", content=iter([b'{"prompt": "', b"x" * 3000, b'"}']))
        assert [declared.status_code, chunked.status_code] == [413, 413]
        assert error_of(declared)["code"] == "body_too_long"
        assert http.post("/v1/completions", json={"prompt": "x" * 200, "max_tokens": 2}).status_code == 200


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'"a"', b"null", b"\xff\xfe", b'{"prompt": NaN}', b"[" * 50_000, b'{"prompt": "\\ud800"}'],
    ids=["empty", "cut", "list", "text", "null", "bytes", "nan", "deep", "surrogate"],
)
def test_bodies_that_are_no_objects_are_refused(engine: ScriptedEngine, tokenizer: Tokenizer, content: bytes) -> None:
    with scripted(engine, tokenizer) as server, server.http() as http:
        response = http.post("/v1/completions", content=content, headers={"Content-Type": "application/json"})
        assert response.status_code == 400
        error_of(response)


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "refusal"])
def test_parts_that_are_no_text_are_named(engine: ScriptedEngine, tokenizer: Tokenizer, kind: str) -> None:
    parts = [{"type": "text", "text": "see"}, {"type": kind, kind: {}}]
    with scripted(engine, tokenizer) as server:
        error = error_of(ask(server, messages=[{"role": "user", "content": parts}]))
    assert error["param"] == "messages.0.content.1.type" and kind in error["message"]


def test_log_lines_tell_numbers_and_no_text(
    engine: ScriptedEngine, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    access = logging.getLogger("aquiline.server.access")
    access.propagate, access.parent = True, logging.root
    with caplog.at_level(logging.INFO), scripted(engine, tokenizer, api_keys=("hidden-key",)) as server:
        headers = {"Authorization": "Bearer hidden-key", "X-Request-Id": "mine-1"}
        body = {"messages": [{"role": "user", "content": "private words"}], "max_tokens": 3}
        response = httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=headers)
        assert response.headers["x-request-id"] == "mine-1"
        assert httpx.get(f"{server.url}/health", headers={"X-Request-Id": "a b"}).headers["x-request-id"] != "a b"
    lines = [JsonLines().format(record) for record in caplog.records if record.name == "aquiline.server.access"]
    line = next(json.loads(line) for line in lines if "mine-1" in line)
    assert line["event"] == "request" and line["status"] == 200
    assert line["completion_tokens"] == 3 and line["ttft_ms"] > 0
    assert not [line for line in lines if "private" in line or "eagle" in line or "hidden-key" in line]


def test_a_path_cannot_write_log_lines(
    engine: ScriptedEngine, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    access = logging.getLogger("aquiline.server.access")
    access.propagate, access.parent = True, logging.root
    with caplog.at_level(logging.INFO), scripted(engine, tokenizer) as server:
        assert httpx.get(f"{server.url}/a%0Ab%1B%E2%80%A8%C3%A9%20status=200").status_code == 404
        assert httpx.get(f"{server.url}/health/").status_code == 404
    odd, plain = [record for record in caplog.records if record.name == "aquiline.server.access"]
    text = TextLines().format(odd)
    assert r'path="/a\nb\u001b\u2028\u00e9 status=200" status=404' in text and text.isascii() and text.isprintable()
    assert "path=/health/ status=404" in TextLines().format(plain)
    line = JsonLines().format(odd)
    assert line.isascii() and line.isprintable() and json.loads(line)["path"] == "/a\nb\x1b\u2028é status=200"


def test_a_form_that_takes_long_delays_only_its_own_request(engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    with scripted(engine, tokenizer, request_timeout=0.5) as server, ThreadPoolExecutor() as pool:
        is_over = threading.Event()
        service = server.app.state.service
        service.served = replace(service.served, compile_guided=lambda *_: is_over.wait(SECONDS))
        slow = [pool.submit(ask, server, guided_regex="a") for _ in range(8)]
        assert ask(server, max_tokens=2).status_code == 200
        assert {future.result().status_code for future in slow} == {504}
        is_over.set()
        assert not engine.aborted


def test_what_nobody_has_foreseen_is_500_in_the_usual_form(engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("secret detail")

    with scripted(engine, tokenizer) as server:
        service = server.app.state.service
        service.served = replace(service.served, compile_guided=fail)
        failed = ask(server, guided_regex="a")
        assert failed.status_code == 500 and error_of(failed)["type"] == "server_error" and "secret" not in failed.text
        assert ask(server, max_tokens=2).status_code == 200
