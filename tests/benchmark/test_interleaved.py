"""Cases take turns, and rows say what they measured."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from aquiline.benchmark.interleaved import Case, Turns, Work, measure_cases, percentile
from aquiline.benchmark.machine import MachineSpeed

MACHINE = MachineSpeed("portable", 1, 10.0, 100.0, 50.0, 100.0, 200.0)


@dataclass
class Clock:
    """Time that passes only when a case runs."""

    now: float = 0.0
    log: list[str] = field(default_factory=list)

    def case(self, kernel: str, num_rows: int, seconds: float, num_calls: int = 1, is_cold: bool = False) -> Case:
        def run() -> None:
            self.log.append(f"{kernel}{num_rows}")
            self.now += seconds

        return Case(kernel, num_rows, run, Work(memory_bytes=1000), num_calls, is_cold)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("aquiline.benchmark.interleaved.time.perf_counter", lambda: made.now)
    return made


def test_cases_take_turns_and_the_first_round_does_not_count(clock: Clock) -> None:
    cases = [clock.case("a", 1, 0.001), clock.case("a", 4, 0.003), clock.case("b", 1, 0.004, num_calls=2)]
    counts: list[int] = []
    rows = measure_cases(cases, Turns(2, lambda: None, counts.append), MACHINE)
    assert clock.log == ["a1", "a4", "b1"] * 3
    assert counts == list(range(1, 10))
    assert [row["median_us"] for row in rows] == [1000.0, 3000.0, 2000.0]
    assert [row["ratio_to_first"] for row in rows] == [1.0, 3.0, 1.0]
    assert rows[0]["p10_us"] == rows[0]["p90_us"] == 1000.0


def test_caches_are_emptied_before_cold_cases_and_outside_their_time(clock: Clock) -> None:
    def empty() -> None:
        clock.log.append("empty")
        clock.now += 5.0

    rows = measure_cases([clock.case("a", 1, 0.5, is_cold=True), clock.case("b", 1, 0.25)], Turns(1, empty), MACHINE)
    assert clock.log == ["empty", "a1", "b1"] * 2
    assert [row["median_us"] for row in rows] == [500_000.0, 250_000.0]


def test_the_floor_is_the_slower_of_reading_and_multiplying() -> None:
    reading = Work(memory_bytes=10_000, cache_bytes=100_000)
    assert reading.floor_us(MACHINE) == pytest.approx(1.0 + 1.0)
    assert Work(10_000, operations=(("int8", 1_000_000),)).floor_us(MACHINE) == pytest.approx(5.0)
    both = Work(operations=(("int8", 1_000_000), ("bfloat16", 1_000_000)))
    assert both.floor_us(MACHINE) == pytest.approx(5.0 + 10.0)


def test_percentiles() -> None:
    values = [5.0, 1.0, 3.0, 2.0, 4.0]
    assert [percentile(values, share) for share in (0.1, 0.5, 0.9)] == [1.0, 3.0, 5.0]
    assert percentile([7.0], 0.1) == percentile([7.0], 0.9) == 7.0
