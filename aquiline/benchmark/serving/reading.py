"""What the client saw of one request."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

COMPLETE = "complete"


@dataclass(frozen=True)
class TokenCounts:
    """Tokens as the server counted them."""

    num_input: int
    num_output: int


@dataclass(frozen=True)
class Reading:
    """One request, in seconds of the client's clock.

    Attributes:
        due: when it was to be sent.
        sent: when the client began to send it.
        appeared: when something new could be read. What comes in one piece of the connection appears at once.
        ended: when nothing more would come.
        outcome: `complete`; or the HTTP status, `timeout`, `connection` (there was none, or it broke), `error` (an
            error among the events) or `cut` (the events ended before the answer).
        message: what the server said about a failure.
        text: all that could be read.
        num_events: events with something to read.
        counts: None where the server told no usage.
    """

    due: float
    sent: float
    ended: float
    appeared: tuple[float, ...] = ()
    outcome: str = COMPLETE
    message: str = ""
    text: str = ""
    num_events: int = 0
    counts: TokenCounts | None = None

    @property
    def is_complete(self) -> bool:
        return self.outcome == COMPLETE

    @property
    def ttft_seconds(self) -> float:
        """From sending to the first thing to read; to the end for an answer without anything."""
        return (self.appeared[0] if self.appeared else self.ended) - self.sent

    @property
    def e2el_seconds(self) -> float:
        """From sending to the last thing to read."""
        return (self.appeared[-1] if self.appeared else self.ended) - self.sent

    @property
    def gaps(self) -> list[float]:
        """Between the moments at which something appeared."""
        return [after - before for before, after in pairwise(self.appeared)]

    def tpot_seconds(self, num_tokens: int) -> float | None:
        """Time per token after the first, for an answer of so many tokens; None for one token or none.

        Worked example, sent at 0, 2 tokens appear at 50 ms, 2 more at 80 ms: (80 - 50) / (4 - 1) = 10 ms.
        """
        return (self.e2el_seconds - self.ttft_seconds) / (num_tokens - 1) if num_tokens > 1 else None
