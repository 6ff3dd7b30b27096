"""Timing of calls that take turns, so that the ratios of one run can be trusted on a machine that is not quiet."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from aquiline.benchmark.machine import MachineSpeed

Numbers = Literal["float32", "bfloat16", "int8"]


@dataclass(frozen=True)
class Work:
    """The least that a call has to do.

    Attributes:
        memory_bytes, cache_bytes: what it reads from memory, and what from the last cache.
        operations: multiplications and additions, by the type of their operands.
    """

    memory_bytes: int = 0
    cache_bytes: int = 0
    operations: tuple[tuple[Numbers, int], ...] = ()

    def floor_us(self, machine: MachineSpeed) -> float:
        """The time that this takes at the best speed of the machine, reading and multiplying at once."""
        reading = self.memory_bytes / machine.memory_gb_per_s + self.cache_bytes / machine.cache_gb_per_s
        peaks = {"float32": machine.float32_gops, "bfloat16": machine.bfloat16_gops, "int8": machine.int8_gops}
        multiplying = sum(count / peaks[numbers] for numbers, count in self.operations)
        return max(reading, multiplying) / 1e3


@dataclass(frozen=True)
class Case:
    """One kernel at one size.

    Attributes:
        run: makes `num_calls` calls.
        work: of one call.
        is_cold: caches are emptied before each run.
    """

    kernel: str
    num_rows: int
    run: Callable[[], object]
    work: Work
    num_calls: int = 1
    is_cold: bool = False


@dataclass(frozen=True)
class Turns:
    """How often every case has its turn, and what happens beside.

    Attributes:
        num_rounds: measured runs of each case; one more comes before them and does not count.
        empty_caches: called before cases that are cold.
        on_run: called with the number of finished runs of all cases.
    """

    num_rounds: int
    empty_caches: Callable[[], object]
    on_run: Callable[[int], None] | None = None


def measure_cases(cases: Sequence[Case], turns: Turns, machine: MachineSpeed) -> list[dict[str, Any]]:
    """Run all cases once, then all of them again, and so on.

    Returns:
        A row per case, ready for JSON: times of one call in microseconds (median, tenth and ninetieth percentile), the
        floor, and `ratio_to_first`, the median over the rounds of its time divided by that of the first case of the
        same kernel in the same round.
    """
    seconds: list[list[float]] = [[] for _ in cases]
    num_runs = 0
    for round_number in range(turns.num_rounds + 1):
        for case, measured in zip(cases, seconds, strict=True):
            if case.is_cold:
                turns.empty_caches()
            started = time.perf_counter()
            case.run()
            elapsed = (time.perf_counter() - started) / case.num_calls
            if round_number > 0:
                measured.append(elapsed)
            num_runs += 1
            if turns.on_run is not None:
                turns.on_run(num_runs)
    first_of = {case.kernel: index for index, case in reversed(list(enumerate(cases)))}
    return [
        _row(case, measured, seconds[first_of[case.kernel]], machine)
        for case, measured in zip(cases, seconds, strict=True)
    ]


def _row(case: Case, seconds: Sequence[float], first: Sequence[float], machine: MachineSpeed) -> dict[str, Any]:
    median = 1e6 * statistics.median(seconds)
    floor = case.work.floor_us(machine)
    ratios = [own / other for own, other in zip(seconds, first, strict=True)]
    return {
        "kernel": case.kernel,
        "num_rows": case.num_rows,
        "median_us": _shortened(median),
        "p10_us": _shortened(1e6 * percentile(seconds, 0.1)),
        "p90_us": _shortened(1e6 * percentile(seconds, 0.9)),
        "floor_us": _shortened(floor),
        "ratio_to_floor": _shortened(median / floor),
        "ratio_to_first": _shortened(statistics.median(ratios)),
    }


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed.

    Worked example: of 5 1 3 2 4 the share .5 gives 3, .1 gives 1 and .9 gives 5.
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _shortened(figure: float) -> float:
    return float(f"{figure:.4g}")
