"""Calls in the manner of Llama 3: the whole answer is `{"name": ..., "parameters": {...}}`, or several after `;`.

An answer that begins in another way, or turns out to be no call of a known function, is text.
"""

from __future__ import annotations

from collections.abc import Set

from aquiline.server.tools.call_reader import SPACES, CallReader, ReaderState
from aquiline.server.tools.events import ContentEvent, ToolEvent

PYTHON_TAG = "<|python_tag|>"
SEPARATORS = SPACES + ";,"


class Llama3Parser:
    """Finds calls at the beginning of an answer.

    Args:
        names: functions that may be called.
    """

    def __init__(self, names: Set[str]) -> None:
        self._names = names
        self._num_calls = 0
        self._held = ""
        self._reader: CallReader | None = None
        self._is_text = False

    def push(self, text: str) -> list[ToolEvent]:
        """What more text shows."""
        events: list[ToolEvent] = []
        for place, character in enumerate(text):
            if self._is_text:
                return [*events, ContentEvent(text[place:])]
            events += self._push(character)
        return events

    def finish(self) -> list[ToolEvent]:
        """What was held back when the answer ended."""
        reader, held = self._reader, self._held
        if reader is not None:
            return [] if reader.has_begun else [ContentEvent(held + reader.raw)]
        return [ContentEvent(held)] if held.strip(SEPARATORS if self._num_calls else "") else []

    def _push(self, character: str) -> list[ToolEvent]:
        if self._reader is None:
            return self._between(character)
        events = self._reader.push(character)
        if self._reader.state is ReaderState.OPEN:
            return events
        reader, held = self._reader, self._held
        self._num_calls += reader.has_begun
        self._reader = None
        self._held = ""
        if reader.state is ReaderState.COMPLETE:
            return events
        return self._text(character if reader.has_begun else held + reader.raw + character)

    def _between(self, character: str) -> list[ToolEvent]:
        """Before a call, or after one: what is held are separators, and a tag that may stand before the first."""
        if character == "{":
            self._reader = CallReader(self._num_calls, self._names)
            return self._push(character)
        held = self._held + character
        self._held = held
        rest = held.lstrip(SEPARATORS if self._num_calls else SPACES)
        if PYTHON_TAG.startswith(rest) or not rest.removeprefix(PYTHON_TAG).strip(SPACES):
            return []
        return self._text(rest if self._num_calls else held)

    def _text(self, text: str) -> list[ToolEvent]:
        """No more calls can come: `text` and all that follows is for the reader."""
        self._held = ""
        self._is_text = True
        return [ContentEvent(text)]
