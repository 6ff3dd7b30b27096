"""`aquiline draft export`: write a draft in the layout that another engine reads."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from aquiline.cli.output import write
from aquiline.cli.pull import shown_progress
from aquiline.errors import InvalidParameterError
from aquiline.model_store import resolve_model

DESCRIPTION = """Write a draft as config.json and model.safetensors in the layout of another engine. Weights keep their
numbers and their type."""
LAYOUTS = ("eagle1", "eagle3", "specforge", "speculators")


def add_command(kinds: argparse._SubParsersAction[Any]) -> None:
    """Add `export` to the actions."""
    parser = kinds.add_parser("export", help="write it in another layout", description=DESCRIPTION)
    parser.add_argument("draft", metavar="DRAFT", help="a draft folder, a hub id, or auto: that of a known target")
    parser.add_argument("--output", required=True, metavar="DIR", help="folder that gets the files")
    parser.add_argument("--format", required=True, choices=LAYOUTS, help="layout: %(choices)s")
    parser.add_argument("--target", metavar="MODEL", help="the model it drafts for (default: as the draft itself says)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Convert the draft that `args` names.

    Raises:
        UserError: a draft that cannot be read or written so.
    """
    output = Path(args.output)
    if args.target is not None:
        with shown_progress() as show:
            resolve_model(args.target, show)
    from aquiline.training.draft_conversion import convert_draft
    from aquiline.training.draft_examination import find_draft, find_target

    draft = find_draft(args.draft, args.target)
    if output.exists() and draft.exists() and output.samefile(draft):
        raise InvalidParameterError(f"--output {args.output!r} is the draft itself; name another folder")
    convert_draft(draft, find_target(draft, args.target), args.target or "", output, args.format)
    write(sys.stdout, f"{output} holds the draft in the layout {args.format}\n")
