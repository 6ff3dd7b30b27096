"""Calls in the manner of Hermes: JSON between `<tool_call>` and `</tool_call>`, anywhere in the text.

What stands between the markers and is no call of a known function stays in the text, markers included. Spaces and line
breaks around calls are left out.
"""

from __future__ import annotations

from collections.abc import Set

from aquiline.server.tools.call_reader import SPACES, CallReader, ReaderState
from aquiline.server.tools.events import ContentEvent, ToolEvent

BEGIN, END = "<tool_call>", "</tool_call>"
STRAY = SPACES + "}"


class HermesParser:
    """Finds calls between markers.

    Args:
        names: functions that may be called.
    """

    def __init__(self, names: Set[str]) -> None:
        self._names = names
        self._num_calls = 0
        # Not yet decided: spaces, and what may become a marker.
        self._held = ""
        # Spaces before a marker, for the case that no call follows it.
        self._spaces = ""
        self._reader: CallReader | None = None
        self._is_after_call = False

    def push(self, text: str) -> list[ToolEvent]:
        """What more text shows."""
        events: list[ToolEvent] = []
        for character in text:
            events += self._push(character)
        return events

    def finish(self) -> list[ToolEvent]:
        """What was held back when the answer ended."""
        held, self._held = self._held, ""
        if self._reader is not None:
            return [] if self._reader.has_begun else [ContentEvent(self._spaces + BEGIN + self._reader.raw)]
        if self._num_calls:
            held = "" if held.strip(STRAY if self._is_after_call else SPACES) == "" else held
        return [ContentEvent(held)] if held else []

    def _push(self, character: str) -> list[ToolEvent]:
        if self._reader is None:
            return self._outside(character)
        events = self._reader.push(character)
        if self._reader.state is ReaderState.OPEN:
            return events
        reader, self._reader = self._reader, None
        self._num_calls += reader.has_begun
        self._is_after_call = reader.has_begun
        if reader.state is ReaderState.COMPLETE:
            return events
        before: list[ToolEvent] = [] if reader.has_begun else [ContentEvent(self._spaces + BEGIN + reader.raw)]
        return [*before, *self._outside(character)]

    def _outside(self, character: str) -> list[ToolEvent]:
        held = self._held + character
        spaces = len(held) - len(held.lstrip(STRAY if self._is_after_call else SPACES))
        marker = held[spaces:]
        self._held = held
        if marker == BEGIN:
            self._spaces = "" if self._is_after_call else held[:spaces]
            self._held, self._reader = "", CallReader(self._num_calls, self._names)
            return []
        if self._is_after_call and marker == END:
            self._held = ""
            return []
        markers = (BEGIN, END) if self._is_after_call else (BEGIN,)
        if any(name.startswith(marker) for name in markers):
            return []
        return self._release(marker if self._is_after_call else held)

    def _release(self, text: str) -> list[ToolEvent]:
        """Text that is no marker; its end may still begin one, spaces before it included."""
        self._is_after_call = False
        keep = len(text)
        for start in range(len(text)):
            rest = text[start:].lstrip(SPACES)
            if BEGIN.startswith(rest):
                keep = start
                break
        self._held = text[keep:]
        return [ContentEvent(text[:keep])] if keep else []
