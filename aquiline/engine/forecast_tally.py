"""How what the planner expected of its steps compares with what they came to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from aquiline.engine.forecast import Forecast
from aquiline.engine.plan import StepReport
from aquiline.speculation import DynamicTree, TreeShape, spelt

MOST_SHOWN_SHAPES = 6


@dataclass
class ForecastTally:
    """Sums over the steps that ran as they were forecast.

    Steps that prefill are left out, for nobody forecasts them, and so are those in which another tree grew than the
    best one, as the planner lets happen now and then to learn.

    Attributes:
        num_steps_by_shape: of all steps that decode, whatever was forecast; the shape is that of the largest tree.
        expected_tokens, committed_tokens: of all requests, before stop rules; looked-up tokens are in neither.
    """

    num_steps_by_shape: Counter[TreeShape] = field(default_factory=Counter)
    num_steps: int = 0
    expected_seconds: float = 0.0
    measured_seconds: float = 0.0
    expected_tokens: float = 0.0
    committed_tokens: int = 0

    def add(self, forecast: Forecast | None, report: StepReport) -> None:
        """A step has ended that was forecast like this."""
        if report.seconds is None:
            return
        self.num_steps_by_shape[report.shape] += 1
        if forecast is None:
            return
        if not _is_as_forecast(report, forecast):
            return
        num_requests = report.size.num_requests
        self.num_steps += 1
        self.expected_seconds += forecast.seconds
        self.measured_seconds += report.seconds.total
        self.expected_tokens += forecast.expected
        self.committed_tokens += num_requests + sum(len(outcome.accepted) for outcome in report.outcomes)

    def add_unread(self, shape: TreeShape) -> None:
        """A step that decodes has ended from which the planner does not learn."""
        self.num_steps_by_shape[shape] += 1

    def figures(self) -> dict[str, Any] | None:
        """Means of a step and the usual shapes, ready for JSON; None where no step was compared."""
        if not self.num_steps:
            return None
        count = self.num_steps
        return {
            "num_steps": count,
            "expected_step_ms": round(1e3 * self.expected_seconds / count, 4),
            "measured_step_ms": round(1e3 * self.measured_seconds / count, 4),
            "expected_tokens": round(self.expected_tokens / count, 4),
            "committed_tokens": round(self.committed_tokens / count, 4),
            "num_steps_by_shape": {
                spelt(shape): num_steps for shape, num_steps in self.num_steps_by_shape.most_common(MOST_SHOWN_SHAPES)
            },
        }


def _is_as_forecast(report: StepReport, forecast: Forecast) -> bool:
    if isinstance(forecast.candidate.shape, DynamicTree):
        return report.shape == forecast.candidate.shape
    num_nodes = sum(outcome.num_draft_tokens for outcome in report.outcomes)
    return num_nodes == forecast.num_draft_tokens and not isinstance(report.shape, DynamicTree)
