"""Figures of full batches."""

from __future__ import annotations

from aquiline.benchmark.full_batch import full_batch_of
from aquiline.engine.step_trace import StepFacts, StepRecord


def record(end: float, num_requests: int, num_tokens: int, num_prefill_rows: int = 0) -> StepRecord:
    facts = StepFacts(0, num_requests, 0, num_requests, num_prefill_rows, 0, 0, num_tokens)
    return StepRecord(end - 0.05, ("schedule", "commit"), (end - 0.02, end), facts)


def test_only_full_steps_that_decode_count_and_the_time_between_steps_does() -> None:
    records = [
        record(1.0, 2, 1, num_prefill_rows=9),
        record(1.2, 2, 3),
        record(1.5, 2, 5),
        record(9.0, 1, 4),
        StepRecord(9.0, ("schedule",), (9.1,), None),
        record(9.5, 3, 4),
    ]
    assert full_batch_of(records, 2).figures() == {
        "num_steps": 2,
        "committed_tokens": 4.0,
        "step_ms": 250.0,
        "tokens_per_second": 16.0,
    }


def test_a_batch_that_is_never_full_has_no_figures() -> None:
    assert full_batch_of([record(1.0, 2, 1), record(1.2, 2, 3)], 3).figures() is None
    assert full_batch_of([], 1).figures() is None


def test_batches_add_up() -> None:
    first = full_batch_of([record(1.0, 2, 1), record(1.25, 2, 3)], 2)
    second = full_batch_of([record(4.0, 2, 1), record(4.75, 2, 5)], 2)
    assert first.tokens_per_second == 12.0
    assert (first + second).tokens_per_second == 8.0 and (first + second).num_steps == 2
