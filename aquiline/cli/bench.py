"""`aquiline bench`: measure, and print what was measured on what."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from aquiline.cli import (
    bench_accuracy,
    bench_kernels,
    bench_latency,
    bench_offline,
    bench_peers,
    bench_report,
    bench_serving,
)
from aquiline.cli.measurement import add_json_option, add_sampling_and_engine, print_result, shown_bar
from aquiline.cli.model_choice import ModelChoice, add_model_options, check_threads, open_llm
from aquiline.cli.options import engine_config, sampling_params
from aquiline.cli.prompts import Prompt, read_prompts
from aquiline.errors import InvalidParameterError
from aquiline.model_store import KNOWN_MODELS
from aquiline.request import SamplingParams

BENCH_DESCRIPTION = """Measure, and print a table; with --json one object, which also tells who measured: the commit,
the versions, the machine, the arguments and the date. docs/measuring.md says what each figure means."""
DESCRIPTION = """Answer prompts with speculation and count how many draft tokens the target accepts, position by
position. Steps without a draft tree are not counted."""


@dataclass(frozen=True, kw_only=True)
class AcceptanceSettings(ModelChoice):
    """A checked `aquiline bench acceptance` command line."""

    prompts: tuple[Prompt, ...]
    params: SamplingParams
    is_json: bool


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `bench` and what can be measured to the command line."""
    parser = commands.add_parser("bench", help="measure speed, acceptance and accuracy", description=BENCH_DESCRIPTION)
    kinds = parser.add_subparsers(title="measurements", dest="measurement", required=True, metavar="MEASUREMENT")
    acceptance = kinds.add_parser("acceptance", help="accepted draft tokens by position", description=DESCRIPTION)
    source = acceptance.add_argument_group("model and prompts")
    add_model_options(source)
    source.add_argument("--prompts", metavar="FILE", required=True, help="JSONL file, as for generate; - is stdin")
    add_json_option(acceptance)
    add_sampling_and_engine(acceptance)
    acceptance.set_defaults(run=run_acceptance)
    bench_offline.add_command(kinds)
    bench_latency.add_command(kinds)
    bench_serving.add_command(kinds)
    bench_kernels.add_command(kinds)
    bench_peers.add_command(kinds)
    bench_accuracy.add_command(kinds)
    bench_report.add_command(kinds)


def check_arguments(args: argparse.Namespace) -> AcceptanceSettings:
    """Turn parsed arguments into settings.

    Raises:
        UserError: a value outside its range, prompts that cannot be read, or nothing of what is asked for is measured.
    """
    config = engine_config(args)
    has_no_draft = args.draft == "none" or (args.draft == "auto" and args.model not in KNOWN_MODELS)
    if config.speculative.mode.is_off or (has_no_draft and not config.speculative.looks_up(has_draft=False)):
        raise InvalidParameterError(
            "without speculation nothing is accepted; give --speculate a tree, and --draft a draft or --lookup auto"
        )
    params = sampling_params(args)
    if params.logprobs is not None or params.prompt_logprobs is not None:
        raise InvalidParameterError("this measurement reports no log-probabilities; ask generate for them")
    return AcceptanceSettings(
        model=args.model,
        draft=args.draft,
        config=config,
        num_threads=check_threads(args.threads),
        prompts=read_prompts([], args.prompts, is_raw=False),
        params=params,
        is_json=args.json,
    )


def run_acceptance(args: argparse.Namespace) -> None:
    """Measure acceptance on the prompts that `args` names.

    Raises:
        UserError: no step had a tree, as with `auto` and many requests; a length of 0 would say something else.
    """
    settings = check_arguments(args)
    llm = open_llm(settings)
    from aquiline.benchmark.acceptance import measure_acceptance

    conversations = [prompt.messages for prompt in settings.prompts]
    with shown_bar("answering", len(conversations)) as bar:
        figures = measure_acceptance(llm, conversations, settings.params, bar)
    if not figures["num_verify_steps"]:
        raise InvalidParameterError(
            f"no draft tree was verified: --speculate {settings.config.speculative.mode.text} grew none for so many "
            "requests or so short answers; give a tree such as chain:5, or more --max-tokens"
        )
    print_result(figures, settings.is_json, lambda: _table(figures))


def _table(figures: dict[str, Any]) -> Table:
    table = Table("figure", "value")
    for name, value in figures.items():
        shown = " ".join(f"{rate:.2f}" for rate in value) if isinstance(value, list) else str(value)
        table.add_row(name.replace("_", " "), shown)
    return table
