"""Recorded steps in the trace event format that chrome://tracing and Perfetto open.

Three tracks: what a step does, phase by phase, with the time between steps; when the models and the drawing work (the
device), and when they wait for the host; and counters of rows and tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from aquiline.engine.step_trace import StepRecord

DEVICE_PHASES = frozenset({"draft", "verify", "sample"})
PROCESS, PHASE_TRACK, DEVICE_TRACK = 1, 1, 2
Event = dict[str, Any]


def chrome_trace(records: Sequence[StepRecord], num_dropped: int = 0) -> dict[str, Any]:
    """The trace as an object for JSON; times are microseconds since the first step kept.

    Worked example, two steps of one verify and one commit each:

        seconds      0      1        2        3      4        5
        phases         verify  commit  between  verify  commit
        device         verify  waits for the host  verify
    """
    origin = records[0].started if records else 0.0
    events = [
        _named("process_name", 0, "aquiline"),
        _named("thread_name", PHASE_TRACK, "steps"),
        _named("thread_name", DEVICE_TRACK, "device"),
    ]
    for before, record in zip((None, *records), records, strict=False):
        events += _phase_events(before, record, origin)
    events += _device_events(records, origin)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"num_steps": len(records), "num_dropped_steps": num_dropped},
    }


def _phase_events(before: StepRecord | None, record: StepRecord, origin: float) -> Iterator[Event]:
    if before is not None and record.started > before.ends[-1]:
        yield _span("between steps", PHASE_TRACK, (before.ends[-1], record.started), origin)
    name = "failed step" if record.facts is None else f"step {record.facts.step}"
    facts = {} if record.facts is None else asdict(record.facts)
    yield _span(name, PHASE_TRACK, (record.started, record.ends[-1]), origin) | {"args": facts}
    for phase, started, ended in _phases(record):
        yield _span(phase, PHASE_TRACK, (started, ended), origin)
    for counter, names in (
        ("rows", ("num_rows", "num_prefill_rows")),
        ("tokens", ("num_draft_tokens", "num_lookup_tokens", "num_committed_tokens")),
        ("requests", ("num_requests", "num_waiting")),
    ):
        if facts:
            values = {name.removeprefix("num_"): facts[name] for name in names}
            yield {
                "name": counter,
                "ph": "C",
                "pid": PROCESS,
                "ts": _microseconds(record.started, origin),
                "args": values,
            }


def _device_events(records: Sequence[StepRecord], origin: float) -> Iterator[Event]:
    free_since: float | None = None
    for record in records:
        for phase, started, ended in _phases(record):
            if phase in DEVICE_PHASES:
                if free_since is not None and started > free_since:
                    yield _span("waits for the host", DEVICE_TRACK, (free_since, started), origin)
                yield _span(phase, DEVICE_TRACK, (started, ended), origin)
                free_since = ended


def _phases(record: StepRecord) -> Iterator[tuple[str, float, float]]:
    started = record.started
    for phase, ended in zip(record.phases, record.ends, strict=True):
        yield phase, started, ended
        started = ended


def _span(name: str, track: int, span: tuple[float, float], origin: float) -> Event:
    started = _microseconds(span[0], origin)
    return {
        "name": name,
        "ph": "X",
        "pid": PROCESS,
        "tid": track,
        "ts": started,
        "dur": round(_microseconds(span[1], origin) - started, 3),
    }


def _named(kind: str, track: int, name: str) -> Event:
    return {"name": kind, "ph": "M", "pid": PROCESS, "tid": track, "args": {"name": name}}


def _microseconds(seconds: float, origin: float) -> float:
    return round(1e6 * (seconds - origin), 3)
