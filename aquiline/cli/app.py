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
from collections.abc import Sequence
from importlib import metadata

from aquiline.cli import bench, generate, pull
from aquiline.cli.parser import LineParser
from aquiline.errors import UserError

EXIT_INTERNAL_FAULT = 1
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


def build_parser() -> LineParser:
    """The parser of every command; the chosen command's function is left in the namespace as `run`."""
    parser = LineParser(prog="aquiline", description="Serve Llama models with EAGLE speculative decoding.")
    parser.add_argument("--version", action="version", version=f"aquiline {package_version()}")
    commands = parser.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")
    pull.add_command(commands)
    generate.add_command(commands)
    bench.add_command(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (the process's own when None) and return its exit status."""
    try:
        args = build_parser().parse_args(argv)
        args.run(args)
        flush_output()
    except UserError as error:
        discard_output()
        report(f"error: {error}")
        return EXIT_USER_ERROR
    except BrokenPipeError:
        discard_output()
        return EXIT_BROKEN_PIPE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:
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
    """Print `message` as exactly one line on standard error."""
    print(f"aquiline: {' '.join(message.split())}", file=sys.stderr)


def flush_output() -> None:
    """Write out what is still buffered.

    Raises:
        UserError: standard output cannot take it, for example because the disk is full.
        BrokenPipeError: nobody reads standard output any more.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UserError(f"the output cannot be written: {error.strerror}; free some space or write elsewhere") from None


def discard_output() -> None:
    """Send what standard output still buffers nowhere, so that the interpreter's own last flush cannot fail again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
