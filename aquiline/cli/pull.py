"""`aquiline pull`: fetch a known model into the cache folder."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from aquiline.cli.output import write
from aquiline.model_store import KNOWN_MODELS, ProgressCallback, pull


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `pull` to the command line."""
    names = ", ".join(sorted(KNOWN_MODELS))
    parser = commands.add_parser("pull", help="fetch a model", description="Fetch a known model into the cache folder.")
    parser.add_argument("name", metavar="NAME", help=f"one of: {names}")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Fetch the model that `args` names and print where it lies."""
    with shown_progress() as show:
        path = pull(args.name, show)
    write(sys.stdout, f"{args.name} is ready: {path}\n")


@contextmanager
def shown_progress() -> Iterator[ProgressCallback]:
    """A callback for the model store that draws bars on standard error, where that is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:

        def show(phase: str, num_done: int, num_total: int) -> None:
            if phase not in tasks:
                tasks[phase] = progress.add_task(phase)
            progress.update(tasks[phase], completed=num_done, total=num_total or None)

        yield show
