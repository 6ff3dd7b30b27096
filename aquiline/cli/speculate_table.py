"""Shapes by load in a JSON file: what `--speculate-table` reads and `aquiline tune --write-table` writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from aquiline.atomic_file import write_atomically
from aquiline.config import SpeculateTable
from aquiline.errors import InvalidParameterError, UserError
from aquiline.speculation import parse_speculation

FIELDS = {"max_requests", "speculate"}
FORM = '[{"max_requests": 2, "speculate": "chain:2"}, {"max_requests": 8, "speculate": "chain:1"}]'


def read_table(text: str) -> SpeculateTable:
    """The table in the file named `text`.

    Raises:
        InvalidParameterError: it cannot be read, or does not hold a table.
    """
    try:
        content = json.loads(Path(text).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidParameterError(f"--speculate-table {text} cannot be read: {error.strerror}; name a file") from None
    except (ValueError, RecursionError):
        raise InvalidParameterError(f"--speculate-table {text} is not JSON; give a list such as {FORM}") from None
    entries = []
    for entry in content if isinstance(content, list) else [None]:
        if not isinstance(entry, dict) or set(entry) != FIELDS or type(entry["max_requests"]) is not int:
            raise InvalidParameterError(f"--speculate-table {text} must hold a list such as {FORM}")
        entries.append((entry["max_requests"], parse_speculation(entry["speculate"])))
    try:
        return SpeculateTable(tuple(entries))
    except InvalidParameterError as error:
        raise InvalidParameterError(f"--speculate-table {text}: {error}") from None


def write_table(path: Path, entries: Sequence[tuple[int, str]]) -> None:
    """Write (most decoding requests, `--speculate` value) pairs, the file whole or not at all.

    Raises:
        UserError: it cannot be written.
    """
    content = [{"max_requests": most, "speculate": text} for most, text in entries]
    try:
        write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
