"""What happened in a run, line by line, on disk: steps, evaluations, the result.

{"kind": "step", "step": 25, "num_tokens": 6400, "loss": 3.1, ...}               the mean of several steps
{"kind": "evaluation", "step": 400, "time_per_committed_token_ms": 2.2, ...}     one checkpoint
{"kind": "result", "checkpoint": "step-00000400", ...}                           the end of the run
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aquiline.atomic_file import write_atomically
from aquiline.errors import TrainingDataError
from aquiline.training.trainer import StepRecord

Record = dict[str, Any]


class History:
    """The records of a run, in memory and in a file that each new one is added to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.records: list[Record] = _read(path)

    def add(self, record: Record) -> None:
        """Add a record, and bring it to the disk."""
        self.records.append(record)
        with self._path.open("a", encoding="utf-8") as sink:
            sink.write(json.dumps(record) + "\n")

    def forget_after(self, step: int) -> None:
        """Drop what a run that goes on from `step` will do again, and any result."""
        kept = [record for record in self.records if record["kind"] != "result" and record["step"] <= step]
        if len(kept) < len(self.records) or self._path.exists():
            self.records = kept
            lines = "".join(json.dumps(record) + "\n" for record in kept)
            write_atomically(self._path, lines.encode())

    def of_kind(self, kind: str) -> list[Record]:
        return [record for record in self.records if record["kind"] == kind]


def _read(path: Path) -> list[Record]:
    """All whole lines; the last one may have been cut by a kill."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    records: list[Record] = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            record = json.loads(line)
            record["kind"], record["step"]
        except (ValueError, KeyError, TypeError):
            raise TrainingDataError(f"{path} line {number} is damaged; delete the file, and the run goes on") from None
        records.append(record)
    return records


class StepMeans:
    """Gathers steps and gives their mean, weighted by their tokens, once there are enough.

    Args:
        num_steps: steps of a mean; a change of stage ends one early.
    """

    def __init__(self, num_steps: int) -> None:
        self._num_steps = num_steps
        self._waiting: list[StepRecord] = []

    def push(self, step: StepRecord) -> list[Record]:
        """Take a step; the means that are complete now."""
        done = []
        if self._waiting and self._waiting[-1].stage != step.stage:
            done.append(self._mean())
        self._waiting.append(step)
        if len(self._waiting) >= self._num_steps:
            done.append(self._mean())
        return done

    def rest(self) -> list[Record]:
        """The mean of what has not been handed out, if there is anything."""
        return [self._mean()] if self._waiting else []

    def _mean(self) -> Record:
        steps, self._waiting = self._waiting, []
        last = steps[-1]
        return {
            "kind": "step",
            "step": last.step,
            "stage": last.stage,
            "epoch": last.epoch,
            "num_tokens": last.num_tokens,
            "total_tokens": last.total_tokens,
            "loss": _rounded(sum(step.loss for step in steps) / len(steps)),
            "losses": _column_means([step.losses for step in steps]),
            "conditional_accuracies": _column_means([step.conditional_accuracies for step in steps]),
            "learning_rate": _rounded(last.learning_rate),
            "gradient_norm": _rounded(sum(step.gradient_norm for step in steps) / len(steps)),
            "tokens_per_second": round(last.tokens_per_second, 1),
        }


def _column_means(rows: Sequence[Sequence[float]]) -> list[float]:
    return [_rounded(sum(column) / len(column)) for column in zip(*rows, strict=True)]


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")
