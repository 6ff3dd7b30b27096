"""Text of one output, growing token by token: cut at stop strings, and safe to send.

How committed tokens become text, for the stop string `END` and tokens that spell `a E`, `N` and `x END b`:

    token      text        held back   releasable
    `a E`      `a E`       `E`         `a `
    `N`        `a EN`      `EN`        `a `
    `x END b`  `a ENx `    -           `a ENx `    (the stop string and what follows it are cut)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aquiline.token_bytes import IncrementalDecoder


@dataclass(frozen=True, slots=True)
class StopMatch:
    """A stop string that ended the output.

    Attributes:
        stop: the string.
        start: where it begins in the text of the output, in characters.
    """

    stop: str
    start: int


class TextStream:
    """The visible text of one output.

    A stop string counts when its last character comes from a token pushed with `may_stop`; it may begin earlier in the
    output, never in the prompt. Of several that one token completes, the one that begins first wins, and of those that
    begin together the longest: then no part of any of them stays visible.

    Args:
        decoder: of this output alone.
        stop: non-empty stop strings.
        include_stop: keep what ended the output (stop string or stop token) in the text.
    """

    def __init__(self, decoder: IncrementalDecoder, stop: Sequence[str] = (), include_stop: bool = False) -> None:
        self._decoder = decoder
        self._stop = tuple(stop)
        self._include_stop = include_stop
        self._text = ""
        self._is_closed = False

    @property
    def text(self) -> str:
        """Everything that is visible so far."""
        return self._text

    @property
    def releasable_text(self) -> str:
        """The beginning of `text` that no later token can take back; all of it once the output has ended.

        Held back is the longest end of the text that may still grow into a stop string.
        """
        if self._is_closed:
            return self._text
        num_held = max((_num_shared(self._text, stop) for stop in self._stop), default=0)
        return self._text[: len(self._text) - num_held]

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def push(self, token_id: int, may_stop: bool = True) -> StopMatch | None:
        """Add one token; returns the stop string it completes, which ends the output.

        Args:
            may_stop: False for a token that no stop string may end with (before `min_tokens`).
        """
        assert not self._is_closed, "a token after the end of the output"
        num_before = len(self._text)
        self._text += self._decoder.push(token_id)
        match = self._find_stop(num_before) if may_stop else None
        if match is not None:
            end = match.start + len(match.stop) if self._include_stop else match.start
            self._text = self._text[:end]
            self._is_closed = True
        return match

    def push_stop_token(self, token_id: int) -> None:
        """End the output at a stop token; its own text shows only with `include_stop`, and is not searched."""
        if self._include_stop:
            self.push(token_id, may_stop=False)
        self.close()

    def close(self) -> None:
        """End the output where it is; bytes that never became a character show as a replacement character."""
        if not self._is_closed:
            self._text += self._decoder.flush()
            self._is_closed = True

    def _find_stop(self, num_before: int) -> StopMatch | None:
        """The winning stop string whose last character lies in the text from `num_before` on."""
        matches = []
        for stop in self._stop:
            # Worked example: 5 characters stood before, stop `END`. The earliest match that ends in new text ends with
            # character 5, so it covers 3..5: the search begins at 5 - 3 + 1 = 3.
            start = self._text.find(stop, max(0, num_before - len(stop) + 1))
            if start >= 0:
                matches.append(StopMatch(stop, start))
        return min(matches, key=lambda match: (match.start, -len(match.stop)), default=None)


def _num_shared(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop` without being all of it."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
