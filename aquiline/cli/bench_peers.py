"""`aquiline bench peers`: this engine and others on the same machine, in turn."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from aquiline.benchmark import llama_cpp, peer_report
from aquiline.benchmark.peers import Outcome, Program, run_rounds
from aquiline.benchmark.provenance import provenance
from aquiline.benchmark.python_engines import OwnModel, Workload, own_program, vllm_program
from aquiline.cli.measurement import MAX_ROUNDS, batch_sizes_of, in_range, shown_bar
from aquiline.cli.model_choice import check_draft, check_threads
from aquiline.cli.output import draw, write
from aquiline.cli.parser import integer
from aquiline.cli.prompts import read_prompts
from aquiline.config import EngineConfig
from aquiline.errors import InvalidParameterError
from aquiline.model_store import resolve_model
from aquiline.request import SamplingParams
from aquiline.speculation import parse_speculation

DESCRIPTION = """Decode and prefill with this engine, llama.cpp and vLLM, each alone in a process of its own, in rounds,
and compare what belongs to the same round. Peers are programs that are here already; nothing is fetched for them."""
# Load average above which somebody else was computing before the first run.
BUSY_LOAD = 0.5


@dataclass(frozen=True, kw_only=True)
class PeerSettings:
    """A checked `aquiline bench peers` command line."""

    own: OwnModel
    files: tuple[Path, ...]
    workload: Workload
    llama_bench: Path | None
    llama_batched_bench: Path | None
    llama_flash_attention: str
    vllm_python: Path | None
    vllm_model: Path | None
    num_rounds: int
    is_json: bool


def add_command(kinds: argparse._SubParsersAction[Any]) -> None:
    """Add `peers` to the measurements."""
    parser = kinds.add_parser("peers", help="speed beside llama.cpp and vLLM", description=DESCRIPTION)
    own = parser.add_argument_group("this engine")
    own.add_argument(
        "--gguf",
        metavar="FILE",
        action="append",
        required=True,
        help="a model; repeat it for the same model in other quantisations, of which only llama.cpp runs all",
    )
    own.add_argument("--draft", default="auto", metavar="PATH", help="draft of the first file, as for generate")
    own.add_argument("--quantization", default="auto", metavar="KIND", help="of its weights (default auto)")
    own.add_argument(
        "--speculate", default="auto", metavar="SHAPE", help="trees at batch size 1; off measures none (default auto)"
    )
    peers = parser.add_argument_group("peers")
    peers.add_argument("--llama-bench", type=Path, metavar="PATH", help="llama.cpp's program for one request")
    peers.add_argument("--llama-batched-bench", type=Path, metavar="PATH", help="llama.cpp's program for batches")
    peers.add_argument(
        "--llama-flash-attention",
        choices=llama_cpp.FLASH_ATTENTION,
        default="auto",
        help="its attention kernel; take the faster one (default auto)",
    )
    peers.add_argument("--vllm-python", type=Path, metavar="PATH", help="an interpreter that can import vllm")
    peers.add_argument("--vllm-model", type=Path, metavar="DIR", help="the model as a Hugging Face folder")
    work = parser.add_argument_group("work")
    work.add_argument("--prompts", metavar="FILE", required=True, help="JSONL file, as for generate; - is stdin")
    work.add_argument("--batch-sizes", metavar="N,N", default="1,16", help="of plain decoding (default 1,16)")
    work.add_argument("--max-tokens", type=integer, default=128, metavar="N", help="output tokens (default 128)")
    work.add_argument("--threads", type=integer, metavar="N", help="of every engine (default: all cores)")
    work.add_argument("--rounds", type=integer, default=3, metavar="N", help="runs of every program (default 3)")
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print one JSON object with rows, ratios and provenance")
    parser.set_defaults(run=run)


def check_arguments(args: argparse.Namespace) -> PeerSettings:
    """Turn parsed arguments into settings; the prompts become token ids of the first file.

    Raises:
        UserError: a value outside its range, a program or model that is not there, or nobody to compare with.
    """
    _check_peers(args)
    files = _gguf_files(args.gguf)
    mode = parse_speculation(args.speculate)
    if args.draft == "none" and mode.shape is not None:
        raise InvalidParameterError("--draft none grows no tree; keep a draft, or give --speculate off")
    check_draft(args.draft)
    own = OwnModel(
        model=args.gguf[0],
        file=files[0].name,
        draft=args.draft,
        quantization=EngineConfig(quantization=args.quantization).quantization,
        speculate=mode.text,
    )
    return PeerSettings(
        own=own,
        files=files,
        workload=_workload(args, files[0]),
        llama_bench=_absolute(args.llama_bench),
        llama_batched_bench=_absolute(args.llama_batched_bench),
        llama_flash_attention=args.llama_flash_attention,
        vllm_python=_absolute(args.vllm_python),
        vllm_model=_absolute(args.vllm_model),
        num_rounds=in_range("--rounds", args.rounds, 1, MAX_ROUNDS),
        is_json=args.json,
    )


def run(args: argparse.Namespace) -> None:
    """Run the rounds that `args` describes."""
    settings = check_arguments(args)
    programs = programs_of(settings)
    load_average = os.getloadavg()[0]
    with shown_bar("starting", settings.num_rounds * len(programs)) as bar:

        def show(num_done: int, program: Program) -> None:
            bar(num_done)
            bar.rename(escape(f"{program.engine} {program.file}"))

        outcomes = run_rounds(programs, settings.num_rounds, show)
    if settings.is_json:
        workload = settings.workload
        asked = {
            "num_rounds": settings.num_rounds,
            "num_threads": workload.num_threads,
            "num_prompts": len(workload.prompts),
            "mean_prompt_tokens": workload.mean_prompt_tokens,
            "max_tokens": workload.max_tokens,
            "load_average_before": round(load_average, 2),
        }
        result = asked | peer_report.as_json(outcomes) | provenance(sys.argv[1:])
        write(sys.stdout, json.dumps(result) + "\n")
    else:
        _draw_report(outcomes)
    if load_average > BUSY_LOAD:
        write(
            sys.stderr,
            f"The machine was busy (load average {load_average:.1f} before the first run); engines that spin while they"
            " wait suffer most from that, so do not trust these ratios.\n",
        )


def programs_of(settings: PeerSettings) -> list[Program]:
    """Every program of one round, in order."""
    workload = settings.workload
    programs = [own_program(settings.own, workload)]
    batched_sizes = tuple(size for size in workload.batch_sizes if size > 1 or settings.llama_bench is None)
    for file in settings.files:
        if settings.llama_bench is not None:
            programs += llama_cpp.single_programs(settings.llama_bench, file, workload, settings.llama_flash_attention)
        if settings.llama_batched_bench is not None and batched_sizes:
            bench, attention = settings.llama_batched_bench, settings.llama_flash_attention
            programs.append(llama_cpp.batched_program(bench, file, workload, batched_sizes, attention))
    if settings.vllm_python is not None and settings.vllm_model is not None:
        programs.append(vllm_program(settings.vllm_python, settings.vllm_model, workload))
    return programs


def _check_peers(args: argparse.Namespace) -> None:
    programs = {
        "--llama-bench": args.llama_bench,
        "--llama-batched-bench": args.llama_batched_bench,
        "--vllm-python": args.vllm_python,
    }
    if not any(programs.values()):
        raise InvalidParameterError(f"there is nobody to compare with; give at least one of {', '.join(programs)}")
    for option, path in programs.items():
        if path is not None and not (path.is_file() and os.access(path, os.X_OK)):
            raise InvalidParameterError(f"{option} is {str(path)!r}; it must be the path of a program that can be run")
    if (args.vllm_python is None) != (args.vllm_model is None):
        raise InvalidParameterError("--vllm-python and --vllm-model belong together; give both, or none of them")
    if args.vllm_model is not None and not (args.vllm_model / "config.json").is_file():
        raise InvalidParameterError(
            f"--vllm-model is {str(args.vllm_model)!r}; it must be a Hugging Face folder, with a config.json"
        )
    if len(args.gguf) > 1 and args.llama_bench is None and args.llama_batched_bench is None:
        raise InvalidParameterError(
            "only llama.cpp runs more than one --gguf; give --llama-bench or --llama-batched-bench, or a single file"
        )


def _absolute(path: Path | None) -> Path | None:
    """A bare name would be looked for among the installed programs; links stay, for an interpreter knows its folder."""
    return None if path is None else path.absolute()


def _gguf_files(names: Sequence[str]) -> tuple[Path, ...]:
    """The files that are named; reports call them by their last part, so that one has to differ."""
    files: list[Path] = []
    for name in names:
        file = resolve_model(name)
        if file.is_dir():
            raise InvalidParameterError(f"--gguf is {name!r}, which is a folder; give a GGUF file or a known name")
        if file.name in {other.name for other in files}:
            raise InvalidParameterError(f"two --gguf are called {file.name!r}; give files with different names")
        files.append(file)
    return tuple(files)


def _workload(args: argparse.Namespace, file: Path) -> Workload:
    batch_sizes = batch_sizes_of(args.batch_sizes)
    if args.max_tokens < 2:
        raise InvalidParameterError(f"--max-tokens is {args.max_tokens}; decoding is timed from the second token on")
    max_tokens = SamplingParams(max_tokens=args.max_tokens).max_tokens
    assert max_tokens is not None
    num_cores = len(os.sched_getaffinity(0))
    num_threads = check_threads(args.threads) or num_cores
    if num_threads > num_cores:
        raise InvalidParameterError(
            f"--threads is {num_threads} and there are {num_cores} cores; peers whose threads spin would only wait"
            " for each other, so give at most as many"
        )
    prompts = read_prompts([], args.prompts, is_raw=False)
    from aquiline.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_path(file)
    token_ids = tuple(tuple(tokenizer.apply_chat_template(prompt.messages)) for prompt in prompts)
    return Workload(token_ids, batch_sizes, max_tokens, num_threads)


def _draw_report(outcomes: Sequence[Outcome]) -> None:
    console = Console(highlight=False)
    rows = peer_report.rows_of(outcomes)
    if rows:
        draw(console, _rates_table(rows))
    ratios = peer_report.ratios_of(rows)
    if ratios:
        draw(console, _ratios_table(ratios))
    for failure in peer_report.failures_of(outcomes):
        write(sys.stdout, f"failed: {failure.engine} {failure.file}: {failure.message}\n")
    versions = peer_report.versions_of(outcomes)
    if versions:
        write(sys.stdout, ", ".join(f"{engine} {version}" for engine, version in versions.items()) + "\n")


def _rates_table(rows: Sequence[peer_report.Row]) -> Table:
    """Tokens per second: a line per engine and file, a column per quantity, median (least..greatest)."""
    quantities = list(dict.fromkeys(row.quantity for row in rows))
    cells = {(row.shown, row.quantity): row.spread for row in rows}
    table = Table(Column("tokens/s", overflow="fold"), *[escape(quantity.shown) for quantity in quantities])
    for name in dict.fromkeys(row.shown for row in rows):
        spreads = [cells.get((name, quantity)) for quantity in quantities]
        table.add_row(escape(name), *[_spelt(spread, 1) if spread else "" for spread in spreads])
    return table


def _ratios_table(ratios: Sequence[peer_report.Ratio]) -> Table:
    table = Table("ours", "against", Column("", overflow="fold"), "ratio")
    for ratio in ratios:
        table.add_row(escape(ratio.own.shown), ratio.against, escape(ratio.peer), _spelt(ratio.spread, 2))
    return table


def _spelt(spread: peer_report.Spread, num_digits: int) -> str:
    shown = f"{spread.median:.{num_digits}f}"
    if spread.least == spread.greatest:
        return shown
    return f"{shown} ({spread.least:.{num_digits}f}..{spread.greatest:.{num_digits}f})"
