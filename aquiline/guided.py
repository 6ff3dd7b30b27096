"""What the text of an output must match."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from aquiline.errors import InvalidParameterError

GuideKind = Literal["json_schema", "json_object", "regex", "grammar", "choice"]
Whitespace = Literal["compact", "any"]
MAX_SOURCE_CHARACTERS = 2**20


@dataclass(frozen=True, slots=True)
class GuidedParams:
    """What the text of an output must match, from its first character to its last; exactly one of five is given.

    Attributes:
        json_schema: a JSON schema, as a mapping, true, or as JSON text; the text is JSON that the schema accepts.
        json_object: the text is any JSON object.
        regex: a regular expression that matches the whole text.
        grammar: EBNF as llama.cpp writes it, whose rule `root` matches the whole text.
        choice: the text is one of these.
        whitespace: of JSON: `compact` writes one space behind commas and colons and none elsewhere, as Python's
            json.dumps does; `any` leaves it to the model, up to 64 characters at a place.

    Raises:
        InvalidParameterError: none of the five or several, or one of the wrong type.
    """

    json_schema: Mapping[str, Any] | bool | str | None = None
    json_object: bool = False
    regex: str | None = None
    grammar: str | None = None
    choice: Sequence[str] | None = None
    whitespace: Whitespace = "compact"

    def __post_init__(self) -> None:
        if not isinstance(self.json_object, bool):
            raise InvalidParameterError(f"json_object is {self.json_object!r}; it must be true or false")
        given = [name for name in get_args(GuideKind) if getattr(self, name) not in (None, False)]
        # A schema of `false` is a schema that nothing fits, not an absent one.
        if self.json_schema is False:
            raise InvalidParameterError("the JSON schema is false, which no text fits; give one that some text fits")
        if len(given) != 1:
            named = " and ".join(given) or "nothing"
            raise InvalidParameterError(
                f"guided names {named}; give one of json_schema, json_object, regex, grammar, choice"
            )
        if self.whitespace not in get_args(Whitespace):
            raise InvalidParameterError(f"whitespace is {self.whitespace!r}; it must be compact or any")
        if self.whitespace != "compact" and self.kind not in ("json_schema", "json_object"):
            raise InvalidParameterError("whitespace is a setting of JSON; leave it out beside regex, grammar or choice")
        if self.json_schema is not None:
            object.__setattr__(self, "json_schema", _schema_text(self.json_schema))
        for name in ("regex", "grammar"):
            if getattr(self, name) is not None:
                _check_text(name, getattr(self, name))
        if self.choice is not None:
            object.__setattr__(self, "choice", _choices(self.choice))
        if len(self.source) > MAX_SOURCE_CHARACTERS:
            raise InvalidParameterError(
                f"{self.kind} has {len(self.source)} characters; the most are {MAX_SOURCE_CHARACTERS}"
            )

    @property
    def kind(self) -> GuideKind:
        """Which of the five is given."""
        kinds: tuple[GuideKind, ...] = get_args(GuideKind)
        return next(name for name in kinds if getattr(self, name) not in (None, False))

    @property
    def source(self) -> str:
        """All that decides which texts match, as text; two of a kind with the same source match the same."""
        if self.kind == "json_object":
            return ""
        if self.choice is not None:
            return json.dumps(self.choice)
        return str(getattr(self, self.kind))


def _schema_text(schema: object) -> str:
    """The schema as JSON text with its keys in their own order."""
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise InvalidParameterError(f"the JSON schema is no JSON: {error}") from None
    if schema is not True and not isinstance(schema, Mapping):
        raise InvalidParameterError(f"the JSON schema is a {type(schema).__name__}; it must be an object or true")
    try:
        text = json.dumps(schema if schema is True else dict(schema), ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidParameterError(f"the JSON schema cannot be written as JSON: {error}") from None
    return text


def _choices(choice: object) -> tuple[str, ...]:
    if isinstance(choice, str | bytes) or not isinstance(choice, Sequence | set | frozenset) or not choice:
        raise InvalidParameterError(f"choice is {choice!r}; it must be a list of at least one text")
    for text in choice:
        _check_text("an entry of choice", text)
    return tuple(dict.fromkeys(choice))


def _check_text(name: str, text: object) -> None:
    if not isinstance(text, str) or not text:
        raise InvalidParameterError(f"{name} is {text!r}; it must be a text of at least one character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidParameterError(f"{name} holds bytes or half characters that are not valid Unicode") from None
