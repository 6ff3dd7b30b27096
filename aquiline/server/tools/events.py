"""What a tool parser finds in the text of an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ContentEvent:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class CallEvent:
    """A call begins; calls are numbered from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsEvent:
    """More of the arguments of a call, as text."""

    index: int
    text: str


ToolEvent = ContentEvent | CallEvent | ArgumentsEvent


class ToolParser(Protocol):
    """Reads an answer piece by piece. What it finds does not depend on how the text was cut."""

    def push(self, text: str) -> list[ToolEvent]:
        """What more text shows."""

    def finish(self) -> list[ToolEvent]:
        """What was held back when the answer ended."""
