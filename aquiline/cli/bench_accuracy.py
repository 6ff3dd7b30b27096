"""`aquiline bench accuracy`: what the native kernels and their weights cost in accuracy."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from rich.table import Table

from aquiline.cli.measurement import add_json_option, print_result, shown_bar
from aquiline.cli.model_choice import add_model_options, check_threads
from aquiline.cli.options import ENGINE_OPTIONS, ENGINE_RECORDS, engine_config
from aquiline.cli.parser import add_options, integer
from aquiline.cli.prompts import Prompt, read_prompts
from aquiline.cli.pull import shown_progress
from aquiline.config import EngineConfig, Quantization
from aquiline.errors import InvalidParameterError, PromptError
from aquiline.model_store import resolve_model

DESCRIPTION = """Give the model on native kernels and the same weights in float32 on PyTorch the same tokens, and
compare what they expect next: those of a text, or prompts with the answers of the float32 model."""
FIELDS = {"kv_cache_dtype"}


@dataclass(frozen=True, kw_only=True)
class AccuracySettings:
    """A checked `aquiline bench accuracy` command line; either a text or prompts."""

    model: str
    config: EngineConfig
    num_threads: int | None
    quantizations: tuple[Quantization, ...]
    text: str | None
    prompts: tuple[Prompt, ...]
    num_tokens: int
    is_json: bool


def add_command(kinds: argparse._SubParsersAction[Any]) -> None:
    """Add `accuracy` to the measurements."""
    parser = kinds.add_parser("accuracy", help="native kernels against float32", description=DESCRIPTION)
    source = parser.add_argument_group("model and tokens")
    add_model_options(source, has_draft=False)
    tokens = source.add_mutually_exclusive_group(required=True)
    tokens.add_argument("--text", metavar="FILE", help="a text, taken as it is")
    tokens.add_argument("--prompts", metavar="FILE", help="JSONL file, as for generate; - is stdin")
    source.add_argument(
        "--num-tokens", type=integer, metavar="N", default=256, help="most tokens of an answer (default 256)"
    )
    ways = parser.add_argument_group("what is compared")
    ways.add_argument(
        "--quantization",
        dest="kinds",
        metavar="KIND,KIND",
        default="auto",
        help="auto, none, int8 or int4 (default auto)",
    )
    add_options(ways, [option for option in ENGINE_OPTIONS if option.field in FIELDS], ENGINE_RECORDS)
    add_json_option(parser)
    parser.set_defaults(run=run)


def check_arguments(args: argparse.Namespace) -> AccuracySettings:
    """Turn parsed arguments into settings.

    Raises:
        UserError: a value outside its range, or a file that cannot be read.
    """
    if not 1 <= args.num_tokens < 2**31:
        raise InvalidParameterError(f"--num-tokens is {args.num_tokens}; it must be an integer from 1 to {2**31 - 1}")
    kinds = args.kinds.split(",")
    allowed = get_args(Quantization)
    if not set(kinds) <= set(allowed) or len(set(kinds)) < len(kinds):
        raise InvalidParameterError(
            f"--quantization is {','.join(kinds)!r}; it must be one or several of {', '.join(allowed)}, with commas"
        )
    return AccuracySettings(
        model=args.model,
        config=engine_config(args),
        num_threads=check_threads(args.threads),
        quantizations=tuple(cast(Quantization, kind) for kind in kinds),
        text=None if args.text is None else read_text(Path(args.text)),
        prompts=() if args.prompts is None else read_prompts([], args.prompts, is_raw=False),
        num_tokens=args.num_tokens,
        is_json=args.json,
    )


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
        PromptError: it cannot be read, or is no UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise PromptError(f"--text {str(path)!r} cannot be read: {error.strerror}; name a text file") from None
    except UnicodeDecodeError:
        raise PromptError(f"--text {str(path)!r} is not UTF-8; save it as UTF-8") from None


def run(args: argparse.Namespace) -> None:
    """Measure the model that `args` names."""
    settings = check_arguments(args)
    with shown_progress() as show:
        resolve_model(settings.model, show)
    from aquiline.benchmark.accuracy import AccuracyModels, measure_accuracy

    models = AccuracyModels.load(settings.model, settings.config, settings.quantizations, settings.num_threads)
    with shown_bar("answering") as bar:
        if settings.text is not None:
            sequences = models.sequences_of_text(settings.text)
        else:
            conversations = [prompt.messages for prompt in settings.prompts]
            sequences = models.sequences_of_answers(conversations, settings.num_tokens)
        bar.rename("comparing", sum(map(len, sequences)))
        rows = measure_accuracy(models, sequences, bar)
    print_result({"rows": rows}, settings.is_json, lambda: _table(rows))


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table("quantization")
    for name in ("tokens", "mean KL", "equal top-1", "worst KL", "at position"):
        table.add_column(name, justify="right")
    for row in rows:
        figures = [f"{row['mean_kl']:.5f}", f"{100 * row['top1_agreement']:.2f} %", f"{row['worst_kl']:.3f}"]
        table.add_row(row["quantization"], str(row["num_tokens"]), *figures, str(row["worst_position"]))
    return table
