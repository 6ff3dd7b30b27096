"""`aquiline train-data`: conversations to train a draft on, written by the target or read from files."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from aquiline.cli.model_choice import THREADS_HELP, check_threads
from aquiline.cli.options import ENGINE_OPTIONS, ENGINE_RECORDS, engine_config
from aquiline.cli.output import draw, write
from aquiline.cli.parser import Option, add_options, integer, number, values_given
from aquiline.cli.pull import shown_progress
from aquiline.cli.waiting import RareLines
from aquiline.config import EngineConfig, GrammarConfig, SpeculativeConfig
from aquiline.errors import InvalidParameterError
from aquiline.model_store import resolve_model
from aquiline.training.data_settings import FIELDS_OF_WAY, DataSettings, Way

if TYPE_CHECKING:
    from aquiline.training.data_run import DataSummary

DESCRIPTION = """Write conversations to train a draft head on. The target writes them itself, or they are read from
JSONL files, or folders written before are put together. The same command goes on with a run that was interrupted."""
RECORDS = (DataSettings,)
SOURCE_OPTIONS = (
    Option(
        "--data", "data", "self, a JSONL file, or a folder that train-data has written", str, "PATH", is_repeatable=True
    ),
    Option("--regenerate", "regenerates", "take the questions of the files, and let the target answer them"),
    Option("--exclude", "exclude", "JSONL file of prompts not to train on", str, "FILE", is_repeatable=True),
    Option("--skip-bad-lines", "skips_bad_lines", "report lines that hold no conversation instead of refusing them"),
)
AMOUNT_OPTIONS = (
    Option("--num-tokens", "num_tokens", "answer tokens that the target writes, in whole rounds", integer, "N"),
    Option("--max-answer-tokens", "max_answer_tokens", "where the target's answers are cut off", integer, "N"),
    Option(
        "--turns-per-round",
        "num_turns_per_round",
        "conversations of a round, which a killed run repeats",
        integer,
        "N",
    ),
    Option(
        "--max-length", "max_length", "longest conversation of a file in tokens; the context otherwise", integer, "N"
    ),
    Option("--held-out-share", "held_out_share", "share of the conversations put aside for evaluation", number, "X"),
    Option("--seed", "seed", "of every random choice", integer, "S"),
)
OWN_OPTIONS = (*SOURCE_OPTIONS, *AMOUNT_OPTIONS)
# The target writes without speculation, and without guides.
DRAFTING = {field.name for field in dataclasses.fields(SpeculativeConfig)} | {"draft_quantization"}
GRAMMARS = {field.name for field in dataclasses.fields(GrammarConfig)}
OWN_DEFAULTS: dict[str, object] = {"max_num_seqs": 64, "kv_cache_gb": 2.0}
DATA_ENGINE_OPTIONS = tuple(
    dataclasses.replace(option, default=OWN_DEFAULTS.get(option.field))
    for option in ENGINE_OPTIONS
    if option.field not in DRAFTING | GRAMMARS
)
WAY_IN_WORDS: dict[Way, str] = {
    "self": "with --data self",
    "files": "with files whose answers are kept",
    "answers": "with --regenerate",
    "folders": "with folders, which are copied",
}


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `train-data` to the command line."""
    parser = commands.add_parser("train-data", help="write conversations to train on", description=DESCRIPTION)
    source = parser.add_argument_group("data")
    source.add_argument(
        "--target",
        default="smollm2-135m",
        metavar="MODEL",
        help="a known name, a GGUF file, a Hugging Face folder or a hub id (default smollm2-135m)",
    )
    source.add_argument("--output", required=True, metavar="DIR", help="folder of the data")
    add_options(source, SOURCE_OPTIONS, RECORDS)
    add_options(parser.add_argument_group("amount"), AMOUNT_OPTIONS, RECORDS)
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print one JSON object")
    engine = parser.add_argument_group("engine in which the target writes")
    engine.add_argument("--threads", type=integer, metavar="N", help=THREADS_HELP)
    add_options(engine, DATA_ENGINE_OPTIONS, ENGINE_RECORDS)
    parser.set_defaults(run=run)


def check_arguments(args: argparse.Namespace) -> DataSettings:
    """Turn parsed arguments into settings.

    Raises:
        InvalidParameterError: a value outside its range, or an option that means nothing for this data.
    """
    values = values_given(args, OWN_OPTIONS)
    for name in ("data", "exclude"):
        if name in values:
            values[name] = tuple(values[name])
    settings = DataSettings(
        target=args.target,
        output=Path(args.output),
        engine=_engine_config(args),
        num_threads=check_threads(args.threads),
        **values,
    )
    _refuse_idle_options(args, settings.way)
    return settings


def run(args: argparse.Namespace) -> None:
    """Write the data that `args` describe."""
    settings = check_arguments(args)
    with shown_progress() as show:
        resolve_model(settings.target, show)
    with _shown(settings.way, args.json) as view:
        from aquiline.training.data_run import DataRun

        summary = DataRun(settings, view.on_done, view.on_load).run()
    if args.json:
        write(sys.stdout, json.dumps({"output": str(settings.output), **summary.described()}) + "\n")
    else:
        draw(Console(highlight=False), _drawing(summary, settings.output))


class WorkView:
    """A bar on standard error for what is going on, or lines for a log."""

    def __init__(self, progress: Progress, lines: RareLines, way: Way) -> None:
        self._progress = progress
        self._lines = lines
        self._loading = progress.add_task("packing weights", total=None, visible=FIELDS_OF_WAY[way] >= {"engine"})
        self._writing = progress.add_task("reading", total=None, visible=not FIELDS_OF_WAY[way] >= {"engine"})
        self._unit = "answer tokens" if way == "self" else "tokens" if way == "answers" else "conversations"

    def on_load(self, num_done: int, num_total: int) -> None:
        """Weights are being packed."""
        self._lines.say("packing weights")
        self._progress.update(self._loading, completed=num_done, total=num_total)

    def on_done(self, num_done: int, num_total: int | None) -> None:
        """Data is being written."""
        of_all = f" of {num_total:,}" if num_total else ""
        self._lines.say(f"{num_done:,}{of_all} {self._unit}")
        self._progress.update(self._loading, visible=False)
        self._progress.update(
            self._writing, description=f"{num_done:,} {self._unit}", completed=num_done, total=num_total, visible=True
        )


@contextmanager
def _shown(way: Way, is_hidden: bool) -> Iterator[WorkView]:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=is_hidden or not console.is_terminal) as progress:
        yield WorkView(progress, RareLines(console, is_hidden), way)


def _engine_config(args: argparse.Namespace) -> EngineConfig:
    """The engine's settings that were typed, with defaults for large batches."""
    filled = argparse.Namespace(**vars(args))
    for name, default in OWN_DEFAULTS.items():
        if not hasattr(filled, name) and not (name == "kv_cache_gb" and hasattr(filled, "num_blocks")):
            setattr(filled, name, default)
    return engine_config(filled)


def _refuse_idle_options(args: argparse.Namespace, way: Way) -> None:
    """Refuse what was typed and means nothing for this data."""
    used = FIELDS_OF_WAY[way] | {"data", "exclude"}
    typed = [option.flag for option in OWN_OPTIONS if hasattr(args, option.field) and option.field not in used]
    if "engine" not in used:
        typed += [option.flag for option in DATA_ENGINE_OPTIONS if hasattr(args, option.field)]
        typed += ["--threads"] * (args.threads is not None)
    if typed:
        raise InvalidParameterError(f"{typed[0]} means nothing {WAY_IN_WORDS[way]}; leave it out")


def _drawing(summary: DataSummary, folder: Path) -> Group:
    """What lies in the folder, where it came from by category, and what was left out."""
    written = Table(title=f"training data in {folder}", title_justify="left")
    written.add_column("category")
    written.add_column("answer tokens", justify="right")
    for category, num_tokens in sorted(summary.categories.items(), key=lambda item: -item[1]):
        written.add_row(category or "(none)", f"{num_tokens:,}")
    return Group(written, *map(Text, summary_lines(summary)))


def summary_lines(summary: DataSummary) -> list[str]:
    """How much there is, and what was left out and why."""
    lines = [
        f"{summary.num_conversations:,} conversations with {summary.num_answer_tokens:,} answer tokens, "
        f"{summary.num_tokens:,} tokens in all; {summary.num_held_out:,} more are put aside for evaluation"
    ]
    if summary.tokens_per_second is not None:
        lines.append(f"the target wrote {summary.tokens_per_second:,.0f} tokens/s for {summary.seconds:,.0f} s")
    for reason, count in sorted(summary.num_skipped.items(), key=lambda item: -item[1]):
        if count:
            first = f" ({summary.first_skipped[reason]})" if reason in summary.first_skipped else ""
            lines.append(f"left out: {count:,} {reason}{first}")
    return lines
