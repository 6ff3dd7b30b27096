"""`aquiline bench report`: one page of HTML from results."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from aquiline.atomic_file import write_atomically
from aquiline.benchmark.report_results import read_result
from aquiline.cli.output import write
from aquiline.errors import InvalidParameterError, UserError

DESCRIPTION = """Draw what `bench offline`, `bench latency`, `bench serving` and `tune` print with --json as one page of
HTML that needs no other file."""


def add_command(kinds: argparse._SubParsersAction[Any]) -> None:
    """Add `report` to the measurements."""
    parser = kinds.add_parser("report", help="one page of plots from results", description=DESCRIPTION)
    parser.add_argument("results", nargs="+", metavar="RESULT", help="files with what --json printed")
    parser.add_argument("--output", default="report.html", metavar="FILE", help="the page (default report.html)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Write the page; every file is read before anything is drawn.

    Raises:
        UserError: a result that cannot be read or drawn, or a page that cannot be written.
    """
    output = Path(args.output)
    if output.is_dir() or not output.parent.is_dir():
        raise InvalidParameterError(f"--output is {args.output!r}; name a file in a folder that is there")
    results = [read_result(Path(path)) for path in args.results]
    from aquiline.benchmark.report_page import page_of
    from aquiline.benchmark.report_plots import plots_of, plots_of_all

    page = page_of(results, [plots_of(result) for result in results], plots_of_all(results))
    try:
        write_atomically(output, page.encode())
    except OSError as error:
        raise UserError(f"{args.output} cannot be written: {error.strerror}; free some space or name another") from None
    write(sys.stdout, f"{args.output}: {len(results)} results\n")
