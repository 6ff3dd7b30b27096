"""`--trace FILE`: record the steps of an engine while a command runs, and write them when it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from aquiline.atomic_file import write_atomically
from aquiline.engine.chrome_trace import chrome_trace
from aquiline.errors import InvalidParameterError, UserError

if TYPE_CHECKING:
    from aquiline.engine.step_trace import StepRecorder
    from aquiline.llm import LLM

TRACE_HELP = "write a trace of every step's phases for chrome://tracing or Perfetto"


def check_trace_path(path: str | None) -> str | None:
    """The path that was typed.

    Raises:
        InvalidParameterError: its folder is not there, or it is a folder itself.
    """
    if path is not None and (Path(path).is_dir() or not Path(path).parent.is_dir()):
        raise InvalidParameterError(f"--trace is {path!r}; name a file in a folder that is there")
    return path


@contextmanager
def steps_traced(llm: LLM, path: str | None) -> Iterator[None]:
    """Record the steps inside the `with` block and write them when it is left, however that happens.

    Raises:
        UserError: the file cannot be written.
    """
    if path is None:
        yield
        return
    recorder = llm.record_steps()
    try:
        yield
    finally:
        write_trace(recorder, path)


def write_trace(recorder: StepRecorder, path: str) -> None:
    """Write what was recorded; a file that is there is replaced as a whole.

    Raises:
        UserError: the file cannot be written.
    """
    content = json.dumps(chrome_trace(recorder.records, recorder.num_dropped), separators=(",", ":"))
    try:
        write_atomically(Path(path), content.encode())
    except OSError as error:
        raise UserError(
            f"--trace {path!r} cannot be written: {error.strerror}; free some space or name another file"
        ) from None
