"""Guides as command-line options, and back to the record."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from aquiline.cli.parser import Option, values_given
from aquiline.errors import InvalidParameterError
from aquiline.guided import GuidedParams

GUIDED_OPTIONS = (
    Option("--guided-json", "json_schema", "answer in JSON that this schema accepts; a file or JSON", str, "SCHEMA"),
    Option("--guided-json-object", "json_object", "answer with any JSON object"),
    Option("--guided-regex", "regex", "answer with a text that this regular expression matches", str, "REGEX"),
    Option("--guided-grammar", "grammar", "answer with a text of this EBNF grammar; a file or EBNF", str, "GRAMMAR"),
    Option("--guided-choice", "choice", "answer with one of the texts so named", str, "TEXT", is_repeatable=True),
    Option("--guided-whitespace", "whitespace", "of JSON answers: compact or any", str, "KIND"),
)
# What an option takes beside the name of a file.
EXPECTED = {"--guided-json": "JSON object", "--guided-grammar": "EBNF with ::= in it"}


def guided_params(args: argparse.Namespace) -> GuidedParams | None:
    """The guide that was typed; None where none was.

    Raises:
        InvalidParameterError: several guides, one that cannot be read or followed, or whitespace without a guide.
    """
    values: dict[str, Any] = values_given(args, GUIDED_OPTIONS)
    if not values:
        return None
    if "json_schema" in values and not values["json_schema"].lstrip().startswith(("{", "true", "false")):
        values["json_schema"] = _content("--guided-json", values["json_schema"])
    if "grammar" in values and "::=" not in values["grammar"]:
        values["grammar"] = _content("--guided-grammar", values["grammar"])
    guided = GuidedParams(**values)
    from aquiline.engine.guide_check import check_guide

    check_guide(guided)
    return guided


def _content(flag: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidParameterError(
            f"{flag} is {path!r}, which is no {EXPECTED[flag]} and cannot be read as a file: {error.strerror}"
        ) from None
    except ValueError:
        raise InvalidParameterError(f"{flag} is {path!r}, which does not name a file of UTF-8 text") from None
