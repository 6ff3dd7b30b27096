"""How what the planner expected of its steps compares with what they came to."""

from __future__ import annotations

from dataclasses import dataclass

from aquiline.engine.forecast import Forecast
from aquiline.engine.plan import StepReport


@dataclass
class ForecastTally:
    """Sums over the steps that ran as they were forecast.

    Steps that prefill are left out, for nobody forecasts them, and so are those in which another tree grew than the
    best one, as the planner lets happen now and then to learn.

    Attributes:
        expected_tokens, committed_tokens: of all requests, before stop rules; looked-up tokens are in neither.
    """

    num_steps: int = 0
    expected_seconds: float = 0.0
    measured_seconds: float = 0.0
    expected_tokens: float = 0.0
    committed_tokens: int = 0

    def add(self, forecast: Forecast | None, report: StepReport) -> None:
        """A step has ended; `forecast` is the newest one, perhaps of an earlier step."""
        if forecast is None or report.seconds is None:
            return
        num_nodes = sum(outcome.num_draft_tokens for outcome in report.outcomes)
        if num_nodes != forecast.num_draft_tokens:
            return
        num_requests = report.size.num_requests
        # Where no tree may grow nothing is forecast; what is known then is of other steps, perhaps of as many requests.
        if not num_nodes and forecast.expected != num_requests:
            return
        self.num_steps += 1
        self.expected_seconds += forecast.seconds
        self.measured_seconds += report.seconds.total
        self.expected_tokens += forecast.expected
        self.committed_tokens += num_requests + sum(len(outcome.accepted) for outcome in report.outcomes)

    def figures(self) -> dict[str, float] | None:
        """Means of a step, ready for JSON; None where no step was compared."""
        if not self.num_steps:
            return None
        count = self.num_steps
        return {
            "num_steps": count,
            "expected_step_ms": round(1e3 * self.expected_seconds / count, 4),
            "measured_step_ms": round(1e3 * self.measured_seconds / count, 4),
            "expected_tokens": round(self.expected_tokens / count, 4),
            "committed_tokens": round(self.committed_tokens / count, 4),
        }
