"""`aquiline bench latency`: what one user waits for."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rich.table import Table

from aquiline.cli.measurement import (
    MAX_ROUNDS,
    add_json_option,
    add_modes_option,
    add_sampling_and_engine,
    check_each_once,
    in_range,
    modes_of,
    print_result,
    shown_bar,
)
from aquiline.cli.model_choice import ModelChoice, add_model_options, check_threads, open_llm
from aquiline.cli.options import engine_config, sampling_params
from aquiline.cli.parser import integer
from aquiline.cli.prompt_sets import add_prompt_set_options, prompt_sets
from aquiline.config import LookupMode
from aquiline.errors import InvalidParameterError
from aquiline.request import SamplingParams
from aquiline.speculation import SpeculationMode

if TYPE_CHECKING:
    from aquiline.benchmark.latency import Variant
    from aquiline.llm import Conversation

DESCRIPTION = """Answer prompts one after the other, as a single user would ask them, with every --speculate and
--lookup value in turn: time to the first token, time per token after it, and where it went."""
SWEPT = {"max_num_seqs", "mode", "lookup", "enable_prefix_cache"}


@dataclass(frozen=True, kw_only=True)
class LatencySettings(ModelChoice):
    """A checked `aquiline bench latency` command line."""

    workloads: dict[str, Sequence[Conversation]]
    params: SamplingParams
    modes: tuple[SpeculationMode, ...]
    lookups: tuple[LookupMode, ...]
    rounds: int


def add_command(kinds: argparse._SubParsersAction[Any]) -> None:
    """Add `latency` to the measurements."""
    parser = kinds.add_parser("latency", help="what one user waits for", description=DESCRIPTION)
    source = parser.add_argument_group("model and prompts")
    add_model_options(source)
    add_prompt_set_options(source)
    sweep = parser.add_argument_group("sweep")
    add_modes_option(sweep)
    sweep.add_argument(
        "--lookup", dest="lookups", metavar="WHEN,WHEN", default="auto", help="auto, on or off (default auto)"
    )
    sweep.add_argument("--rounds", type=integer, default=3, metavar="N", help="answers of each, the quickest counts")
    add_json_option(parser)
    add_sampling_and_engine(parser, SWEPT)
    parser.set_defaults(run=run)


def check_arguments(args: argparse.Namespace) -> LatencySettings:
    """Turn parsed arguments into settings.

    Raises:
        UserError: a value outside its range, or prompts that cannot be read.
    """
    params = sampling_params(args)
    if params.n != 1:
        raise InvalidParameterError(f"--n is {params.n}; one user reads one answer: leave it away")
    rounds = in_range("--rounds", args.rounds, 1, MAX_ROUNDS)
    modes = modes_of(args.speculate)
    config = engine_config(args)
    lookups = tuple(args.lookups.split(","))
    check_each_once("--lookup", args.lookups, lookups)
    for mode in modes:
        for lookup in lookups:
            replace(config.speculative, mode=mode, lookup="off" if mode.is_off and lookup == "on" else lookup)
    return LatencySettings(
        model=args.model,
        draft=args.draft,
        config=replace(config, speculative=replace(config.speculative, mode=_demanding_mode(modes))),
        num_threads=check_threads(args.threads),
        workloads=prompt_sets(args),
        params=params,
        modes=modes,
        lookups=lookups,
        rounds=rounds,
        is_json=args.json,
    )


def _demanding_mode(modes: Sequence[SpeculationMode]) -> SpeculationMode:
    """The first of the modes for which a draft is loaded, if there is one."""
    return next((mode for mode in modes if not mode.is_off), modes[0])


def variants_of(settings: LatencySettings) -> list[Variant]:
    """Every mode with every lookup; plain decoding once."""
    from aquiline.benchmark.latency import Variant

    found = [Variant(mode, "off" if mode.is_off else look) for mode in settings.modes for look in settings.lookups]
    return list(dict.fromkeys(found))


def run(args: argparse.Namespace) -> None:
    """Measure what `args` describes."""
    settings = check_arguments(args)
    llm = open_llm(settings)
    from aquiline.benchmark.latency import measure_latency

    variants = variants_of(settings)
    num_answers = sum(map(len, settings.workloads.values())) * len(variants) * settings.rounds
    with shown_bar("answering", num_answers) as bar:
        rows = measure_latency(llm, settings.workloads, settings.params, variants, settings.rounds, bar)
    result = {"kind": "latency", "backend": llm.backend, "rounds": settings.rounds, "rows": rows}
    print_result(result, settings.is_json, lambda: table_of(rows))


def table_of(rows: Sequence[dict[str, Any]]) -> Table:
    """What matters to a reader; the JSON has the rest."""
    table = Table(title="one request at a time", title_justify="left")
    table.add_column("workload", no_wrap=True)
    table.add_column("speculate", overflow="fold")
    table.add_column("lookup", no_wrap=True)
    for name in ("TTFT ms", "TPOT ms", "speed-up", "acceptance\nlength"):
        table.add_column(name, justify="right", no_wrap=True)
    first: dict[str, Any] = {}
    for row in rows:
        first.setdefault(row["workload"], row["tpot_ms"])
        tpot, base = row["tpot_ms"], first[row["workload"]]
        table.add_row(
            row["workload"],
            row["speculate"],
            row["lookup"],
            f"{row['ttft_ms']:.1f}",
            "-" if tpot is None else f"{tpot:.2f}",
            f"{base / tpot:.2f}" if tpot and base else "-",
            f"{row['acceptance_length']:.2f}",
        )
    return table
