"""Speed while the batch is full and nobody prefills: what a batch size is worth, without the beginning and the end."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from aquiline.engine.step_trace import StepRecord


def full_batch_figures(records: Sequence[StepRecord], num_requests: int) -> dict[str, Any] | None:
    """Figures of the steps in which exactly `num_requests` requests decoded and none prefilled, ready for JSON.

    A step lasts from the end of the step before to its own end, so what happens between steps counts.

    Worked example, 2 requests, steps that end at 1.0, 1.2 and 1.5 s: the first prefills, the second commits 3 tokens,
    the third 5; 8 tokens in .5 s are 16 tokens per second.

    Returns:
        None where there is no such step.
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
    if not num_tokens:
        return None
    return {
        "num_steps": num_steps,
        "committed_tokens": round(num_tokens / num_steps, 3),
        "step_ms": round(1000.0 * seconds / num_steps, 4),
        "tokens_per_second": round(num_tokens / seconds, 2),
    }
