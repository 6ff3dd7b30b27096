"""`aquiline draft check`: what a draft is worth, and what is wrong with it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from aquiline.cli.model_choice import THREADS_HELP, check_draft, check_threads
from aquiline.cli.options import ENGINE_OPTIONS, ENGINE_RECORDS, engine_config
from aquiline.cli.output import draw, write
from aquiline.cli.parser import add_options, integer
from aquiline.cli.prompts import Prompt, read_prompts
from aquiline.cli.pull import shown_progress
from aquiline.cli.waiting import RareLines, progress_text
from aquiline.config import EngineConfig
from aquiline.errors import DraftMismatchError
from aquiline.model_store import resolve_model

if TYPE_CHECKING:
    from aquiline.training.doctor import DraftReport, ProgressCallback
    from aquiline.training.draft_examination import Examination

DESCRIPTION = """Let the target answer a few prompts, ask the draft at every position what comes next, and do the same
with each mistake mended that files and training runs are known for. Exit status 2 when the draft does not fit."""
FIELDS = {"dtype", "backend", "quantization"}
PER_CENT = 100


@dataclass(frozen=True, kw_only=True)
class CheckSettings:
    """A checked `aquiline draft check` command line."""

    draft: str
    target: str | None
    config: EngineConfig
    num_threads: int | None
    prompts: tuple[Prompt, ...]
    is_json: bool


def add_command(kinds: argparse._SubParsersAction[Any]) -> None:
    """Add `check` to the actions."""
    parser = kinds.add_parser("check", help="what it is worth, and what is wrong", description=DESCRIPTION)
    source = parser.add_argument_group("draft and target")
    source.add_argument("draft", metavar="DRAFT", help="a draft folder, a hub id, or auto: that of a known target")
    source.add_argument("--target", metavar="MODEL", help="the model it drafts for (default: as the draft itself says)")
    source.add_argument("--prompts", metavar="FILE", help="JSONL file, as for generate; - is stdin (default: built in)")
    source.add_argument("--threads", type=integer, metavar="N", help=THREADS_HELP)
    engine = parser.add_argument_group("how the target runs")
    add_options(engine, [option for option in ENGINE_OPTIONS if option.field in FIELDS], ENGINE_RECORDS)
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def check_arguments(args: argparse.Namespace) -> CheckSettings:
    """Turn parsed arguments into settings.

    Raises:
        UserError: a value outside its range, or prompts that cannot be read.
    """
    return CheckSettings(
        draft=args.draft,
        target=args.target,
        config=engine_config(args),
        num_threads=check_threads(args.threads),
        prompts=() if args.prompts is None else read_prompts([], args.prompts, is_raw=False),
        is_json=args.json,
    )


def run(args: argparse.Namespace) -> None:
    """Examine the draft that `args` names.

    Raises:
        DraftMismatchError: it does not fit its target; the report is printed before.
    """
    settings = check_arguments(args)
    check_draft(settings.draft)
    if settings.target is not None:
        with shown_progress() as show:
            resolve_model(settings.target, show)
    from aquiline.training.draft_examination import examine_draft, find_draft, find_target

    draft = find_draft(settings.draft, settings.target)
    target = find_target(draft, settings.target)
    conversations = [prompt.messages for prompt in settings.prompts]
    with phases_shown(settings.is_json) as show_phase:
        found = examine_draft(draft, target, settings.config, settings.num_threads, conversations, show_phase)
    if settings.is_json:
        write(sys.stdout, json.dumps(describe(found)) + "\n")
    else:
        console = Console(highlight=False)
        for part in (facts_table(found), mistakes_table(found.report)):
            draw(console, part)
        draw(console, Text(conclusion(found.report)))
    if not found.report.is_sound:
        raise DraftMismatchError(f"the draft {draft} does not fit its target: {conclusion(found.report)}")


@contextmanager
def phases_shown(is_hidden: bool) -> Iterator[ProgressCallback]:
    """A callback that draws a bar for what is being done, on standard error; where that is no terminal, rare lines."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn())
    with Progress(*columns, console=console, transient=True, disable=is_hidden or not console.is_terminal) as progress:
        task, lines = progress.add_task("loading", total=None), RareLines(console, is_hidden)
        phase = "loading"

        def show(description: str, num_done: int, num_total: int) -> None:
            nonlocal phase
            if description != phase:
                lines.begin(description)
            phase = description
            lines.say(progress_text(description, num_done, num_total))
            progress.update(task, description=description, completed=num_done, total=num_total or None)

        yield show


def facts_table(found: Examination) -> Table:
    """What the draft is, and what it foresees."""
    table = Table(show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts(found).items():
        table.add_row(name, value)
    report = found.report
    shares = [f"{share:.2f}" for share in report.agreement.values()]
    table.add_row(f"right in the first {', '.join(map(str, report.agreement))}", " / ".join(shares))
    table.add_row("accepted by position", " ".join(f"{share:.2f}" for share in report.conditional_per_position))
    length = f"{report.acceptance_length:.2f} with a chain of {len(report.conditional_per_position)}"
    table.add_row("acceptance length", length)
    if report.claimed is not None:
        claimed = " ".join(f"{share:.2f}" for share in report.claimed.conditional_per_position)
        table.add_row("its own figures", f"{claimed} ({report.claimed.prompts})")
    return table


def facts(found: Examination) -> dict[str, str]:
    """What the draft's file says, in words."""
    config, target, report = found.draft.config, found.target, found.report
    layers, rope = config.layers, config.layers.rope
    own_or_target = ("the target's", "its own")
    options = [
        name for name in ("norm_before_residual", "fc_norm", "norm_before_fc", "norm_output") if getattr(config, name)
    ]
    reads = f"outputs of layers {', '.join(map(str, config.aux_layer_ids))} of {target.num_layers}, counted from 0"
    same_base = "as the target" if rope.theta == target.rope.theta else f"the target has {target.rope.theta:g}"
    scaling = "" if rope.kind == "default" else f" ({rope.kind} scaling)"
    coverage = f"{PER_CENT * report.coverage:.1f} % of what the target wrote"
    quantization = found.draft.metadata.quantization
    return {
        "draft": str(found.draft_path),
        "target": str(found.target_path),
        "kind": f"EAGLE-{config.kind[-1]}, {layers.num_layers} layer{'s' * (layers.num_layers > 1)}",
        "features": reads if config.aux_layer_ids else "the state after the final norm",
        "vocabulary": f"{config.draft_vocab_size} of {layers.vocab_size} tokens: {coverage}",
        "rotary base": f"{rope.theta:g}{scaling}, {same_base}",
        "embedding, head": f"{own_or_target[config.has_own_embedding]}, {own_or_target[config.has_own_head]}",
        "options": ", ".join(options) or "none",
        "trained to be served in": f"{quantization}; asked with exact weights" if quantization else "any quantization",
        "positions asked": str(report.num_positions),
    }


def mistakes_table(report: DraftReport) -> Table:
    """How the draft does with each mistake mended."""
    table = Table()
    table.add_column("if the mistake were", no_wrap=True)
    for name in ("right first", "accepted tokens", "nats per token", "evidence"):
        table.add_column(name, justify="right")
    for mistake in report.mistakes:
        table.add_row(
            mistake.name,
            f"{mistake.agreement:.2f}",
            f"{mistake.accepted_gain:+.2f}",
            f"{mistake.likelihood_gain:+.2f}",
            "clear" if mistake.is_clear else "",
        )
    return table


def conclusion(report: DraftReport) -> str:
    """The verdict in a sentence."""
    if report.cause is not None:
        return f"{report.cause.name}: {report.cause.meaning}"
    if report.verdict == "at chance":
        return (
            f"it guesses {PER_CENT * report.agreement[1]:.0f} % right, no better than chance, and no known mistake "
            "explains it: it is untrained, damaged, or made for another model"
        )
    if report.verdict == "below its figures":
        assert report.claimed is not None
        return (
            f"it reaches an acceptance length of {report.acceptance_length:.2f}, and its own figures promise "
            f"{report.claimed.acceptance_length:.2f} on {report.claimed.prompts}; no known mistake explains it"
        )
    if report.verdict == "weak":
        return f"it fits, but guesses only {PER_CENT * report.agreement[1]:.0f} % right; it needs more training to pay"
    return f"it fits: expect an acceptance length of about {report.acceptance_length:.2f} on prompts like these"


def describe(found: Examination) -> dict[str, Any]:
    """The report as the object that `--json` prints."""
    report = found.report
    return {
        "draft": str(found.draft_path),
        "target": str(found.target_path),
        "facts": facts(found),
        "verdict": report.verdict,
        "is_sound": report.is_sound,
        "conclusion": conclusion(report),
        "cause": None if report.cause is None else report.cause.name,
        "num_positions": report.num_positions,
        "agreement": {str(count): share for count, share in report.agreement.items()},
        "chance": report.chance,
        "coverage": report.coverage,
        "conditional_per_position": list(report.conditional_per_position),
        "acceptance_length": report.acceptance_length,
        "claimed_per_position": None if report.claimed is None else list(report.claimed.conditional_per_position),
        "mistakes": [
            {
                "name": mistake.name,
                "agreement": mistake.agreement,
                "accepted_gain": mistake.accepted_gain,
                "likelihood_gain": mistake.likelihood_gain,
                "is_clear": mistake.is_clear,
            }
            for mistake in report.mistakes
        ],
    }
