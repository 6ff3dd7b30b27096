"""The outermost layer: parse, run one command, and turn every failure into one line and an exit status.

0    done
1    a fault of Aquiline itself; AQUILINE_DEBUG=1 shows the traceback
2    a mistake that the caller can mend
130  interrupted
141  the reader of standard output went away
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from importlib import metadata
from typing import TextIO

from aquiline.cli import bench, draft, generate, pull, serve, train, train_data, tune
from aquiline.cli.output import written
from aquiline.cli.parser import LineParser
from aquiline.errors import UserError

EXIT_INTERNAL_FAULT = 1
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
RESUMABLE = ("train-data", "train")


def build_parser() -> LineParser:
    """The parser of every command; the chosen command's function is left in the namespace as `run`."""
    parser = LineParser(prog="aquiline", description="Serve Llama models with EAGLE speculative decoding.")
    parser.add_argument("--version", action="version", version=f"aquiline {package_version()}")
    commands = parser.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")
    pull.add_command(commands)
    generate.add_command(commands)
    serve.add_command(commands)
    train_data.add_command(commands)
    train.add_command(commands)
    draft.add_command(commands)
    tune.add_command(commands)
    bench.add_command(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (the process's own when None) and return its exit status."""
    args = None
    try:
        args = build_parser().parse_args(argv)
        require_output()
        with warnings.catch_warnings():
            warnings.showwarning = report_warning
            args.run(args)
        with written():
            sys.stdout.flush()
    except UserError as error:
        discard_unwritten(sys.stdout)
        report(f"error: {error}")
        return EXIT_USER_ERROR
    except BrokenPipeError:
        discard_unwritten(sys.stdout)
        return EXIT_BROKEN_PIPE
    except KeyboardInterrupt:
        discard_unwritten(sys.stdout)
        if args is not None and args.command in RESUMABLE:
            report("interrupted; the same command goes on from its last checkpoint or round, if there is one yet")
        return EXIT_INTERRUPTED
    except Exception as error:
        discard_unwritten(sys.stdout)
        if os.environ.get("AQUILINE_DEBUG") == "1":
            traceback.print_exc()
        report(f"internal error: {type(error).__name__}: {error}; set AQUILINE_DEBUG=1 to see where, and report it")
        return EXIT_INTERNAL_FAULT
    return 0


def package_version() -> str:
    """Version of the installed package, or `unknown` when it runs without being installed."""
    try:
        return metadata.version("aquiline")
    except metadata.PackageNotFoundError:
        return "unknown"


def report(message: str) -> None:
    """Print `message` as exactly one line on standard error, where there is one that takes it."""
    if sys.stderr is None:  # `print` would fall back on standard output, where only answers belong
        return
    try:
        print(f"aquiline: {' '.join(message.split())}", file=sys.stderr)
    except OSError:
        discard_unwritten(sys.stderr)


def report_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Show a warning on one line, without its kind and the place in the code that gave it."""
    report(f"warning: {message}")


def require_output() -> None:
    """Raise UserError when standard output was closed before this program began."""
    if sys.stdout is None:
        raise UserError("standard output is closed; leave it open, or send it to a file")


def discard_unwritten(stream: TextIO | None) -> None:
    """Send what `stream` still buffers nowhere if it cannot be written: the interpreter's own last flush would fail."""
    try:
        if stream is not None:
            stream.flush()
    except OSError:
        assert stream is not None
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
