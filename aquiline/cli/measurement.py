"""What measurements share on the command line: groups of options, lists of values, a bar, and printing."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import Progress, TaskID

from aquiline.cli.options import ENGINE_OPTIONS, ENGINE_RECORDS, SAMPLING_OPTIONS, SAMPLING_RECORDS
from aquiline.cli.output import draw, write
from aquiline.cli.parser import add_options
from aquiline.cli.waiting import RareLines, progress_text
from aquiline.config import SchedulerConfig
from aquiline.errors import InvalidParameterError
from aquiline.speculation import SpeculationMode, parse_speculation

MAX_ROUNDS = 1000
# A comma separates two values only where another form begins; dynamic: and paths: hold commas of their own.
BETWEEN_MODES = re.compile(r",(?=off\b|auto\b|chain:|tree:|paths:|dynamic:)")


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Add a group with --json."""
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print one JSON object with all figures and provenance")


def add_sampling_and_engine(parser: argparse.ArgumentParser, swept: Collection[str] = ()) -> None:
    """Add the groups of sampling and engine options but those of the fields that the measurement itself varies."""
    add_options(parser.add_argument_group("sampling"), SAMPLING_OPTIONS, SAMPLING_RECORDS)
    options = [option for option in ENGINE_OPTIONS if option.field not in swept]
    add_options(parser.add_argument_group("engine"), options, ENGINE_RECORDS)


def add_modes_option(group: argparse._ArgumentGroup) -> None:
    """Add a --speculate that takes several values."""
    group.add_argument(
        "--speculate", metavar="SHAPE,SHAPE", default="off,auto", help="draft trees, off among them (default off,auto)"
    )


def modes_of(text: str) -> tuple[SpeculationMode, ...]:
    """The values of --speculate.

    Raises:
        InvalidParameterError: one that is none, or one given twice.
    """
    modes = tuple(parse_speculation(part) for part in BETWEEN_MODES.split(text))
    check_each_once("--speculate", text, modes)
    return modes


def batch_sizes_of(text: str) -> tuple[int, ...]:
    """The values of --batch-sizes.

    Raises:
        InvalidParameterError: one that is none, or one given twice.
    """
    batch_sizes = tuple(_batch_size(part) for part in text.split(","))
    check_each_once("--batch-sizes", text, batch_sizes)
    return batch_sizes


def _batch_size(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", text):
        raise InvalidParameterError(f"--batch-sizes has {text!r}; it must be positive integers, for example 1,4,16")
    return SchedulerConfig(max_num_seqs=int(text)).max_num_seqs


def in_range(option: str, value: int, least: int, greatest: int) -> int:
    """The value of an option, or InvalidParameterError when it lies outside its range."""
    if not least <= value <= greatest:
        raise InvalidParameterError(f"{option} is {value}; it must be an integer from {least} to {greatest}")
    return value


def check_each_once(flag: str, text: str, values: Collection[object]) -> None:
    """Raise InvalidParameterError when one of the values of an option stands in it twice."""
    if len(set(values)) < len(values):
        raise InvalidParameterError(f"{flag} is {text!r}, where a value stands twice; give each once")


class Bar:
    """Tells how much is done: called with a number, and with that of everything where it is not known before."""

    def __init__(self, progress: Progress, task: TaskID, lines: RareLines) -> None:
        self._progress = progress
        self._task = task
        self._lines = lines

    def __call__(self, num_done: int, num_total: int | None = None) -> None:
        self._progress.update(self._task, completed=num_done, total=num_total)
        self._say()

    def advance(self) -> None:
        """One more is done."""
        self._progress.advance(self._task)
        self._say()

    def _say(self) -> None:
        task = next(task for task in self._progress.tasks if task.id == self._task)
        self._lines.say(progress_text(task.description, task.completed, task.total))

    def rename(self, description: str, num_total: int | None = None) -> None:
        """Something else is being done, of which there is so much; None: as much as before."""
        self._progress.update(self._task, description=description, total=num_total)


@contextmanager
def shown_bar(description: str, num_total: int | None = None, is_hidden: bool = False) -> Iterator[Bar]:
    """A bar on standard error, which without a total moves to and fro; where that is no terminal, rare lines."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=is_hidden or not console.is_terminal) as progress:
        yield Bar(progress, progress.add_task(description, total=num_total), RareLines(console, is_hidden))


def print_result(result: Mapping[str, Any], is_json: bool, drawing: Callable[[], RenderableType]) -> None:
    """Print a result with its provenance as one line of JSON, or draw it."""
    if not is_json:
        draw(Console(highlight=False), drawing())
        return
    from aquiline.benchmark.provenance import provenance

    write(sys.stdout, json.dumps({**result, **provenance(sys.argv[1:])}) + "\n")
