"""A server of ours in a process of its own, for as long as it is measured."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import IO

from aquiline.errors import EndpointError

SECONDS_TO_STOP = 40.0
ANNOUNCEMENT = re.compile(r"serving .* at (http://\S+)\n")


@dataclass(frozen=True)
class OwnServer:
    """A server that takes requests; `url` is that of its API."""

    url: str
    pid: int


@contextmanager
def own_server(arguments: Sequence[str]) -> Iterator[OwnServer]:
    """Run `aquiline serve` with these arguments on a free port; it is stopped when the `with` ends, however it ends.

    Raises:
        EndpointError: the server ended before it took requests; the message is its own.
    """
    command = [sys.executable, "-m", "aquiline", "serve", *arguments, "--port", "0", "--log-format", "text"]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as complaints, _termination_raised():
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, text=True)
        try:
            assert process.stdout is not None
            match = ANNOUNCEMENT.fullmatch(process.stdout.readline())
            if match is None:
                process.wait(SECONDS_TO_STOP)
                raise EndpointError(f"the server did not start: {_last_complaint(complaints)}")
            yield OwnServer(f"{match[1]}/v1", process.pid)
        finally:
            _stop(process)


@contextmanager
def _termination_raised() -> Iterator[None]:
    """Let a signal that would end this process at once end it like an exception, so that no server is left behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.communicate(timeout=SECONDS_TO_STOP)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def _last_complaint(complaints: IO[str]) -> str:
    complaints.seek(0)
    lines = [line.strip() for line in complaints if line.strip()]
    return lines[-1].removeprefix("aquiline: error: ") if lines else "it says nothing about why"
