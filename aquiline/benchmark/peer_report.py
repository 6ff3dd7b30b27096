"""From the outcomes of all rounds to rows, ratios and failures: arithmetic only."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aquiline.benchmark.peers import PREFILL, Outcome
from aquiline.benchmark.python_engines import AQUILINE, PREFILL_TOKENS, VLLM


@dataclass(frozen=True)
class Spread:
    """Median, least and greatest of one value per round."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        return cls(statistics.median(values), min(values), max(values))

    def rounded(self, num_digits: int) -> dict[str, float]:
        """The three for JSON."""
        return {
            "median": round(self.median, num_digits),
            "min": round(self.least, num_digits),
            "max": round(self.greatest, num_digits),
        }


@dataclass(frozen=True)
class Quantity:
    """What is compared: prefill, or decoding at a batch size with or without trees."""

    kind: str
    batch_size: int
    speculate: str

    @property
    def shown(self) -> str:
        """As headings spell it."""
        if self.kind == PREFILL:
            return f"prefill {PREFILL_TOKENS}"
        name = "plain" if self.speculate == "off" else self.speculate
        return f"{name}, batch {self.batch_size}"


@dataclass(frozen=True)
class Row:
    """One quantity of one engine and file; `by_round` holds tokens per second, by number of the round."""

    engine: str
    file: str
    quantity: Quantity
    by_round: dict[int, float]

    @property
    def spread(self) -> Spread:
        """Over the rounds that succeeded."""
        return Spread.of(list(self.by_round.values()))

    @property
    def shown(self) -> str:
        """Engine and file."""
        return f"{self.engine} {self.file}"


@dataclass(frozen=True)
class Ratio:
    """Our rate over another one, each divided within its round.

    Attributes:
        own: what of ours.
        against: the role of the other one: same file, vllm, best peer, or own plain decoding.
        peer: the other one's engine and file.
    """

    own: Quantity
    against: str
    peer: str
    spread: Spread


def rows_of(outcomes: Sequence[Outcome]) -> list[Row]:
    """One row per engine, file and quantity that was measured at least once, in the order of the programs."""
    found: dict[tuple[str, str, Quantity], dict[int, float]] = {}
    for outcome in sorted(outcomes, key=lambda outcome: outcome.round_number):
        for reading in outcome.output.readings if outcome.output is not None else ():
            quantity = Quantity(reading.kind, reading.batch_size, reading.speculate)
            by_round = found.setdefault((outcome.engine, outcome.file, quantity), {})
            by_round[outcome.round_number] = reading.tokens_per_second
    return [Row(*key, by_round) for key, by_round in found.items()]


def ratios_of(rows: Sequence[Row]) -> list[Ratio]:
    """Every quantity of ours against the same file elsewhere, vLLM, the best peer, and, with trees, our plain decoding.

    The best peer is the one with the greatest median; only rounds in which both succeeded count.
    """
    ratios = []
    for own in (row for row in rows if row.engine == AQUILINE):
        plain = Quantity(own.quantity.kind, own.quantity.batch_size, "off")
        others = [row for row in rows if row.quantity == plain and row is not own]
        peers = [row for row in others if row.engine != AQUILINE]
        compared = [("same file", row) for row in peers if row.file == own.file]
        compared += [("vllm", row) for row in peers if row.engine == VLLM]
        if peers:
            compared.append(("best peer", max(peers, key=lambda row: row.spread.median)))
        compared += [("own plain", row) for row in others if row.engine == AQUILINE]
        for against, other in compared:
            shared = [
                rate / other.by_round[number] for number, rate in own.by_round.items() if number in other.by_round
            ]
            if shared:
                ratios.append(Ratio(own.quantity, against, other.shown, Spread.of(shared)))
    return ratios


def failures_of(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The runs that failed, each message of an engine and file once."""
    seen: dict[tuple[str, str, str], Outcome] = {}
    for outcome in outcomes:
        if outcome.output is None:
            seen.setdefault((outcome.engine, outcome.file, outcome.message), outcome)
    return list(seen.values())


def versions_of(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """Version by engine, of those that told it."""
    return {
        outcome.engine: outcome.output.version
        for outcome in outcomes
        if outcome.output is not None and outcome.output.version
    }


def as_json(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Rows in tokens per second, ratios, failed runs and engine versions, ready for JSON."""
    rows = rows_of(outcomes)
    return {
        "rows": [
            {
                "engine": row.engine,
                "file": row.file,
                **vars(row.quantity),
                "tokens_per_second": row.spread.rounded(2),
                "rounds": [round(rate, 2) for rate in row.by_round.values()],
            }
            for row in rows
        ],
        "ratios": [
            {**vars(ratio.own), "against": ratio.against, "peer": ratio.peer, **ratio.spread.rounded(3)}
            for ratio in ratios_of(rows)
        ],
        "failures": [
            {"engine": run.engine, "file": run.file, "round": run.round_number, "message": run.message}
            for run in outcomes
            if run.output is None
        ],
        "engines": versions_of(outcomes),
    }
