"""`aquiline bench kernels`: the native kernels against what the machine reaches at best."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from aquiline.cli.measurement import add_json_option, check_each_once, print_result, shown_bar
from aquiline.cli.model_choice import ModelChoice, add_model_options, check_threads, open_llm
from aquiline.cli.options import ENGINE_OPTIONS, ENGINE_RECORDS, engine_config
from aquiline.cli.parser import add_options, integer
from aquiline.errors import InvalidParameterError

DESCRIPTION = """Measure how fast this machine reads and multiplies, then every native kernel of a model at several
numbers of rows, beside the time that its bytes and products would take at that speed."""
FIELDS = {"quantization", "kv_cache_dtype"}
MOST_ROWS = 4096
MOST_ROUNDS = 10_000


@dataclass(frozen=True, kw_only=True)
class KernelSettings(ModelChoice):
    """A checked `aquiline bench kernels` command line."""

    row_counts: tuple[int, ...]
    context: int
    num_rounds: int
    is_json: bool


def add_command(kinds: argparse._SubParsersAction[Any]) -> None:
    """Add `kernels` to the measurements."""
    parser = kinds.add_parser("kernels", help="native kernels against their floor", description=DESCRIPTION)
    source = parser.add_argument_group("model")
    add_model_options(source)
    add_options(source, [option for option in ENGINE_OPTIONS if option.field in FIELDS], ENGINE_RECORDS)
    sweep = parser.add_argument_group("sweep")
    sweep.add_argument(
        "--rows", metavar="N,N", default="1,2,4,8,16,32,256", help="rows of a call (default 1,2,4,8,16,32,256)"
    )
    sweep.add_argument(
        "--context", type=integer, metavar="N", default=256, help="tokens before a draft tree (default 256)"
    )
    sweep.add_argument("--rounds", type=integer, metavar="N", default=15, help="turns of each size (default 15)")
    add_json_option(parser)
    parser.set_defaults(run=run)


def check_arguments(args: argparse.Namespace) -> KernelSettings:
    """Turn parsed arguments into settings.

    Raises:
        UserError: a value outside its range.
    """
    if not 1 <= args.rounds <= MOST_ROUNDS:
        raise InvalidParameterError(f"--rounds is {args.rounds}; it must be 1 to {MOST_ROUNDS}")
    row_counts = tuple(_row_count(text) for text in args.rows.split(","))
    check_each_once("--rows", args.rows, row_counts)
    return KernelSettings(
        model=args.model,
        draft=args.draft,
        config=engine_config(args),
        num_threads=check_threads(args.threads),
        row_counts=row_counts,
        context=args.context,
        num_rounds=args.rounds,
        is_json=args.json,
    )


def run(args: argparse.Namespace) -> None:
    """Measure the kernels of the model that `args` names."""
    settings = check_arguments(args)
    llm = open_llm(settings)
    from aquiline.benchmark.kernels import KernelSweep, measure_kernels

    sweep = KernelSweep(settings.row_counts, settings.context, settings.num_rounds)
    with shown_bar("measuring") as bar:
        result = measure_kernels(llm, sweep, bar)
    print_result(result, settings.is_json, lambda: drawing(result))


def drawing(result: dict[str, Any]) -> Group:
    """The machine on two lines, what each kernel takes and how far that is from its floor, and the whole step."""
    speed = result["speed"]
    found = (
        f"{speed['num_threads']} threads, {speed['level']}: memory {speed['memory_gb_per_s']:.1f} GB/s, cache "
        f"{speed['cache_gb_per_s']:.0f} GB/s\nfloat32 {speed['float32_gops']:.0f}, bfloat16 "
        f"{speed['bfloat16_gops']:.0f}, int8 {speed['int8_gops']:.0f} GOP/s; packed weights "
        f"{result['packed_bytes'] / 1e6:.1f} MB, context {result['context']}"
    )
    steps = [row for row in result["rows"] if row["kernel"] in ("target step", "prefill")]
    others = [row for row in result["rows"] if row not in steps]
    tables = [
        _kernel_table("microseconds per call, by rows", others, "median_us"),
        _kernel_table("times the floor, by rows", others, "ratio_to_floor"),
    ]
    return Group(Text(found), *tables, _step_table(steps))


def _kernel_table(title: str, rows: Sequence[dict[str, Any]], figure: str) -> Table:
    counts = sorted({row["num_rows"] for row in rows})
    table = Table(title=title, title_justify="left")
    table.add_column("kernel", no_wrap=True)
    for count in counts:
        table.add_column(str(count), justify="right", no_wrap=True)
    cells = {(row["kernel"], row["num_rows"]): _short(row[figure]) for row in rows}
    for kernel in dict.fromkeys(row["kernel"] for row in rows):
        table.add_row(kernel, *(cells.get((kernel, count), "") for count in counts))
    return table


def _short(figure: float) -> str:
    return f"{figure:.0f}" if figure >= 100 else f"{figure:.3g}"


def _step_table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table("forward", title="whole forwards, from token ids to logits", title_justify="left")
    for name in ("rows", "ms", "times one row", "times its floor", "rows/s"):
        table.add_column(name, justify="right")
    for row in rows:
        figures = [f"{row['median_us'] / 1e3:.2f}", f"{row['ratio_to_first']:.2f}", f"{row['ratio_to_floor']:.2f}"]
        table.add_row(row["kernel"], str(row["num_rows"]), *figures, f"{row['tokens_per_second']:.0f}")
    return table


def _row_count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", text) or not 1 <= int(text) <= MOST_ROWS:
        raise InvalidParameterError(
            f"--rows has {text!r}; it must be numbers from 1 to {MOST_ROWS}, for example 1,4,16"
        )
    return int(text)
