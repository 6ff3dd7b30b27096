"""Reads one call, `{"name": ..., "arguments": {...}}`, character by character.

Worked example, in pieces as they might come:

    {"name": "f", "ar          nothing yet: without arguments it may still be something else
    guments": {"a             the call of f begins, and its arguments with `{"a`
    ": "}"}                   more arguments: `": "}"}`; braces in strings do not count
    }                         the call is complete
"""

from __future__ import annotations

import enum
import json
from collections.abc import Set

from aquiline.server.tools.events import ArgumentsEvent, CallEvent, ToolEvent

SPACES = " \t\r\n"
ARGUMENT_KEYS = ("arguments", "parameters")
OPENING, CLOSING = "{[", "}]"


class ReaderState(enum.Enum):
    """Where a reader stands."""

    OPEN = "open"
    COMPLETE = "complete"
    BROKEN = "broken"


class _Place(enum.Enum):
    BEFORE_OBJECT = enum.auto()
    BEFORE_KEY = enum.auto()
    IN_KEY = enum.auto()
    AFTER_KEY = enum.auto()
    BEFORE_VALUE = enum.auto()
    IN_VALUE = enum.auto()
    AFTER_VALUE = enum.auto()


class JsonValue:
    """One JSON value as it comes; knows its end, and no more of JSON than that needs."""

    def __init__(self) -> None:
        self.text = ""
        self._open: list[str] = []
        self._is_in_string = False
        self._is_escaped = False

    def push(self, character: str) -> bool:
        """Take the next character, which belongs to the value; whether the value ends with it.

        Raises:
            ValueError: a bracket that closes another one.
        """
        self.text += character
        if self._is_in_string:
            self._in_string(character)
        elif character == '"':
            self._is_in_string = True
            return False
        elif character in OPENING:
            self._open.append(character)
        elif character in CLOSING and (not self._open or OPENING.index(self._open.pop()) != CLOSING.index(character)):
            raise ValueError(f"{character} closes nothing")
        return not self._is_scalar and not self._is_in_string and not self._open

    @property
    def _is_scalar(self) -> bool:
        """A number or a word, which ends where another character follows."""
        return self.text[0] not in '"{['

    def ends_before(self, character: str) -> bool:
        """Whether the value ends because `character` comes next."""
        return bool(self.text) and self._is_scalar and (character in SPACES or character in ",}]")

    def _in_string(self, character: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif character == "\\":
            self._is_escaped = True
        elif character == '"':
            self._is_in_string = False


class CallReader:
    """Reads one call.

    Args:
        index: number of the call.
        names: functions that may be called; anything else is no call.

    Attributes:
        raw: every character that belongs to what was read; one that broke it does not.
        has_begun: the call has been told of, and cannot be taken back.
    """

    def __init__(self, index: int, names: Set[str]) -> None:
        self.state = ReaderState.OPEN
        self.raw = ""
        self.has_begun = False
        self._index = index
        self._names = names
        self._place = _Place.BEFORE_OBJECT
        self._value = JsonValue()
        self._key = ""
        self._name: str | None = None
        self._arguments = ""
        self._has_arguments = False

    def push(self, character: str) -> list[ToolEvent]:
        """What one more character shows; `state` tells whether it was taken."""
        try:
            events = self._push(character)
        except ValueError:
            self.state = ReaderState.BROKEN
            return []
        self.raw += character
        return events

    def _push(self, character: str) -> list[ToolEvent]:
        if self._place is _Place.IN_VALUE:
            if not self._value.ends_before(character):
                return self._in_value(character)
            events = self._end_value()
            return [*events, *self._after_value(character)]
        if self._place is _Place.IN_KEY:
            if self._value.push(character):
                self._key = _string(self._value.text)
                self._place = _Place.AFTER_KEY
            return []
        if character in SPACES:
            return []
        if self._place is _Place.AFTER_VALUE:
            return self._after_value(character)
        if self._place is _Place.BEFORE_VALUE:
            if character in ",:}]":
                raise ValueError("no value")
            self._value = JsonValue()
            self._place = _Place.IN_VALUE
            return self._in_value(character)
        self._between(character)
        return []

    def _between(self, character: str) -> None:
        """A character that separates: the beginning of the object, of a key, or a colon."""
        expected = {_Place.BEFORE_OBJECT: "{", _Place.BEFORE_KEY: '"', _Place.AFTER_KEY: ":"}[self._place]
        if character != expected:
            raise ValueError(f"{character} instead of {expected}")
        if self._place is _Place.BEFORE_KEY:
            self._value = JsonValue()
            self._value.push(character)
        following = {"{": _Place.BEFORE_KEY, '"': _Place.IN_KEY, ":": _Place.BEFORE_VALUE}
        self._place = following[character]

    def _in_value(self, character: str) -> list[ToolEvent]:
        is_complete = self._value.push(character)
        if self._key in ARGUMENT_KEYS and not self._has_arguments and self._value.text[0] == "{":
            self._arguments += character
            if is_complete:
                self._has_arguments = True
                self._place = _Place.AFTER_VALUE
            return self._take_arguments()
        return self._end_value() if is_complete else []

    def _end_value(self) -> list[ToolEvent]:
        self._place = _Place.AFTER_VALUE
        if self._key == "name" and self._name is None:
            self._name = _string(self._value.text)
            if self._name not in self._names:
                raise ValueError(f"no function {self._name}")
        elif self._key in ARGUMENT_KEYS and not self._has_arguments:
            self._arguments = _arguments(self._value.text)
            self._has_arguments = True
        return self._take_arguments()

    def _after_value(self, character: str) -> list[ToolEvent]:
        if character in SPACES:
            return []
        if character == ",":
            self._place = _Place.BEFORE_KEY
            return []
        if character != "}" or self._name is None:
            raise ValueError("no call")
        self.state = ReaderState.COMPLETE
        if not self._has_arguments:
            self._arguments = "{}"
        return self._take_arguments()

    def _take_arguments(self) -> list[ToolEvent]:
        """Arguments that have not been told yet, as soon as the name is known."""
        if self._name is None or not self._arguments:
            return []
        events: list[ToolEvent] = [] if self.has_begun else [CallEvent(self._index, self._name)]
        self.has_begun = True
        events.append(ArgumentsEvent(self._index, self._arguments))
        self._arguments = ""
        return events


def _string(text: str) -> str:
    """A JSON string as text; ValueError when it is none."""
    value = json.loads(text)
    if not isinstance(value, str):
        raise ValueError(f"{text} is no string")
    return value


def _arguments(text: str) -> str:
    """Arguments that are not written as an object: an object as a string, or nothing; ValueError otherwise."""
    value = json.loads(text)
    if value is None:
        return "{}"
    if isinstance(value, str) and isinstance(json.loads(value or "{}"), dict):
        return value or "{}"
    raise ValueError("arguments are no object")
