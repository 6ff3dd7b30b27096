"""`aquiline train`: a draft head for a target, from conversations that the target wrote."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aquiline.cli.model_choice import check_threads
from aquiline.cli.parser import add_options, values_given
from aquiline.cli.prompts import read_prompts
from aquiline.cli.pull import shown_progress
from aquiline.cli.train_options import (
    ALL_OPTIONS,
    DRAFT_OPTIONS,
    EVALUATION_OPTIONS,
    RUN_OPTIONS,
    SERVING_OPTIONS,
    TRAINING_OPTIONS,
    for_record,
    values_of_file,
)
from aquiline.cli.train_view import shown_training
from aquiline.cli.yaml_file import read_yaml
from aquiline.config import EngineConfig
from aquiline.errors import InvalidParameterError
from aquiline.model_store import resolve_model
from aquiline.training.data_settings import SELF
from aquiline.training.evaluation_prompts import NO_CATEGORY, EvaluationPrompt, held_out_prompts
from aquiline.training.evaluation_settings import EvaluationSettings
from aquiline.training.run_settings import RunSettings
from aquiline.training.settings import DraftSettings, TrainingSettings

DESCRIPTION = """Train a draft head. The same command goes on with a run that was interrupted. Checkpoints are measured
while it runs, and the one with the lowest time per committed token lies ready in OUTPUT/head."""


@dataclass(frozen=True)
class CommandDefaults:
    """What the run-level options are where nothing is said."""

    target: str | None = None
    output: str | None = None
    data: str | None = None
    num_tokens: int = 1_000_000
    eval_prompts: str | None = None
    device: str = "auto"
    num_threads: int | None = None
    has_plot: bool = True


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """A checked `aquiline train` command line."""

    run: RunSettings
    is_json: bool


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `train` to the command line."""
    parser = commands.add_parser("train", help="train a draft head", description=DESCRIPTION)
    run_group = parser.add_argument_group("run")
    run_group.add_argument("--config", metavar="FILE", help="YAML file with the options below; those typed here win")
    add_options(run_group, RUN_OPTIONS, (CommandDefaults,))
    run_group.add_argument("--json", action="store_true", help="print one JSON object per record and line")
    add_options(parser.add_argument_group("head"), DRAFT_OPTIONS, (DraftSettings,))
    add_options(parser.add_argument_group("recipe"), TRAINING_OPTIONS, (TrainingSettings,))
    add_options(parser.add_argument_group("evaluation"), EVALUATION_OPTIONS, (EvaluationSettings,))
    add_options(parser.add_argument_group("serving"), SERVING_OPTIONS, (EngineConfig,))
    parser.set_defaults(run=run)


def check_arguments(args: argparse.Namespace) -> TrainSettings:
    """Turn parsed arguments, and the file that they name, into settings.

    Raises:
        UserError: a value outside its range or of another type, an unknown key, or a file that cannot be read.
    """
    values = {} if args.config is None else values_of_file(read_yaml(args.config))
    values |= values_given(args, ALL_OPTIONS)
    for name in ("target", "output", "data"):
        if name not in values:
            raise InvalidParameterError(f"--{name} is missing; give it, or write it into the file of --config")
    _refuse_idle_options(values)
    if "stages" in values:
        values["stages"] = tuple(values["stages"])
    training = TrainingSettings(
        draft=DraftSettings(**for_record(DraftSettings, values)), **for_record(TrainingSettings, values)
    )
    return TrainSettings(
        run=RunSettings(
            target=values["target"],
            output=Path(values["output"]),
            data=tuple(values["data"]),
            prompts=evaluation_prompts(values.get("eval_prompts")),
            training=training,
            evaluation=EvaluationSettings(**for_record(EvaluationSettings, values)),
            engine=EngineConfig(**for_record(EngineConfig, values)),
            num_tokens=values.get("num_tokens", CommandDefaults.num_tokens),
            exclude=(values["eval_prompts"],) if "eval_prompts" in values else (),
            num_threads=check_threads(values.get("num_threads")),
            device=values.get("device", CommandDefaults.device),
            has_plot=values.get("has_plot", CommandDefaults.has_plot),
        ),
        is_json=args.json,
    )


def _refuse_idle_options(values: Mapping[str, Any]) -> None:
    """Refuse what was said and means nothing beside the rest."""
    is_eagle1 = values.get("kind", DraftSettings.kind) == "eagle1"
    idle = {
        "--num-tokens means nothing for data that is there already": "num_tokens" in values
        and values["data"] != [SELF],
        "--feature-noise means nothing for eagle3 heads": "feature_noise" in values and not is_eagle1,
        "--freeze-head means nothing for eagle1 heads, whose head is the target's": is_eagle1
        and values.get("freeze_head", False),
        "--draft-vocab-size means nothing for eagle1 heads, which propose any token": is_eagle1
        and values.get("draft_vocab_size") is not None,
    }
    for message, is_idle in idle.items():
        if is_idle:
            raise InvalidParameterError(f"{message}; leave it out")


def evaluation_prompts(file_name: str | None) -> tuple[EvaluationPrompt, ...]:
    """The prompts of a file, or those that come with Aquiline."""
    if file_name is None:
        return held_out_prompts()
    prompts = read_prompts([], file_name, is_raw=False)
    return tuple(EvaluationPrompt(prompt.category or NO_CATEGORY, prompt.messages) for prompt in prompts)


def run(args: argparse.Namespace) -> None:
    """Train as `args` say."""
    settings = check_arguments(args)
    with shown_progress() as show:
        resolve_model(settings.run.target, show)
    # torchrun numbers its processes; the first one speaks for all.
    with shown_training(settings.is_json, is_hidden=os.environ.get("RANK", "0") != "0") as view:
        from aquiline.training.run import Watcher, train

        result = train(settings.run, Watcher(view.on_work, view.on_data, view.on_step, view.on_record))
    view.close(result)
