"""`aquiline bench offline`: the same prompts with and without speculation, over batch sizes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, cycle, islice
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table

from aquiline.cli.measurement import (
    MAX_ROUNDS,
    add_json_option,
    add_modes_option,
    add_sampling_and_engine,
    batch_sizes_of,
    in_range,
    modes_of,
    print_result,
    shown_bar,
)
from aquiline.cli.model_choice import ModelChoice, add_model_options, check_threads, open_llm
from aquiline.cli.options import engine_config, sampling_params
from aquiline.cli.parser import integer
from aquiline.cli.prompt_sets import add_prompt_set_options, prompt_sets
from aquiline.errors import InvalidParameterError
from aquiline.request import SamplingParams
from aquiline.speculation import SpeculationMode

if TYPE_CHECKING:
    from aquiline.llm import Conversation

DESCRIPTION = """Answer the prompts once for every batch size and every --speculate value, and say where the time
went."""
SWEPT = {"max_num_seqs", "mode", "table"}


@dataclass(frozen=True, kw_only=True)
class OfflineSettings(ModelChoice):
    """A checked `aquiline bench offline` command line."""

    conversations: tuple[Conversation, ...]
    params: SamplingParams
    batch_sizes: tuple[int, ...]
    modes: tuple[SpeculationMode, ...]
    rounds: int
    warm_up_rounds: int
    is_paired: bool
    is_json: bool


def add_command(kinds: argparse._SubParsersAction[Any]) -> None:
    """Add `offline` to the measurements."""
    parser = kinds.add_parser("offline", help="speed over batch sizes and trees", description=DESCRIPTION)
    source = parser.add_argument_group("model and prompts")
    add_model_options(source)
    add_prompt_set_options(source)
    sweep = parser.add_argument_group("sweep")
    sweep.add_argument("--batch-sizes", metavar="N,N", default="1", help="batch sizes, separated by commas (default 1)")
    add_modes_option(sweep)
    sweep.add_argument("--rounds", type=integer, default=1, metavar="N", help="runs of each, the median counts")
    sweep.add_argument(
        "--warm-up-rounds",
        type=integer,
        default=0,
        metavar="N",
        help="runs before them in the same engine, as in a service that has run for a while (default 0: fresh engines)",
    )
    sweep.add_argument(
        "--paired",
        action="store_true",
        help="take turns after every batch of prompts, each value in one engine, and tell ratios and how sure they are",
    )
    add_json_option(parser)
    add_sampling_and_engine(parser, SWEPT)
    parser.set_defaults(run=run)


def check_arguments(args: argparse.Namespace) -> OfflineSettings:
    """Turn parsed arguments into settings.

    Raises:
        UserError: a value outside its range, or prompts that cannot be read.
    """
    rounds = in_range("--rounds", args.rounds, 1, MAX_ROUNDS)
    warm_up_rounds = in_range("--warm-up-rounds", args.warm_up_rounds, 0, MAX_ROUNDS)
    modes, batch_sizes = modes_of(args.speculate), batch_sizes_of(args.batch_sizes)
    config = engine_config(args)
    if args.draft == "none" and config.speculative.lookup == "off" and any(mode.shape is not None for mode in modes):
        raise InvalidParameterError(
            "--draft none and --lookup off grow no tree; keep one of them, or measure only --speculate off"
        )
    if (warm_up_rounds or (args.paired and rounds > 1)) and config.speculative.lookup_history:
        raise InvalidParameterError(
            f"every prompt is answered more than once, and --lookup-history {config.speculative.lookup_history} would "
            "find the answers of the rounds before; leave it out, or ask once"
        )
    return OfflineSettings(
        model=args.model,
        draft=args.draft,
        config=config,
        num_threads=check_threads(args.threads),
        conversations=_conversations(args, max(batch_sizes)),
        params=sampling_params(args),
        batch_sizes=batch_sizes,
        modes=modes,
        rounds=rounds,
        warm_up_rounds=warm_up_rounds,
        is_paired=args.paired,
        is_json=args.json,
    )


def _conversations(args: argparse.Namespace, num_wanted: int) -> tuple[Conversation, ...]:
    """All prompts; those of workloads again and again until they fill the largest batch."""
    found = tuple(chain.from_iterable(prompt_sets(args).values()))
    return found if args.prompts is not None else tuple(islice(cycle(found), max(num_wanted, len(found))))


def run(args: argparse.Namespace) -> None:
    """Run the sweep that `args` describes."""
    settings = check_arguments(args)
    llm = open_llm(settings)
    from aquiline.benchmark.offline import Sweep, measure_offline
    from aquiline.benchmark.paired import measure_paired, num_group_runs

    sweep = Sweep(settings.batch_sizes, settings.modes, settings.rounds, settings.warm_up_rounds)
    num_runs, measure = sweep.num_runs, measure_offline
    if settings.is_paired:
        num_runs, measure = num_group_runs(sweep, len(settings.conversations)), measure_paired
    with shown_bar("measuring", num_runs) as bar:
        rows = measure(llm, settings.conversations, settings.params, sweep, bar)
    result = {"kind": "offline", "backend": llm.backend, "num_prompts": len(settings.conversations), "rows": rows}
    print_result(result, settings.is_json, lambda: drawing(rows))


def drawing(rows: Sequence[dict[str, Any]]) -> Group:
    """How fast each row was, and below it where its time went: one table of both is wider than a terminal."""
    columns = {
        "tokens/s": "tokens_per_second",
        "machine\nms/token": "time_per_committed_token_ms",
        "acceptance length": "acceptance_length",
        "peak MB": "peak_memory_mb",
    }
    whole = [{name: row[key] for name, key in columns.items()} for row in rows]
    full = [_full_batch(row) for row in rows]
    phases = [row["phases_ms"] for row in rows]
    return Group(
        _table("whole answers", rows, whole),
        _table("while the batch was full", rows, full),
        _table("milliseconds per committed token", rows, phases),
    )


def _full_batch(row: dict[str, Any]) -> dict[str, float]:
    """Zeros where the batch was never full."""
    columns = {"tokens/s": "tokens_per_second", "tokens/step": "committed_tokens", "ms/step": "step_ms"}
    found = row["full_batch"] or dict.fromkeys(columns.values(), 0.0)
    figures = {name: found[key] for name, key in columns.items()}
    if "ratio" in row:
        ratio = row["ratio"] or {"mean": 0.0, "standard_error": 0.0}
        figures["times\nthe first"] = ratio["mean"]
        figures["+-"] = ratio["standard_error"] or 0.0
    return figures


def _table(title: str, rows: Sequence[dict[str, Any]], figures: Sequence[dict[str, float]]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("batch", justify="right", no_wrap=True)
    table.add_column("speculate", overflow="fold")
    for name in figures[0]:
        table.add_column(name, justify="right", no_wrap=True)
    for row, shown in zip(rows, figures, strict=True):
        table.add_row(str(row["batch_size"]), row["speculate"], *(f"{figure:.2f}" for figure in shown.values()))
    return table
