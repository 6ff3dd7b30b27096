"""`aquiline tune`: measure what steps cost on this machine, and show what the planner makes of it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.table import Table

from aquiline.atomic_file import write_atomically
from aquiline.cli.measurement import shown_bar
from aquiline.cli.model_choice import ModelChoice, add_model_options, check_threads, open_llm
from aquiline.cli.options import ENGINE_OPTIONS, ENGINE_RECORDS, engine_config
from aquiline.cli.output import draw, write
from aquiline.cli.parser import add_options
from aquiline.cli.speculate_table import write_table
from aquiline.config import GrammarConfig
from aquiline.errors import InvalidParameterError, UserError

if TYPE_CHECKING:
    from aquiline.benchmark.chosen_shapes import ChosenShape
    from aquiline.engine.profile import StoredProfile
    from aquiline.llm import LLM

DESCRIPTION = """Time plain steps and trees of many sizes on this machine, in turn, and keep what they cost, so that
--speculate auto decides by it. Without it a shorter measurement is made when a model is first opened."""
SHOWN_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
SETTLED = {"mode", "table", "lookup", "lookup_tokens", "lookup_history", "acceptance"}
SETTLED |= {field.name for field in fields(GrammarConfig)}


@dataclass(frozen=True, kw_only=True)
class TuneSettings(ModelChoice):
    """A checked `aquiline tune` command line.

    Attributes:
        only_shows: what was measured before is shown, and nothing is measured.
        is_short: the measurement is the one that opening a model makes.
        plot, table: files to write; None: none.
    """

    only_shows: bool
    is_short: bool
    plot: Path | None
    table: Path | None


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `tune` to the command line."""
    parser = commands.add_parser("tune", help="measure step times for the planner", description=DESCRIPTION)
    add_model_options(parser.add_argument_group("model"))
    output = parser.add_argument_group("measurement and output")
    output.add_argument("--show", action="store_true", help="show what was measured before, and measure nothing")
    output.add_argument("--short", action="store_true", help="measure for about a second, as opening a model does")
    output.add_argument("--plot", metavar="FILE", help="draw the costs, as a PNG file")
    output.add_argument(
        "--write-table", metavar="FILE", help="write the best shape for each load, for --speculate-table"
    )
    output.add_argument("--json", action="store_true", help="print one JSON object")
    options = [option for option in ENGINE_OPTIONS if option.field not in SETTLED]
    add_options(parser.add_argument_group("engine"), options, ENGINE_RECORDS)
    parser.set_defaults(run=run)


def check_arguments(args: argparse.Namespace) -> TuneSettings:
    """Turn parsed arguments into settings.

    Raises:
        UserError: a value outside its range, or options that contradict each other.
    """
    if args.show and args.short:
        raise InvalidParameterError("--show measures nothing and --short does; give only one of them")
    if args.draft == "none":
        raise InvalidParameterError("--draft none grows no tree, and there is nothing to plan; keep a draft")
    return TuneSettings(
        model=args.model,
        draft=args.draft,
        config=engine_config(args),
        num_threads=check_threads(args.threads),
        is_json=args.json,
        only_shows=args.show,
        is_short=args.short,
        plot=_picture_to_write("--plot", args.plot),
        table=_file_to_write("--write-table", args.write_table),
    )


def run(args: argparse.Namespace) -> None:
    """Measure or show as `args` says."""
    settings = check_arguments(args)
    llm = open_llm(replace(settings, config=_without_planning(settings.config)))
    from aquiline.benchmark.chosen_shapes import chosen_by_objective

    if llm.models.draft is None:
        raise UserError(f"there is no draft model for {settings.model!r}, and nothing to plan; name one with --draft")
    stored = _stored(llm, settings)
    speculative, draft = settings.config.speculative, llm.models.draft.config
    objectives = chosen_by_objective(stored.costs, speculative, draft, llm.step_costs.priors())
    chosen = objectives[speculative.objective.text]
    if settings.plot is not None:
        _write_picture(settings.plot, stored)
    if settings.table is not None:
        write_table(settings.table, [(shape.num_requests, shape.text) for shape in chosen])
    if settings.is_json:
        content = {
            "kind": "tune",
            **asdict(stored),
            "chosen": [asdict(shape) for shape in chosen],
            "objectives": {text: [asdict(shape) for shape in shapes] for text, shapes in objectives.items()},
        }
        write(sys.stdout, json.dumps(content) + "\n")
    else:
        draw(Console(highlight=False), drawing(stored, objectives))
        for path, what in ((settings.plot, "the costs, drawn"), (settings.table, "shapes for --speculate-table")):
            if path is not None:
                write(sys.stdout, f"{path}: {what}\n")


def _file_to_write(option: str, text: str | None) -> Path | None:
    """Where a file will go; known to be a place for one before anything is measured."""
    if text is None:
        return None
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise InvalidParameterError(f"{option} is {text!r}; name a file in a folder that is there")
    return path


def _picture_to_write(option: str, text: str | None) -> Path | None:
    """Where a picture will go, which is PNG whatever the name says."""
    path = _file_to_write(option, text)
    if path is not None and path.suffix.lower() not in ("", ".png"):
        raise InvalidParameterError(f"{option} is {text!r}, and the picture is PNG; name a file that ends in .png")
    return path


def _write_picture(path: Path, stored: StoredProfile) -> None:
    from aquiline.benchmark.cost_plot import cost_picture

    try:
        write_atomically(path, cost_picture(stored.costs))
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error


def _without_planning(config: Any) -> Any:
    """The settings with a fixed shape, so that opening the model does not measure what is measured afterwards."""
    from aquiline.speculation import parse_speculation

    return replace(config, speculative=replace(config.speculative, mode=parse_speculation("chain:1"), lookup="off"))


def _stored(llm: LLM, settings: TuneSettings) -> StoredProfile:
    from aquiline.engine.profile import load_profile, save_profile
    from aquiline.engine.tuning import LONG_ROUNDS, LONG_STAGES, SHORT_ROUNDS, SHORT_STAGES
    from aquiline.step_costs import profile_folder

    if settings.only_shows:
        stored = load_profile(profile_folder(), llm.step_costs.key(settings.config))
        if stored is None:
            raise UserError("nothing was measured for this model, these settings and this machine; run aquiline tune")
        return stored
    stages, num_rounds = (SHORT_STAGES, SHORT_ROUNDS) if settings.is_short else (LONG_STAGES, LONG_ROUNDS)
    with shown_bar("timing steps", is_hidden=settings.is_json) as bar:

        def show(reason: str, num_done: int, num_total: int) -> None:
            bar(num_done, num_total)

        llm.step_costs.on_progress = show
        measured = llm.step_costs.measure(llm.models, settings.config, stages, num_rounds)
    save_profile(profile_folder(), measured)
    return measured


def drawing(stored: StoredProfile, objectives: Mapping[str, Sequence[ChosenShape]]) -> Group:
    """Costs by rows, and what they lead to under each objective."""
    costs, key = stored.costs, stored.key
    kind = "short measurement" if stored.is_short else "measurement"
    table = Table(
        title=f"{kind} of {stored.date}, {stored.num_steps} steps, {key.num_threads} threads: milliseconds",
        title_justify="left",
    )
    for name in ("rows", "target", "draft: new rows", "draft: children of roots", "draft: a level", "sampling"):
        table.add_column(name, justify="right")
    for rows in (rows for rows in SHOWN_ROWS if rows <= costs.verify.rows[-1]):
        sample = costs.sample_base + costs.sample_per_row * rows
        figures = [costs.verify.at(rows), costs.extend.at(rows), costs.propose_roots.at(rows), costs.level.at(rows)]
        table.add_row(str(rows), *(f"{1000.0 * seconds:.2f}" for seconds in [*figures, sample]))
    return Group(table, *(_shapes_table(text, chosen) for text, chosen in objectives.items()))


def _shapes_table(objective: str, chosen: Sequence[ChosenShape]) -> Table:
    shapes = Table(title=f"what the planner would begin with, for {objective}", title_justify="left")
    for name in ("requests", "tree", "tokens\na step", "step ms", "tokens/s", "plain tokens/s"):
        shapes.add_column(name, justify="right", overflow="fold", no_wrap=name == "tree")
    for shape in chosen:
        shapes.add_row(
            str(shape.num_requests),
            shape.text.replace(",nodes", ",\nnodes"),  # broken where it reads well, so that it fits into 80 columns
            f"{shape.expected:.2f}",
            f"{shape.step_ms:.2f}",
            f"{shape.tokens_per_second:.0f}",
            f"{shape.plain_tokens_per_second:.0f}",
        )
    return shapes
