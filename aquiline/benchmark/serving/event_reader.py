"""Server-sent events out of the bytes of a connection."""

from __future__ import annotations

import re

_LINE_END = re.compile(rb"\r\n|\n|\r")


class EventReader:
    """Joins what comes in pieces; the events do not depend on where the pieces were cut.

    Of an event only its data is kept: several lines of it are joined by line feeds (WHATWG HTML, section 9.2).
    """

    def __init__(self) -> None:
        self._rest = b""
        self._lines: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of every event that is complete with `piece`.

        Worked example: `data: a` gives nothing, then `b\\n\\ndata` gives `ab`, and `: c\\n\\n` gives `c`.
        """
        text = self._rest + piece
        # A line feed that follows this carriage return may still be on its way.
        held = b"\r" if text.endswith(b"\r") else b""
        *lines, rest = _LINE_END.split(text.removesuffix(held))
        self._rest = rest + held
        events = []
        for line in lines:
            if line.startswith(b"data:"):
                self._lines.append(line[5:].removeprefix(b" "))
            elif not line and self._lines:
                events.append(b"\n".join(self._lines))
                self._lines.clear()
        return events
