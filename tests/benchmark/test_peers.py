"""Programs that succeed, fail, hang and talk nonsense, run as real processes."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from aquiline.benchmark.peers import Program, ProgramOutput, Reading, run_program, run_rounds


def parse_number(output: str) -> ProgramOutput:
    return ProgramOutput("1", (Reading("decode", 1, "off", float(output)),))


def python_program(code: str, name: str = "engine") -> Program:
    return Program(name, "file", (sys.executable, "-c", code), parse_number)


def test_a_program_reads_its_input_and_its_environment() -> None:
    code = "import os, sys; print(float(sys.stdin.read()) + float(os.environ['AQUILINE_TEST_ADDEND']))"
    command = (sys.executable, "-c", code)
    program = Program("engine", "file", command, parse_number, {"AQUILINE_TEST_ADDEND": "0.5"}, "41")
    outcome = run_program(program, 3, 60.0)
    assert outcome.output == parse_number("41.5")
    assert (outcome.engine, outcome.file, outcome.round_number, outcome.message) == ("engine", "file", 3, "")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        pytest.param("raise SystemExit('no such\\tmodel')", "exit status 1: no such model", id="complaint"),
        pytest.param("print('on output'); raise SystemExit(4)", "exit status 4: on output", id="standard-output"),
        pytest.param("raise SystemExit(4)", "exit status 4: and said nothing", id="silent"),
        pytest.param("1 / 0", "exit status 1: ZeroDivisionError: division by zero", id="traceback"),
        pytest.param("print('fast')", "its output is not understood (ValueError", id="nonsense"),
        pytest.param("import os; os.kill(os.getpid(), 11)", "exit status -11: and said nothing", id="crash"),
    ],
)
def test_a_failure_is_a_message(code: str, message: str) -> None:
    outcome = run_program(python_program(code), 0, 60.0)
    assert outcome.output is None
    assert outcome.message.startswith(message)


def test_a_program_that_does_not_exist_is_a_message() -> None:
    outcome = run_program(Program("engine", "file", ("./no-such-program",), parse_number), 0, 60.0)
    assert outcome.message == "./no-such-program cannot be started: No such file or directory"


def test_a_program_that_hangs_ends_with_all_it_started(tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    child = "import time; time.sleep(600)"
    code = (
        f"import pathlib, subprocess, sys; child = subprocess.Popen([sys.executable, '-c', {child!r}]);"
        f" pathlib.Path({str(noted)!r}).write_text(str(child.pid)); child.wait()"
    )
    outcome = run_program(python_program(code), 0, 3.0)
    assert outcome.message == "no result after 3 seconds"
    assert is_gone(int(noted.read_text()))


def is_gone(pid: int) -> bool:
    """Whether the process is dead; its new parent may take a moment to notice."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    os.kill(pid, 9)
    return False


def test_rounds_alternate_and_go_on_after_a_failure() -> None:
    programs = [python_program("print(1)", "a"), python_program("1 / 0", "b"), python_program("print(3)", "c")]
    started: list[tuple[int, str]] = []
    outcomes = run_rounds(programs, 2, lambda num_done, program: started.append((num_done, program.engine)))
    assert [(outcome.round_number, outcome.engine) for outcome in outcomes] == [
        (0, "a"),
        (0, "b"),
        (0, "c"),
        (1, "c"),
        (1, "b"),
        (1, "a"),
    ]
    assert started == list(enumerate("abccba"))
    assert [outcome.output is None for outcome in outcomes] == [False, True, False] * 2
