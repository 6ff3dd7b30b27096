"""Servers that end, or are left by all their clients, while guides are compiled."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from tests.engine.test_grammar_process import assert_ends, processor_seconds, wait_until
from tests.server.serving import QUESTION
from tests.server.test_serve_command import served

NUM_CLIENTS = 20
# A second or two to read, and then as long as it is given.
HUGE = " | ".join(f'"{n:06d}" [a-z]{{1,60}} [^{chr(97 + n % 26)}]{{1,60}}' for n in range(9_000))
SMALL = {"guided_grammar": 'root ::= "a" | "bc"'}


def arguments_of(folder: Path, port: int = 0) -> list[str]:
    toy = [str(folder / "target"), "--draft", str(folder / "draft"), "--draft-check", "off", "--dtype", "float32"]
    return [*toy, "--served-model-name", "toy", "--port", str(port), "--grammar-compile-seconds", "120"]


def body_of(**fields: Any) -> dict[str, Any]:
    return {"messages": QUESTION, "max_tokens": 20} | fields


def ask(url: str, number: int) -> socket.socket:
    """A client whose guide takes long."""
    address = httpx.URL(url)
    body = json.dumps(body_of(guided_grammar=f'root ::= {HUGE} | "{number}"')).encode()
    client = socket.create_connection((address.host, address.port or 0), timeout=60)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n"
    client.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
    return client


def answer(url: str, **fields: Any) -> str:
    response = httpx.post(f"{url}/v1/chat/completions", json=body_of(**fields), timeout=60)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


def compilers(process: subprocess.Popen[str]) -> list[int]:
    """Processes that compile for a server."""
    listed = Path(f"/proc/{process.pid}/task").glob("*/children")
    found = {int(pid) for children in listed for pid in children.read_text().split()}
    return sorted(pid for pid in found if b"grammar_worker" in Path(f"/proc/{pid}/cmdline").read_bytes())


def at_work(process: subprocess.Popen[str], least_seconds: float = 0.6) -> list[int]:
    """Both compilers of a server, once they have been at work for some time."""
    wait_until(lambda: len(compilers(process)) == 2)
    pids = compilers(process)
    wait_until(lambda: all(processor_seconds(pid) > least_seconds for pid in pids))
    return pids


def test_a_killed_server_leaves_no_compiler_and_its_port_serves_again(toy_folder: Path) -> None:
    with ExitStack() as stack:
        process, url = stack.enter_context(served(arguments_of(toy_folder)))
        other, other_url = stack.enter_context(served(arguments_of(toy_folder)))
        for number in range(2):
            stack.enter_context(ask(url, number))
            stack.enter_context(ask(other_url, number))
        pids, other_pids = at_work(process), at_work(other)
        assert not set(pids) & set(other_pids)
        os.kill(process.pid, signal.SIGKILL)
        for pid in pids:
            assert_ends(pid)
        assert compilers(other) == other_pids
        with served(arguments_of(toy_folder, httpx.URL(url).port or 0)) as (_, again):
            assert again == url and answer(again, **SMALL) in ("a", "bc")
        other.send_signal(signal.SIGTERM)
        other.send_signal(signal.SIGTERM)
        assert other.wait(60) == 0
        for pid in other_pids:
            assert_ends(pid)


def test_clients_that_all_leave_while_their_guides_wait_leave_nothing(toy_folder: Path) -> None:
    with served(arguments_of(toy_folder)) as (process, url):
        with ExitStack() as stack:
            for number in range(NUM_CLIENTS):
                stack.enter_context(ask(url, number))
            pids = at_work(process)
            assert answer(url)
        for pid in pids:
            assert_ends(pid)
        assert answer(url, **SMALL) in ("a", "bc")
        assert len(compilers(process)) <= 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
