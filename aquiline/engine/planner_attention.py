"""Whether steps take what was foretold; where they do not, the planner learns from every one of them."""

from __future__ import annotations

# Of the means of measured over foretold times, how much each step renews: of what was lately, and of what is usual;
# one step is believed within bounds.
PACE = 0.05
USUAL_PACE = 0.005
LEAST_RATIO = 0.5
MOST_RATIO = 2.0
# What was lately may differ from what is usual by so much.
CALM = 0.1


class Attention:
    """Compares the times of all steps, also of those that nothing else is learnt from, which costs next to nothing.

    What is always foretold wrongly by the same share alarms nobody for long: learning has not mended it.

    Worked example: steps that take 1.5 times what was foretold bring the mean to 1.025, 1.049, 1.071, 1.093, 1.113 and
    1.132, and what is usual to 1.015; after the sixth, the planner is alert.

    Attributes:
        is_alert: forecasts have been wrong of late.
    """

    def __init__(self) -> None:
        self.is_alert = False
        self._mean = self._usual = 1.0

    def see(self, seconds: float, expected: float) -> None:
        """A step has run as planned."""
        if expected > 0.0:
            ratio = min(MOST_RATIO, max(LEAST_RATIO, seconds / expected))
            self._mean += PACE * (ratio - self._mean)
            self._usual += USUAL_PACE * (ratio - self._usual)
            self.is_alert = abs(self._mean - self._usual) > CALM * self._usual
