"""Runs measured programs one after the other, in rounds, and keeps what each of them reported."""

from __future__ import annotations

import math
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

TIMEOUT_SECONDS = 900.0
DECODE = "decode"
PREFILL = "prefill"


@dataclass(frozen=True)
class Reading:
    """One figure that a program reported.

    Attributes:
        kind: `decode` (output tokens) or `prefill` (prompt tokens).
        batch_size: requests that ran together.
        speculate: `off`, or the tree that was asked for.
    """

    kind: str
    batch_size: int
    speculate: str
    tokens_per_second: float


@dataclass(frozen=True)
class ProgramOutput:
    """What a program that succeeded said; `version` is empty where it does not tell."""

    version: str
    readings: tuple[Reading, ...]


@dataclass(frozen=True)
class Program:
    """One thing to measure, as a command that is run alone.

    Attributes:
        engine: whose figures these are.
        file: name of the model file or folder.
        parse: standard output to figures; raises ValueError, KeyError or TypeError on what it does not understand.
        environment: variables set for it besides those of this process.
        standard_input: what it reads.
    """

    engine: str
    file: str
    command: tuple[str, ...]
    parse: Callable[[str], ProgramOutput]
    environment: Mapping[str, str] = field(default_factory=dict)
    standard_input: str = ""


@dataclass(frozen=True)
class Outcome:
    """One run of a program: figures, or the message with which it failed."""

    engine: str
    file: str
    round_number: int
    output: ProgramOutput | None
    message: str = ""


def run_rounds(
    programs: Sequence[Program],
    num_rounds: int,
    on_start: Callable[[int, Program], None] | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> list[Outcome]:
    """Run all programs once per round, every second round backwards, so that a machine that drifts favours none.

    Args:
        on_start: called with the number of finished runs and the program that starts.
        timeout_seconds: after which one run of a program has failed.
    """
    outcomes: list[Outcome] = []
    for round_number in range(num_rounds):
        for program in programs if round_number % 2 == 0 else reversed(programs):
            if on_start is not None:
                on_start(len(outcomes), program)
            outcomes.append(run_program(program, round_number, timeout_seconds))
    return outcomes


def run_program(program: Program, round_number: int, timeout_seconds: float) -> Outcome:
    """Run one program to its end; whatever it started ends with it, in time or not."""

    def failed(message: str) -> Outcome:
        return Outcome(program.engine, program.file, round_number, None, " ".join(message.split()))

    try:
        process = subprocess.Popen(
            program.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **program.environment},
            start_new_session=True,
            text=True,
            errors="replace",
        )
    except OSError as error:
        return failed(f"{program.command[0]} cannot be started: {error.strerror}")
    with process:
        try:
            output, complaints = process.communicate(program.standard_input, timeout_seconds)
        except subprocess.TimeoutExpired:
            return failed(f"no result after {timeout_seconds:g} seconds")
        finally:
            _end_session(process)
    if process.returncode != 0:
        said = _last_line(complaints) or _last_line(output) or "and said nothing"
        return failed(f"exit status {process.returncode}: {said}")
    try:
        return Outcome(program.engine, program.file, round_number, program.parse(output))
    except (ValueError, KeyError, TypeError) as error:
        said = _last_line(complaints) or _last_line(output) or "nothing"
        return failed(f"its output is not understood ({type(error).__name__}: {error}); it said: {said}")


def positive_rate(figure: Any) -> float:
    """A figure that a program printed, as tokens per second.

    Raises:
        ValueError, TypeError: it is no positive number.
    """
    value = float(figure)
    if not 0.0 < value < math.inf:
        raise ValueError(f"{figure!r} tokens per second")
    return value


def _end_session(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
