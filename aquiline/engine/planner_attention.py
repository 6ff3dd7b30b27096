"""Whether steps are what was foretold; where they are not, the planner learns from every one of them."""

from __future__ import annotations

# Of the means of measured over foretold figures, how much each step renews: of what was lately, and of what is usual;
# one step is believed within bounds.
PACE = 0.05
USUAL_PACE = 0.005
USUAL_TOKENS_PACE = 0.002
LEAST_RATIO = 0.5
MOST_RATIO = 2.0
# What was lately may differ from what is usual by so much. Committed tokens are a matter of luck, and so are the sizes
# of trees that end where the draft has no confidence; but the luck of many requests evens out.
CALM = 0.1
CALM_ABOUT_ONE = 0.35
CALM_ABOUT_TIMES_OF_ONE = 0.25


class Attention:
    """Compares the times and committed tokens of all steps, also of those that nothing else is learnt from, which costs
    next to nothing.

    What is always foretold wrongly by the same share alarms nobody for long: learning has not mended it.

    Worked example: steps that take 1.5 times what was foretold bring the mean to 1.025, 1.049, 1.071, 1.093, 1.113 and
    1.132, and what is usual to 1.015; after the sixth, the planner is alert.
    """

    def __init__(self) -> None:
        self._grows = False
        self._times = _Watch(USUAL_PACE)
        self._tokens = _Watch(USUAL_TOKENS_PACE)

    @property
    def is_alert(self) -> bool:
        """Forecasts have been wrong of late.

        Plain steps commit what was foretold: while there are no others, nothing is to be learnt of tokens.
        """
        return self._times.is_alert or (self._grows and self._tokens.is_alert)

    def see(self, seconds: float, expected: float, num_trees: int = 0) -> None:
        """A step has run as planned.

        Args:
            num_trees: requests of a step with trees; 0: it was planned without any.
        """
        self._grows = num_trees > 0
        self._times.see(seconds, expected, max(CALM, CALM_ABOUT_TIMES_OF_ONE / num_trees**0.5) if num_trees else CALM)

    def see_tokens(self, num_committed: int, expected: float, num_requests: int) -> None:
        """A step with trees has run as planned."""
        self._tokens.see(num_committed, expected, max(CALM, CALM_ABOUT_ONE / num_requests**0.5))


class _Watch:
    """Of one figure: whether its mean of late differs from the usual one."""

    def __init__(self, usual_pace: float) -> None:
        self.is_alert = False
        self._usual_pace = usual_pace
        self._mean = self._usual = 1.0

    def see(self, measured: float, expected: float, calm: float) -> None:
        if expected > 0.0:
            ratio = min(MOST_RATIO, max(LEAST_RATIO, measured / expected))
            self._mean += PACE * (ratio - self._mean)
            self._usual += self._usual_pace * (ratio - self._usual)
            self.is_alert = abs(self._mean - self._usual) > calm * self._usual
