"""Standard streams that are closed, full, read by nobody, or not Unicode; in a process of its own."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
from aquiline.cli import bench, generate, main
from tests.fake_llm import FakeLLM
generate.open_llm = bench.open_llm = lambda settings: FakeLLM()
status = main(sys.argv[1:])
assert sys.argv[1] == "bench" or "torch" not in sys.modules, "torch was imported before it was needed"
sys.exit(status)
"""
PROMPTS = '{"prompt": "an eagle"}\n'
COMMANDS = [
    pytest.param(["generate", "--prompt", "an eagle"], id="stream"),
    pytest.param(["generate", "--prompt", "an eagle", "--json"], id="json"),
    pytest.param(["generate", "--prompt", "an eagle", "--explain"], id="explain"),
    pytest.param(["bench", "acceptance", "--prompts", "-"], id="table"),
    pytest.param(["generate", "--help"], id="help"),
    pytest.param(["--version"], id="version"),
]


def run_program(
    argv: list[str], stdout: Any = subprocess.PIPE, closed: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command with the fake engine.

    Args:
        stdout: where its standard output goes.
        closed: a redirection of the shell that closes a stream, for example `>&-`.
    """
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", PROGRAM, *argv],
        input=PROMPTS,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ | environment,
    )


@pytest.mark.parametrize("argv", COMMANDS)
def test_a_closed_pipe_is_quiet(argv: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        result = run_program(argv, stream)
    assert (result.returncode, result.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("argv", COMMANDS)
def test_a_full_disk_is_one_line_and_status_2(argv: list[str]) -> None:
    with open("/dev/full", "w") as stream:
        result = run_program(argv, stream)
    reason = os.strerror(errno.ENOSPC)
    assert result.returncode == 2
    assert result.stderr.startswith(f"aquiline: error: the output cannot be written: {reason}; ")
    assert result.stderr.count("\n") == 1


def test_a_closed_output_is_one_line_and_status_2() -> None:
    result = run_program(["generate", "--prompt", "an eagle"], closed=">&-")
    assert result.returncode == 2
    assert result.stderr == "aquiline: error: standard output is closed; leave it open, or send it to a file\n"


def test_a_closed_input_is_one_line_and_status_2() -> None:
    result = run_program(["generate", "--prompts", "-"], closed="<&-")
    assert result.returncode == 2
    assert result.stderr.startswith("aquiline: error: standard input is closed; ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("closed", ["2>&-", "2>/dev/full"])
def test_a_message_that_nobody_takes_changes_neither_status_nor_output(closed: str) -> None:
    result = run_program(["generate", "--prompt", ""], closed=closed)
    assert (result.returncode, result.stdout) == (2, "")


@pytest.mark.parametrize("argv", COMMANDS)
def test_an_output_that_is_not_unicode_loses_letters_only(argv: list[str]) -> None:
    result = run_program(argv, PYTHONIOENCODING="ascii")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.isascii()


def test_an_interrupt_while_the_command_loads_is_quiet() -> None:
    program = (
        "import sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'aquiline.cli.app':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from aquiline.cli import main\n"
        "sys.exit(main(['--version']))\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")
