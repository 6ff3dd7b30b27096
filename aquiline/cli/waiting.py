"""Signs of life on standard error while there is nothing to print yet: bars on a terminal, elsewhere rare lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from aquiline.cli.output import Printer, RunSeconds
from aquiline.request import RequestOutput

SECONDS_BETWEEN_LINES = 60.0


class LoadingBar:
    """Draws how far the loading of a model is: called with how many weights are packed, and of how many."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("loading", total=None)

    def __call__(self, num_done: int, num_total: int) -> None:
        self._progress.update(self._task, description="packing weights", completed=num_done, total=num_total)

    def show_costs(self, reason: str, num_done: int, num_total: int) -> None:
        """Steps are being timed."""
        self._progress.update(self._task, description=reason, completed=num_done, total=num_total)


@contextmanager
def loading_shown(is_hidden: bool) -> Iterator[LoadingBar]:
    """A bar for the time until a model can answer; until it is called first, it moves to and fro."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=console, transient=True, disable=is_hidden or not console.is_terminal) as progress:
        yield LoadingBar(progress)


class RareLines:
    """Lines for a log: where a bar moves on a terminal, one line a minute at most.

    Args:
        console: of standard error; nothing is printed where it is a terminal.
        clock: tells the seconds.
    """

    def __init__(self, console: Console, is_hidden: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = None if is_hidden or console.is_terminal else console
        self._clock = clock
        self._due = clock() + SECONDS_BETWEEN_LINES

    def say(self, text: str) -> None:
        """So far have we come."""
        if self._clock() >= self._due:
            self.begin(text)

    def begin(self, text: str) -> None:
        """Something new is being done, which is said at once."""
        self._due = self._clock() + SECONDS_BETWEEN_LINES
        if self._console is None:
            return
        try:
            print(text, file=self._console.file, flush=True)
        except OSError:
            # Work goes on although nobody reads of it any more.
            self._console = None


def progress_text(description: str, num_done: float, num_total: float | None) -> str:
    """How far something is, in words for a line."""
    return f"{description}: {num_done:,.0f} of {num_total:,.0f}" if num_total else description


class AwaitedPrinter:
    """A printer of which a moving line tells that it waits, from `with` on until it has something to print."""

    def __init__(self, printer: Printer, is_hidden: bool) -> None:
        self._printer = printer
        console = Console(stderr=True)
        self._line = None if is_hidden or not console.is_terminal else console.status("reading the prompt")

    def __enter__(self) -> AwaitedPrinter:
        if self._line is not None:
            self._line.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._end_waiting()

    def update(self, index: int, output: RequestOutput) -> None:
        self._end_waiting()
        self._printer.update(index, output)

    def close(self, outputs: Sequence[RequestOutput], seconds: RunSeconds) -> None:
        self._end_waiting()
        self._printer.close(outputs, seconds)

    def _end_waiting(self) -> None:
        if self._line is not None:
            self._line.stop()
            self._line = None
