"""`aquiline serve` as a process: it tells its address, answers, and stops when it is told to."""

from __future__ import annotations

import json
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest

from aquiline.cli import main
from tests.quickstart_model import IS_ON_DISK, PULL_IT
from tests.server.serving import QUESTION
from tests.test_docs import commands

SECONDS = 60


@contextmanager
def served(arguments: Sequence[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that serves, and its address."""
    command = [sys.executable, "-m", "aquiline", "serve", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        match = re.fullmatch(r"serving \S+ at (http://\S+)\n", line)
        assert match, line
        yield process, match[1]
    finally:
        process.kill()
        process.communicate()


def test_a_process_serves_until_it_is_told_to_stop(toy_folder: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("secret-1\n\nsecret-2\n")
    toy = [str(toy_folder / "target"), "--draft", str(toy_folder / "draft"), "--draft-check", "off"]
    trace = tmp_path / "steps.json"
    more = ["--served-model-name", "toy", "--api-key-file", str(keys), "--trace", str(trace)]
    with served([*toy, "--dtype", "float32", "--port", "0", *more]) as (process, url):
        assert httpx.get(f"{url}/ready").status_code == 200
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=f"{url}/v1", api_key="secret-3", max_retries=0).models.list()
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="secret-2", max_retries=0)
        stream = client.chat.completions.create(
            model="toy", messages=QUESTION, max_tokens=80, stream=True, extra_body={"ignore_eos": True}
        )
        reasons = []
        for number, event in enumerate(stream):
            if number == 2:
                process.send_signal(signal.SIGTERM)
            reasons += [choice.finish_reason for choice in event.choices]
        assert reasons[-1] == "length", "a stream that runs is answered to its end"
        assert process.wait(SECONDS) == 0
    steps = [event for event in json.loads(trace.read_text())["traceEvents"] if event["name"].startswith("step ")]
    assert sum(event["args"]["num_committed_tokens"] for event in steps) == 80


@pytest.mark.model
@pytest.mark.skipif(not IS_ON_DISK, reason=PULL_IT)
@pytest.mark.parametrize("command", sorted(set(commands("aquiline serve"))))
def test_shown_commands_serve(command: str) -> None:
    arguments = re.sub(r"--port \d+", "--port 0", command)
    with served(shlex.split(arguments)[2:]) as (process, url):
        assert httpx.get(f"{url}/health").status_code == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["--port", "70000"], "port is 70000", id="port"),
        pytest.param(["--api-key", ""], "an API key is empty", id="empty key"),
        pytest.param(["--api-key-file", "no/such/file"], "cannot be read", id="no key file"),
        pytest.param(["--request-timeout", "nan"], "request_timeout is nan", id="timeout"),
        pytest.param(["--tool-format", "xml"], "tool_format is 'xml'", id="tool format"),
        pytest.param(["no/such/model/anywhere"], "no/such/model/anywhere", id="model"),
    ],
)
def test_mistakes_are_one_line_and_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_an_address_in_use_is_one_line_and_status_2(toy_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert main(["serve", str(toy_folder / "target"), "--draft", "none", "--port", port]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"aquiline: error: 127.0.0.1:{port} cannot be listened on")
