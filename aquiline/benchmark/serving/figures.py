"""What a load came to: latencies, throughput, goodput, failures, and whether the client kept up."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aquiline.benchmark.interleaved import percentile
from aquiline.benchmark.serving.load import LoadRun
from aquiline.benchmark.serving.reading import Reading
from aquiline.benchmark.serving.service_levels import ServiceLevels

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
# A request that is sent later than this, and than a tenth of the mean gap between arrivals, was not sent in time.
TOLERATED_LATENESS_MS = 5.0
TOLERATED_SHARE_OF_GAP = 0.1
SHOWN_MESSAGES = 3


@dataclass(frozen=True)
class Counting:
    """How output tokens are counted where the server told no usage.

    Attributes:
        count_tokens: of a text; None: every event with something to read counts as one token.
    """

    count_tokens: Callable[[str], int] | None = None

    def num_tokens(self, reading: Reading) -> int:
        """Output tokens of an answer."""
        if reading.counts is not None:
            return reading.counts.num_output
        return reading.num_events if self.count_tokens is None else self.count_tokens(reading.text)

    def source(self, readings: Sequence[Reading]) -> str | None:
        """Where the counts of a load come from, at worst: `usage`, `tokenizer` or `events`; None of nothing."""
        if not readings:
            return None
        if all(reading.counts is not None for reading in readings):
            return "usage"
        return "events" if self.count_tokens is None else "tokenizer"


def row_of(run: LoadRun, levels: ServiceLevels | None, counting: Counting) -> dict[str, Any]:
    """A row of figures, ready for JSON; latencies are those of complete answers."""
    readings = run.readings
    complete = [reading for reading in readings if reading.is_complete]
    counts = [counting.num_tokens(reading) for reading in complete]
    started = min(reading.due for reading in readings)
    seconds = max(reading.ended for reading in readings) - started
    num_output = sum(counts)
    busy = busy_seconds([(reading.sent, reading.ended) for reading in readings])
    num_good = None
    if levels is not None:
        answers = zip(complete, counts, strict=True)
        num_good = sum(levels.are_met(_measures(reading, count)) for reading, count in answers)
    return {
        "load": run.load.kind,
        "request_rate": run.load.value if run.load.kind == "rate" else None,
        "concurrency": run.load.value if run.load.kind == "concurrency" else None,
        "num_requests": len(readings),
        "num_complete": len(complete),
        **_failures(readings),
        "seconds": round(seconds, 3),
        "num_input_tokens": sum(reading.counts.num_input for reading in complete if reading.counts is not None),
        "num_output_tokens": num_output,
        "tokens_counted_by": counting.source(complete),
        "request_throughput": round(len(complete) / seconds, 4),
        "output_throughput": round(num_output / seconds, 2),
        "goodput": None if num_good is None else round(num_good / seconds, 4),
        "good_share": None if num_good is None else round(num_good / len(readings), 4),
        "time_per_committed_token_ms": round(1e3 * busy / num_output, 3) if num_output else None,
        **_latencies(complete, counts),
        **_client(run, seconds),
    }


def busy_seconds(spans: Sequence[tuple[float, float]]) -> float:
    """Time in which at least one of the spans (begin, end) was open.

    Worked example: 0 to 2, 1 to 3 and 5 to 6 make 3 + 1 = 4.
    """
    total = 0.0
    reached = float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def most_at_once(spans: Sequence[tuple[float, float]]) -> int:
    """Most spans (begin, end) that were open together; one that begins when another ends does not meet it."""
    changes = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    num_open = most = 0
    for _, change in changes:
        num_open += change
        most = max(most, num_open)
    return most


def _measures(reading: Reading, num_tokens: int) -> dict[str, float | None]:
    tpot = reading.tpot_seconds(num_tokens)
    return {
        "ttft": 1e3 * reading.ttft_seconds,
        "tpot": None if tpot is None else 1e3 * tpot,
        "e2el": 1e3 * reading.e2el_seconds,
    }


def _failures(readings: Sequence[Reading]) -> dict[str, Any]:
    failed = [reading for reading in readings if not reading.is_complete]
    messages = list(dict.fromkeys(reading.message for reading in failed if reading.message))
    return {
        "failures": dict(Counter(reading.outcome for reading in failed).most_common()),
        "failure_messages": messages[:SHOWN_MESSAGES],
    }


def _latencies(complete: Sequence[Reading], counts: Sequence[int]) -> dict[str, Any]:
    measured = [_measures(reading, count) for reading, count in zip(complete, counts, strict=True)]
    tpots = [one["tpot"] for one in measured if one["tpot"] is not None]
    return {
        "ttft_ms": summary([one["ttft"] or 0.0 for one in measured]),
        "tpot_ms": summary(tpots),
        "itl_ms": summary([1e3 * gap for reading in complete for gap in reading.gaps]),
        "e2el_ms": summary([one["e2el"] or 0.0 for one in measured]),
    }


def summary(values: Sequence[float]) -> dict[str, float] | None:
    """Mean and percentiles; None of nothing."""
    if not values:
        return None
    shares = {name: round(percentile(values, share), 3) for name, share in PERCENTILES.items()}
    return {"mean": round(statistics.fmean(values), 3), **shares}


def _client(run: LoadRun, seconds: float) -> dict[str, Any]:
    """How late the client itself was, and how much of one processor it took."""
    lateness = [1e3 * (reading.sent - reading.due) for reading in run.readings]
    worst = percentile(lateness, 0.99)
    limit = TOLERATED_LATENESS_MS
    if run.load.kind == "burst":
        # All at once is no schedule that a client could keep.
        limit = math.inf
    elif run.load.arrivals:
        limit = max(limit, TOLERATED_SHARE_OF_GAP * 1e3 * run.load.arrivals[-1] / max(1, len(lateness) - 1))
    return {
        "most_at_once": most_at_once([(reading.sent, reading.ended) for reading in run.readings]),
        "sent_late_ms": {"mean": round(statistics.fmean(lateness), 3), "p99": round(worst, 3)},
        "kept_schedule": worst <= limit,
        "client_processor_share": round(run.client_seconds / seconds, 4),
    }
