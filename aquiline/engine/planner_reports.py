"""Reading the reports of several steps at once, which takes far less time than one by one."""

from __future__ import annotations

from collections.abc import Sequence

from aquiline.engine.cost_model import StepCosts, StepSeconds, StepSize
from aquiline.engine.plan import StepReport


def observe_times(reports: Sequence[StepReport], costs: StepCosts, most_sizes: int) -> None:
    """Of steps that were alike, the one that took the middling time stands for all: accidents are left out.

    Args:
        most_sizes: so many sizes are learnt from, the most frequent ones.
    """
    alike: dict[tuple[object, ...], list[tuple[StepSize, StepSeconds]]] = {}
    for report in reports:
        if report.seconds is not None:
            size = report.size
            key = (size.num_rows, size.num_requests, size.level_rows, size.num_new_rows > 0, size.num_masked_rows > 0)
            alike.setdefault(key, []).append((size, report.seconds))
    for steps in sorted(alike.values(), key=len, reverse=True)[:most_sizes]:
        if len(steps) > 1:
            steps.sort(key=_total)
        size, seconds = steps[(len(steps) - 1) // 2]
        costs.observe(size, seconds, len(steps))


def _total(step: tuple[StepSize, StepSeconds]) -> float:
    return step[1].total
