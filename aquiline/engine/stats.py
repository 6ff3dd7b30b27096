"""Where the time of the steps goes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from aquiline.engine.step_trace import StepFacts, StepRecorder

PHASES = ("schedule", "draft", "verify", "grammar", "sample", "commit")


@dataclass
class PhaseClock:
    """Wall time of every phase, summed over steps.

    Worked example: `start` at 10.0 s, `lap("schedule")` at 10.1 s and `lap("draft")` at 10.4 s give schedule 0.1 s and
    draft 0.3 s; the time between the last lap of a step and the next start belongs to no phase.

    Attributes:
        seconds: by the names of PHASES.
        num_steps: how many steps were started.
        recorder: told of every lap; None costs nothing.
    """

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    num_steps: int = 0
    recorder: StepRecorder | None = None
    _last: float = 0.0
    _started: float = 0.0

    def start(self) -> None:
        """Begin a step."""
        self._last = self._started = time.perf_counter()
        self.num_steps += 1
        if self.recorder is not None:
            self.recorder.start(self._last)

    @property
    def elapsed(self) -> float:
        """Seconds between the start of the step and its last lap."""
        return self._last - self._started

    def lap(self, phase: str, grammar_seconds: float = 0.0) -> None:
        """Count the time since the last lap, or the start, for `phase`, except for what of it grammars took."""
        now = time.perf_counter()
        self.seconds[phase] += now - self._last - grammar_seconds
        self.seconds["grammar"] += grammar_seconds
        self._last = now
        if self.recorder is not None:
            self.recorder.lap(phase, now)

    def finish(self, facts: Callable[[], StepFacts]) -> None:
        """The step is done; its facts are asked for only where they are recorded."""
        if self.recorder is not None:
            self.recorder.finish(facts())
