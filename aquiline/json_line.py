"""What is wrong with a line of a JSONL file."""

from __future__ import annotations

import json


def json_fault(error: Exception) -> str:
    """What the JSON reader complains of, and at which column of the line.

    The reader itself would call every line the first one, beside the number that the line has in its file.
    """
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at column {error.colno}"
    return str(error)
