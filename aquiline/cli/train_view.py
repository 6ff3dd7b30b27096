"""How a training run is shown: a bar on standard error, a line for every evaluation, and the result."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from aquiline.cli.output import draw, write
from aquiline.cli.train_data import summary_lines
from aquiline.cli.waiting import RareLines, progress_text

if TYPE_CHECKING:
    from aquiline.training.data_run import DataSummary
    from aquiline.training.trainer import StepRecord

Record = Mapping[str, Any]
# What rounding and a quantised draft may make of an acceptance length.
TOLERATED_GAP = 0.03
HEADER = f"{'tokens':>11} {'chain':>6} {'tree':>6} {'ms/token':>9} {'plain':>7}  acceptance by position, best tree"


class TrainView:
    """Shows a run to a reader, or to a log."""

    def __init__(self, progress: Progress, lines: RareLines) -> None:
        self._progress = progress
        self._lines = lines
        self._work = progress.add_task("starting", total=None)
        self._steps = progress.add_task("training", total=None, visible=False)
        self._has_header = False

    def on_work(self, name: str, num_done: int, num_all: int) -> None:
        """Show what is done beside training."""
        self._lines.say(progress_text(name, num_done, num_all))
        is_over = num_all > 0 and num_done >= num_all
        self._progress.update(
            self._work, description=name, completed=num_done, total=num_all or None, visible=not is_over
        )

    def on_data(self, summary: DataSummary) -> None:
        """Print how much data there is, and what was left out of it."""
        write(sys.stdout, "".join(f"{line}\n" for line in summary_lines(summary)))

    def on_step(self, step: StepRecord) -> None:
        """Move the bar."""
        rates = " ".join(f"{rate:.2f}" for rate in step.conditional_accuracies)
        description = (
            f"stage {step.stage + 1}, loss {step.loss:.3f}, right {rates}, {step.tokens_per_second:.0f} tokens/s"
        )
        self._lines.say(progress_text(description, step.num_tokens, step.total_tokens))
        self._progress.update(self._work, visible=False)
        self._progress.update(
            self._steps, description=description, completed=step.num_tokens, total=step.total_tokens, visible=True
        )

    def on_record(self, record: Record) -> None:
        """Print an evaluation as one line."""
        if record["kind"] != "evaluation":
            return
        if not self._has_header:
            write(sys.stdout, f"{HEADER}\n")
            self._has_header = True
        write(sys.stdout, f"{evaluation_line(record)}\n")

    def close(self, result: Record) -> None:
        """Print the result."""
        if result:
            draw(Console(highlight=False), result_drawing(result))


class JsonView:
    """Every record as one JSON object and line, as soon as it is there."""

    def on_work(self, name: str, num_done: int, num_all: int) -> None:
        """Nothing: programs read records."""

    def on_data(self, summary: DataSummary) -> None:
        """Print what became of the data, as a record."""
        write(sys.stdout, json.dumps({"kind": "data", **summary.described()}) + "\n")

    def on_step(self, step: StepRecord) -> None:
        """Nothing: means of several steps come as records."""

    def on_record(self, record: Record) -> None:
        """Print a record."""
        if record["kind"] != "result":
            write(sys.stdout, json.dumps(record) + "\n")

    def close(self, result: Record) -> None:
        """Print the result, also of a run that was finished before."""
        if result:
            write(sys.stdout, json.dumps(result) + "\n")


@contextmanager
def shown_training(is_json: bool, is_hidden: bool = False) -> Iterator[TrainView | JsonView]:
    """The view that suits the output.

    Args:
        is_hidden: draw no bar, and say nothing: another process of the same run does.
    """
    if is_json:
        yield JsonView()
        return
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=is_hidden or not console.is_terminal) as progress:
        yield TrainView(progress, RareLines(console, is_hidden))


def evaluation_line(record: Record) -> str:
    """One evaluation under `HEADER`."""
    lengths = {name: counts["acceptance_length"] for name, counts in record["predicted"].items()}
    positions = record["predicted"]["chain"]["conditional_acceptance_per_position"]
    return (
        f"{record['num_tokens']:>11,} {lengths['chain']:>6.2f} {lengths.get('tree', 1.0):>6.2f} "
        f"{record['time_per_committed_token_ms']:>9.2f} {record['plain_time_per_token_ms']:>7.2f}  "
        f"{' '.join(f'{rate:.2f}' for rate in positions)}  {record['best_shape']}"
    )


def result_drawing(result: Record) -> Group:
    """The best checkpoint: acceptance by category, what serving and training say of it, and where it lies."""
    names = list(result["predicted"])
    categories = Table("acceptance length", *names, title="best checkpoint", title_justify="left")
    for category, lengths in result["categories"].items():
        categories.add_row(category, *(f"{lengths[name]:.2f}" for name in names))
    for label, counted in (("all, served", "served"), ("all, by the trainer", "trained")):
        shown = [
            f"{result[counted][name]['acceptance_length']:.2f}" if name in result[counted] else "" for name in names
        ]
        categories.add_row(label, *shown)
    trees = Table(
        "--speculate", "acceptance length", "ms per committed token", title="one request", title_justify="left"
    )
    trees.add_row("off", "1.00", f"{result['plain_time_per_token_ms']:.2f}")
    for shape in result["shapes"]:
        marked = f"{shape['speculate']}{'  (best)' if shape['speculate'] == result['best_shape'] else ''}"
        trees.add_row(marked, f"{shape['acceptance_length']:.2f}", f"{shape['time_per_committed_token_ms']:.2f}")
    trees.columns[0].overflow = "fold"
    lines = [f"the head is in {result['head']}"]
    if abs(result["served_over_trained"] - 1.0) > TOLERATED_GAP:
        lines.append(
            f"served, a chain is accepted {result['served_over_trained']:.2f} times as far as the code that trained "
            "it expects; a run with --dtype float32, or with --draft-quantization none and without "
            "--quantization-aware, tells whether rounding is why"
        )
    return Group(categories, trees, *map(Text, lines))
