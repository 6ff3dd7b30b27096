"""A server that a command starts for itself: its options, checked as `aquiline serve` checks them."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace

from aquiline.cli import serve
from aquiline.cli.model_choice import THREADS_HELP
from aquiline.cli.options import ENGINE_OPTIONS, ENGINE_RECORDS
from aquiline.cli.parser import LineParser, Option, add_options, integer
from aquiline.config import SpeculativeConfig
from aquiline.errors import InvalidParameterError

# What is typed goes on to the server as it is.
PASSED_OPTIONS = tuple(option if option.parse is None else replace(option, parse=str) for option in ENGINE_OPTIONS)
SERVER_FLAGS = {option.field: option.flag for option in serve.SERVE_ENGINE_OPTIONS}


@dataclass(frozen=True)
class ServedModel:
    """A server to be started.

    Attributes:
        arguments: of `aquiline serve`.
        speculative: as it will decode.
    """

    model: str
    draft: str
    arguments: tuple[str, ...]
    speculative: SpeculativeConfig

    @property
    def text(self) -> str:
        """How it decodes, in words for a legend."""
        mode = self.speculative.mode
        if mode.is_off:
            return "plain"
        return f"{mode.text}, {self.speculative.objective.text}" if mode.is_auto else mode.text


def add_served_model_options(parser: argparse.ArgumentParser) -> None:
    """Add --model, --draft, --threads and the settings of the engine."""
    group = parser.add_argument_group("server to start")
    group.add_argument("--model", metavar="MODEL", help="a known name, a GGUF file, a Hugging Face folder or a hub id")
    group.add_argument("--draft", metavar="PATH", help="a draft folder, none, or auto: the model's own (default auto)")
    group.add_argument("--threads", type=integer, metavar="N", help=THREADS_HELP)
    add_options(parser.add_argument_group("engine of the server to start"), PASSED_OPTIONS, ENGINE_RECORDS)


def served_model(args: argparse.Namespace) -> ServedModel | None:
    """The server that was typed; None without --model.

    Raises:
        UserError: what `aquiline serve` would refuse; settings of a server, and no --model.
    """
    arguments = _typed_arguments(args)
    if args.model is None:
        if arguments:
            raise InvalidParameterError(f"{arguments[0]} is of a server that is started here; give --model with it")
        return None
    parser = LineParser(prog="aquiline")
    serve.add_command(parser.add_subparsers())
    checked = parser.parse_args(["serve", args.model, *arguments])
    settings = serve.check_arguments(parser, checked)
    return ServedModel(args.model, settings.draft, (args.model, *arguments), settings.config.speculative)


def _typed_arguments(args: argparse.Namespace) -> list[str]:
    typed = [f"--{name}={getattr(args, name)}" for name in ("draft", "threads") if getattr(args, name) is not None]
    return typed + [_argument(option, args) for option in PASSED_OPTIONS if hasattr(args, option.field)]


def _argument(option: Option, args: argparse.Namespace) -> str:
    flag = SERVER_FLAGS[option.field]
    return flag if option.parse is None else f"{flag}={getattr(args, option.field)}"
