"""What every step did and when: the record behind `--trace`."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

MOST_STEPS_KEPT = 20_000


@dataclass(frozen=True, slots=True)
class StepFacts:
    """The size of a step and what came of it.

    Attributes:
        step: number of the engine step, from 0.
        num_requests: requests that took part; `num_waiting` more wait for their turn.
        num_prefill_rows: rows of prompts among the `num_rows` of the target's forward.
        num_draft_tokens: tree nodes that were verified, roots not counted; `num_lookup_tokens` of them were looked up.
        num_committed_tokens: tokens the users received.
    """

    step: int
    num_requests: int
    num_waiting: int
    num_rows: int
    num_prefill_rows: int
    num_draft_tokens: int
    num_lookup_tokens: int
    num_committed_tokens: int


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step.

    Attributes:
        started: in seconds of a clock that only runs forward, as `ends` are.
        phases: names, in the order in which they came.
        ends: when each of them was over.
        facts: None for a step that failed.
    """

    started: float
    phases: tuple[str, ...]
    ends: tuple[float, ...]
    facts: StepFacts | None


class StepRecorder:
    """Keeps the newest steps.

    Args:
        max_steps: most steps kept; older ones are dropped.

    Attributes:
        num_dropped: steps that were.
    """

    def __init__(self, max_steps: int = MOST_STEPS_KEPT) -> None:
        self.num_dropped = 0
        self._records: deque[StepRecord] = deque(maxlen=max_steps)
        self._started = 0.0
        self._phases: list[str] = []
        self._ends: list[float] = []

    @property
    def records(self) -> Sequence[StepRecord]:
        """The steps kept, the oldest first."""
        return tuple(self._records)

    def start(self, now: float) -> None:
        """A step begins at `now`; one that began before and did not finish has failed, or had nothing to do."""
        if self._phases:
            self._keep(None)
        self._started = now

    def lap(self, phase: str, now: float) -> None:
        """A phase is over."""
        self._phases.append(phase)
        self._ends.append(now)

    def finish(self, facts: StepFacts) -> None:
        """The step is done."""
        self._keep(facts)

    def _keep(self, facts: StepFacts | None) -> None:
        if len(self._records) == self._records.maxlen:
            self.num_dropped += 1
        self._records.append(StepRecord(self._started, tuple(self._phases), tuple(self._ends), facts))
        self._phases.clear()
        self._ends.clear()
