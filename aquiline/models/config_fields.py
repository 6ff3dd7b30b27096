"""Reading settings one by one, so that none is misread and none is left unread."""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from aquiline.errors import ModelFormatError, UnsupportedFeatureError

LARGEST_INTEGER = 2**31 - 1


class ConfigFields:
    """The keys and values of one settings object, and which of them have been read.

    A key whose value is null counts as absent. Every method that reads raises ModelFormatError when the value is
    missing without a default, of another type, or outside its range.

    Args:
        values: the settings.
        source: where they come from, named in every message.
    """

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self._values = {key: value for key, value in values.items() if value is not None}
        self._read: set[str] = set()
        self.source = source

    def has(self, name: str) -> bool:
        """Whether the key is there, with a value other than null."""
        return name in self._values

    def value(self, name: str) -> Any:
        """The value as it stands; None where there is none."""
        self._read.add(name)
        return self._values.get(name)

    def integer(self, name: str, default: int | None = None, lowest: int = 1, highest: int = LARGEST_INTEGER) -> int:
        """An integer from `lowest` to `highest`; without a default it must be there."""
        value = self._required(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
            raise self.wrong(name, f"it must be an integer from {lowest} to {highest}")
        return value

    def optional_integer(self, name: str, lowest: int = 1) -> int | None:
        """An integer of at least `lowest`, or None where there is none."""
        return self.integer(name, lowest=lowest) if self.has(name) else None

    def number(self, name: str, default: float | None = None, above: float = 0.0) -> float:
        """A finite number greater than `above`; without a default it must be there."""
        value = self._required(name, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not above < value < math.inf:
            raise self.wrong(name, f"it must be a finite number greater than {above:g}")
        return float(value)

    def optional_number(self, name: str, above: float = 0.0) -> float | None:
        """A finite number greater than `above`, or None where there is none."""
        return self.number(name, above=above) if self.has(name) else None

    def boolean(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self._required(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, "it must be true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """A string; without a default it must be there."""
        value = self._required(name, default)
        if not isinstance(value, str):
            raise self.wrong(name, "it must be a string")
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        """A list of integers, or one alone; () where there is none."""
        value = self.value(name)
        entries = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(entry, int) and not isinstance(entry, bool) for entry in entries):
            raise self.wrong(name, "it must be an integer or a list of integers")
        return tuple(entries)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings; () where there is none."""
        value = self.value(name)
        entries = [] if value is None else value
        if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
            raise self.wrong(name, "it must be a list of strings")
        return tuple(entries)

    def section(self, name: str) -> ConfigFields | None:
        """A nested settings object; None where there is none."""
        value = self.value(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(name, "it must be an object of keys and values")
        return ConfigFields(value, f"{self.source}, in {name}")

    def demand(self, allowed: Mapping[str, Collection[Any]]) -> None:
        """Raise UnsupportedFeatureError when one of these keys has a value that is not among those beside it."""
        for name, values in allowed.items():
            if self.has(name) and self.value(name) not in values:
                only = " or ".join(json.dumps(value) for value in values) or "a file without that key"
                given = reprlib.repr(self.value(name))
                raise UnsupportedFeatureError(f"{self.source}: {name} is {given}; Aquiline runs only {only}")

    def refuse_unread(self, harmless: Collection[str] = ()) -> None:
        """Raise ModelFormatError when a key was neither read nor named in `harmless`."""
        unread = sorted(set(self._values) - self._read - set(harmless))
        if unread:
            raise ModelFormatError(
                f"{self.source}: unknown keys {', '.join(unread)}; they may change what the model computes, "
                "so remove them if they do not, or use a checkpoint without them"
            )

    def wrong(self, name: str, rule: str) -> ModelFormatError:
        """The error that says what a key holds and what it may hold."""
        if not self.has(name):
            return ModelFormatError(f"{self.source}: {name} is missing; {rule}")
        return ModelFormatError(f"{self.source}: {name} is {reprlib.repr(self._values[name])}; {rule}")

    def _required(self, name: str, default: Any) -> Any:
        value = self.value(name)
        return default if value is None else value


def read_json_object(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds.

    Raises:
        ModelFormatError: unreadable, not UTF-8, not JSON, a key given twice, or something else than an object.
    """
    try:
        content = json.loads(path.read_bytes().decode("utf-8"), object_pairs_hook=_unique_keys)
    except OSError as error:
        raise ModelFormatError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ModelFormatError(f"{path} is not valid JSON: {error}; fetch the file again") from None
    if not isinstance(content, dict):
        raise ModelFormatError(f"{path} holds {reprlib.repr(content)}; it must be an object of keys and values")
    return content


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen = dict(pairs)
    if len(seen) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice} is there twice")
    return seen
