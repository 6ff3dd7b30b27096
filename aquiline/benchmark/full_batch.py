"""Speed while the batch is full and nobody prefills: what a batch size is worth, without the beginning and the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from aquiline.engine.step_trace import StepRecord


@dataclass(frozen=True, slots=True)
class FullBatch:
    """Steps in which a batch was full, in sum."""

    num_steps: int = 0
    num_tokens: int = 0
    seconds: float = 0.0

    def __add__(self, other: FullBatch) -> FullBatch:
        return FullBatch(
            self.num_steps + other.num_steps, self.num_tokens + other.num_tokens, self.seconds + other.seconds
        )

    @property
    def tokens_per_second(self) -> float:
        """0 where there is no step."""
        return self.num_tokens / self.seconds if self.num_tokens else 0.0

    def figures(self) -> dict[str, Any] | None:
        """Means, ready for JSON; None where there is no step."""
        if not self.num_tokens:
            return None
        return {
            "num_steps": self.num_steps,
            "committed_tokens": round(self.num_tokens / self.num_steps, 3),
            "step_ms": round(1000.0 * self.seconds / self.num_steps, 4),
            "tokens_per_second": round(self.tokens_per_second, 2),
        }


def full_batch_of(records: Sequence[StepRecord], num_requests: int) -> FullBatch:
    """The steps in which exactly `num_requests` requests decoded and none prefilled.

    A step lasts from the end of the step before to its own end, so what happens between steps counts.

    Worked example, 2 requests, steps that end at 1.0, 1.2 and 1.5 s: the first prefills, the second commits 3 tokens,
    the third 5; 8 tokens in .5 s are 16 tokens per second.
    """
    num_steps = num_tokens = 0
    seconds = 0.0
    for before, record in pairwise(records):
        facts = record.facts
        if facts is None or facts.num_requests != num_requests or facts.num_prefill_rows:
            continue
        num_steps += 1
        num_tokens += facts.num_committed_tokens
        seconds += record.ends[-1] - before.ends[-1]
    return FullBatch(num_steps, num_tokens, seconds)
