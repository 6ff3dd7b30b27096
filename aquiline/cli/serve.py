"""`aquiline serve`: an OpenAI-compatible HTTP server."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import sys
from dataclasses import dataclass
from typing import Any

from aquiline.cli.config_file import fill_from_config
from aquiline.cli.model_choice import THREADS_HELP, ModelChoice, check_threads, open_llm
from aquiline.cli.options import ENGINE_OPTIONS, ENGINE_RECORDS, engine_config
from aquiline.cli.output import write
from aquiline.cli.parser import LineParser, Option, add_options, integer, number, values_given
from aquiline.cli.speculation_aliases import add_alias_options, resolve_aliases
from aquiline.cli.step_trace_file import TRACE_HELP, check_trace_path, steps_traced
from aquiline.errors import InvalidParameterError
from aquiline.server.address import check_address
from aquiline.server.settings import ServerSettings

DESCRIPTION = """Serve a model over HTTP: the OpenAI API for chat and text completions, and more (docs/server.md). It
stops on an interrupt or a termination signal when running requests are answered."""

DEFAULT_MODEL = "smollm2-135m"
SERVER_RECORDS = (ServerSettings,)
SERVER_OPTIONS = (
    Option("--host", "host", "address to listen on; 0.0.0.0 is every one of this machine", str, "ADDRESS"),
    Option("--port", "port", "port to listen on; 0 takes a free one", integer, "N"),
    Option("--served-model-name", "served_model_name", "what clients call the model", str, "NAME"),
    Option("--api-key", "api_keys", "a key that lets clients in; others may read it, see --api-key-file", str, "KEY",
           is_repeatable=True),
    Option("--max-queue", "max_queue", "most answers that wait beside those that run; more get 429", integer, "N"),
    Option("--max-body-bytes", "max_body_bytes", "longest body of a request", integer, "N"),
    Option("--request-body-timeout", "request_body_timeout", "seconds for a request to arrive; 0 never", number, "S"),
    Option("--max-connections", "max_connections", "most connections that are open", integer, "N"),
    Option("--max-answers", "max_answers", "most answers of one body: its prompts times n", integer, "N"),
    Option("--request-timeout", "request_timeout", "seconds after which a request is ended; 0 never", number, "S"),
    Option("--drain-timeout", "drain_timeout", "seconds for running requests when the server stops", number, "S"),
    Option("--tool-format", "tool_format", "how the model writes tool calls: auto, hermes or llama3", str, "NAME"),
    Option("--log-format", "log_format", "log lines on standard error: json or text", str, "NAME"),
)  # fmt: skip
SERVE_ENGINE_OPTIONS = tuple(
    dataclasses.replace(option, flag="--max-num-seqs") if option.field == "max_num_seqs" else option
    for option in ENGINE_OPTIONS
)


@dataclass(frozen=True, kw_only=True)
class ServeSettings(ModelChoice):
    """A checked `aquiline serve` command line."""

    server: ServerSettings
    trace: str | None = None


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `serve` to the command line."""
    parser = commands.add_parser("serve", help="serve a model over HTTP", description=DESCRIPTION)
    source = parser.add_argument_group("model")
    source.add_argument(
        "model",
        nargs="?",
        default=DEFAULT_MODEL,
        metavar="MODEL",
        help="a known name, a GGUF file, a Hugging Face folder or a hub id (default smollm2-135m)",
    )
    source.add_argument(
        "--draft", default="auto", metavar="PATH", help="a draft folder, none, or auto: the model's own (default auto)"
    )
    source.add_argument("--config", metavar="FILE", help="YAML file with options; those that are typed win")
    source.add_argument("--threads", type=integer, metavar="N", help=THREADS_HELP)
    server = parser.add_argument_group("server")
    add_options(server, SERVER_OPTIONS, SERVER_RECORDS)
    server.add_argument("--api-key-file", metavar="FILE", help="a file with one key per line")
    server.add_argument("--trace", metavar="FILE", help=TRACE_HELP)
    add_options(parser.add_argument_group("engine"), SERVE_ENGINE_OPTIONS, ENGINE_RECORDS)
    add_alias_options(parser.add_argument_group("speculation in the words of other engines"))
    parser.set_defaults(run=functools.partial(run, parser))


def run(parser: LineParser, args: argparse.Namespace) -> None:
    """Load the model that `args` names and serve it; everything is checked before it is loaded."""
    settings = check_arguments(parser, args)
    check_address(settings.server.host, settings.server.port)
    llm = open_llm(settings)
    from aquiline.cli.app import package_version
    from aquiline.server.run import serve

    def show(address: str) -> None:
        write(sys.stdout, f"serving {settings.server.served_model_name or settings.model} at {address}\n")

    with steps_traced(llm, settings.trace):
        serve(llm, settings.model, settings.server, package_version(), show)


def check_arguments(parser: LineParser, args: argparse.Namespace) -> ServeSettings:
    """Turn parsed arguments, and the file that they name, into settings.

    Raises:
        InvalidParameterError: a value outside its range, or options that contradict each other.
    """
    if args.config is not None:
        fill_from_config(parser, args, args.config)
    resolve_aliases(args)
    values = values_given(args, SERVER_OPTIONS)
    if args.api_key_file is not None:
        values["api_keys"] = (*values.get("api_keys", ()), *read_keys(args.api_key_file))
    values["api_keys"] = tuple(values.get("api_keys", ()))
    return ServeSettings(
        model=args.model,
        draft=args.draft,
        config=engine_config(args, SERVE_ENGINE_OPTIONS),
        num_threads=check_threads(args.threads),
        server=ServerSettings(**values),
        trace=check_trace_path(args.trace),
    )


def read_keys(path: str) -> list[str]:
    """The API keys in a file, one per line; empty lines are left alone.

    Raises:
        InvalidParameterError: the file cannot be read, or holds no key.
    """
    try:
        with open(path, encoding="ascii") as file:
            keys = [line.strip() for line in file if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not plain text"
        raise InvalidParameterError(f"--api-key-file {path!r} cannot be read: {reason}") from None
    if not keys:
        raise InvalidParameterError(f"--api-key-file {path!r} holds no key; put one on each line")
    return keys
