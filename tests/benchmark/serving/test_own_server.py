"""A server that is started to be measured ends with the measurement; its place is taken by programs that do nothing."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from aquiline.benchmark.serving.own_server import own_server
from aquiline.errors import EndpointError


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, lines: str) -> None:
    """Let a script of these lines run in place of the server."""
    script = folder / "server.sh"
    script.write_text(f"#!/bin/sh\n{lines}\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))


@pytest.fixture
def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, 'echo "serving $4 at http://127.0.0.1:9"\nexec sleep 60')


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_server_runs_as_long_as_it_is_needed(waiting: None) -> None:
    with own_server(["toy"]) as server:
        assert server.url == "http://127.0.0.1:9/v1"
        assert is_running(server.pid)
    assert not is_running(server.pid)


def test_it_ends_when_the_measurement_is_interrupted(waiting: None) -> None:
    with pytest.raises(KeyboardInterrupt), own_server(["toy"]) as server:
        raise KeyboardInterrupt
    assert not is_running(server.pid)


def test_it_ends_when_this_process_is_told_to_end(waiting: None) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as caught, own_server(["toy"]) as server:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.sigtimedwait([], 5.0)
    assert caught.value.code == 128 + signal.SIGTERM
    assert not is_running(server.pid)
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("echo loading >&2\necho 'aquiline: error: the draft is no good' >&2\nexit 2", "start: the draft is no good$"),
        ("exit 1", "start: it says nothing about why"),
    ],
)
def test_a_server_that_does_not_start_says_why(
    lines: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, monkeypatch, lines)
    with pytest.raises(EndpointError, match=message), own_server(["toy"]):
        pass
