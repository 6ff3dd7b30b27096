"""What the page at `/` shows: figures of this moment, and of each load that there was."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aquiline.server.step_report import StepReport
from aquiline.server.submission import Run

WINDOW_SECONDS = 10.0
NEWEST_SHARE = 0.05


@dataclass
class Load:
    """Steps with one number of answers, the newest counting most; all but the number are means of a step.

    Attributes:
        draft_tokens, committed_tokens: of one answer.
    """

    num_answers: int
    draft_tokens: float
    committed_tokens: float
    seconds: float

    def learn(self, other: Load) -> None:
        """Move towards a newer step."""
        for name in ("draft_tokens", "committed_tokens", "seconds"):
            mean = getattr(self, name)
            setattr(self, name, mean + NEWEST_SHARE * (getattr(other, name) - mean))

    @property
    def figures(self) -> dict[str, Any]:
        return {
            "num_answers": self.num_answers,
            "draft_tokens": self.draft_tokens,
            "acceptance_length": self.committed_tokens,
            "time_per_committed_token_ms": 1000.0 * self.seconds / self.committed_tokens,
        }


class LiveFigures:
    """Sums over the life of a server, and means of its newest steps.

    Args:
        clock: tells seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._loads: dict[int, Load] = {}
        self._recent: deque[tuple[float, int]] = deque()
        self._phase_seconds: Counter[str] = Counter()
        self._accepted_at: Counter[int] = Counter()
        self._num_runs = 0
        self._num_tokens = 0
        self._num_preemptions = 0
        self._latest: StepReport | None = None

    def observe_step(self, report: StepReport | None, runs: Sequence[Run]) -> None:
        """A step has ended that added `runs` to answers."""
        num_tokens = sum(run.num_tokens for run in runs)
        self._num_runs += len(runs)
        self._num_tokens += num_tokens
        self._recent.append((self._clock(), num_tokens))
        self._drop_old()
        for run in runs:
            if run.num_accepted:
                self._accepted_at.update(range(run.num_accepted))
        if report is None:
            return
        self._latest = report
        self._num_preemptions += report.num_preemptions
        self._phase_seconds.update(report.phase_seconds)
        if runs and len(runs) >= report.num_running:
            drafted = sum(run.num_draft_tokens for run in runs) / len(runs)
            load = Load(len(runs), drafted, num_tokens / len(runs), report.seconds)
            self._loads.setdefault(len(runs), load).learn(load)

    def observe_idle(self) -> None:
        """No request is left in the engine."""
        self._latest = None

    def _drop_old(self) -> None:
        while self._recent and self._recent[0][0] < self._clock() - WINDOW_SECONDS:
            self._recent.popleft()

    def figures(self) -> dict[str, Any]:
        """Everything that the page shows, but the names of model and shape."""
        self._drop_old()
        latest = self._latest or StepReport(0.0)
        most = max(self._accepted_at, default=-1) + 1
        return {
            "num_running": latest.num_running,
            "num_waiting": latest.num_waiting,
            "cache_usage": latest.cache_usage,
            "num_preemptions": self._num_preemptions,
            "num_committed_tokens": self._num_tokens,
            "tokens_per_second": sum(count for _, count in self._recent) / WINDOW_SECONDS,
            "acceptance_length": self._num_tokens / self._num_runs if self._num_runs else 0.0,
            "phase_seconds": dict(self._phase_seconds),
            "accepted_per_position": [self._accepted_at[position] for position in range(most)],
            "loads": [self._loads[number].figures for number in sorted(self._loads)],
        }
