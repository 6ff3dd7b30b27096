"""`aquiline draft`: examine draft models, and write them in other layouts."""

from __future__ import annotations

import argparse
from typing import Any

from aquiline.cli import draft_check, draft_export


def add_command(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `draft` to the command line."""
    parser = commands.add_parser("draft", help="examine or convert a draft model", description="Work on draft models.")
    kinds = parser.add_subparsers(title="what to do", dest="kind", required=True, metavar="ACTION")
    draft_check.add_command(kinds)
    draft_export.add_command(kinds)
