"""Speculation settings that take turns group by group of prompts, so that a ratio says how sure it is.

A shared machine changes its speed by tens of per cent within seconds. Over one group of prompts all settings meet it in
about the same state, so the ratios of groups scatter far less than their speeds, and their scatter tells what the mean
is worth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from operator import add
from statistics import fmean, stdev
from typing import Any

from aquiline.benchmark.offline import Run, Sweep, answer, config_of, started
from aquiline.engine.forecast_tally import ForecastTally
from aquiline.llm import LLM, Conversation
from aquiline.request import SamplingParams


@dataclass(frozen=True, slots=True)
class PairedRatio:
    """How many times as fast as another setting.

    Attributes:
        mean: geometric, over groups.
        standard_error: of the mean, as a share of it; None: there is a single group.
        num_pairs: groups in which both filled their batch.
    """

    mean: float
    standard_error: float | None
    num_pairs: int

    def figures(self) -> dict[str, Any]:
        """Ready for JSON."""
        error = self.standard_error
        return {
            "mean": round(self.mean, 4),
            "standard_error": None if error is None else round(error, 4),
            "num_pairs": self.num_pairs,
        }


def paired_ratio(speeds: Sequence[float], others: Sequence[float]) -> PairedRatio | None:
    """Ratio of speeds that belong together pair by pair; None: no pair has both.

    Worked example, 110 and 240 tokens/s against 100 and 200: ratios of 1.1 and 1.2 have the geometric mean 1.149 and,
    as their logarithms are .087 apart, a standard error of .0435.
    """
    logs = [math.log(one / other) for one, other in zip(speeds, others, strict=True) if one > 0.0 and other > 0.0]
    if not logs:
        return None
    error = stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else None
    return PairedRatio(math.exp(fmean(logs)), error, len(logs))


def num_groups(num_conversations: int, batch_size: int) -> int:
    """Groups of as many conversations as a batch holds, the last one perhaps smaller."""
    return -(-num_conversations // batch_size)


def num_group_runs(sweep: Sweep, num_conversations: int) -> int:
    """How often a group is answered: by every mode, at every batch size, in every round."""
    groups = sum(num_groups(num_conversations, batch_size) for batch_size in sweep.batch_sizes)
    return groups * len(sweep.modes) * (sweep.warm_up_rounds + sweep.rounds)


def measure_paired(
    llm: LLM,
    conversations: Sequence[Conversation],
    params: SamplingParams,
    sweep: Sweep,
    on_run: Callable[[int], None] | None = None,
) -> list[dict[str, Any]]:
    """Answer all conversations with every mode at every batch size, group by group.

    Every mode has one engine for all rounds of a batch size, without a prefix cache, in which it would find its prompts
    again. Every second group begins with the last mode.

    Args:
        on_run: called with the number of finished groups, each mode and round counted.

    Returns:
        Rows as those of `measure_offline`, of sums over all rounds that count, with `ratio`: the speed of full batches
        as a multiple of that of the first mode.
    """
    rows: list[dict[str, Any]] = []
    num_done = 0

    def count() -> None:
        nonlocal num_done
        num_done += 1
        if on_run is not None:
            on_run(num_done)

    for batch_size in sweep.batch_sizes:
        groups = [conversations[first : first + batch_size] for first in range(0, len(conversations), batch_size)]
        contest = _Contest(
            [
                started(llm, config_of(llm, batch_size, mode, shares_prompts=False), conversations, params)
                for mode in sweep.modes
            ],
            groups,
            params,
            batch_size,
        )
        for turn in range(sweep.warm_up_rounds):
            contest.round(turn, count)
        # What was foretold while engines warmed up is in no figure.
        tallies = [engine.engine.compare_forecasts() for engine in contest.engines]
        rounds = range(sweep.warm_up_rounds, sweep.warm_up_rounds + sweep.rounds)
        rows += _rows(sweep, batch_size, _by_mode([contest.round(turn, count) for turn in rounds]), tallies)
    return rows


@dataclass(frozen=True, slots=True)
class _Contest:
    """Engines, one for each mode, that answer the same groups in turn."""

    engines: list[LLM]
    groups: list[Sequence[Conversation]]
    params: SamplingParams
    batch_size: int

    def round(self, turn: int, count: Callable[[], None]) -> list[list[Run]]:
        """Answer every group with every engine; runs by engine, in the order of groups."""
        runs: list[list[Run]] = [[] for _ in self.engines]
        for number, group in enumerate(self.groups):
            places = range(len(self.engines))
            for place in places if (turn + number) % 2 == 0 else reversed(places):
                runs[place].append(answer(self.engines[place], group, self.params, self.batch_size))
                count()
        return runs


def _by_mode(rounds: Sequence[list[list[Run]]]) -> list[list[Run]]:
    return [list(chain.from_iterable(runs)) for runs in zip(*rounds, strict=True)]


def _rows(
    sweep: Sweep, batch_size: int, runs: list[list[Run]], tallies: Sequence[ForecastTally]
) -> list[dict[str, Any]]:
    speeds = [[run.full_batch.tokens_per_second for run in found] for found in runs]
    rows: list[dict[str, Any]] = []
    for mode, found, own, tally in zip(sweep.modes, runs, speeds, tallies, strict=True):
        ratio = paired_ratio(own, speeds[0])
        rows.append(
            {
                "batch_size": batch_size,
                "speculate": mode.text,
                **reduce(add, found).figures(),
                "ratio": None if ratio is None else ratio.figures(),
                "forecast": tally.figures(),
            }
        )
    return rows
