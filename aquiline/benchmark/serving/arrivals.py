"""When requests come: by chance at a rate, or as a trace says."""

from __future__ import annotations

import math
import random
from itertools import accumulate
from pathlib import Path

from aquiline.errors import InvalidParameterError

MOST_ARRIVALS = 1_000_000


def poisson_arrivals(rate: float, num_requests: int, seed: int) -> tuple[float, ...]:
    """Seconds from the start at which requests come whose gaps are drawn from an exponential distribution.

    One seed gives the same pattern at every rate, only faster: twice the rate halves every time. The first request
    comes at 0.

    Args:
        rate: requests per second.
    """
    generator = random.Random(f"arrivals {seed}")
    gaps = [generator.expovariate(1.0) / rate for _ in range(num_requests - 1)]
    return tuple(accumulate(gaps, initial=0.0))


def read_trace(path: Path) -> tuple[float, ...]:
    """The arrival times in a file: seconds, one number per line, each at least as large as the one before.

    The first arrival becomes 0, so that times of day may be given. Empty lines are left alone.

    Raises:
        InvalidParameterError: the file cannot be read, or is not like that.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InvalidParameterError(f"--arrivals {str(path)!r} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidParameterError(f"--arrivals {str(path)!r} is not text; give one number per line") from None
    times: list[float] = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            times.append(_time(line, f"--arrivals {str(path)!r} line {number}"))
            if len(times) > 1 and times[-1] < times[-2]:
                raise InvalidParameterError(
                    f"--arrivals {str(path)!r} line {number}: {line.strip()} comes before the line above; sort the file"
                )
    if not 1 <= len(times) <= MOST_ARRIVALS:
        raise InvalidParameterError(
            f"--arrivals {str(path)!r} has {len(times)} arrivals; it must have 1 to {MOST_ARRIVALS}, one on each line"
        )
    return tuple(time - times[0] for time in times)


def _time(line: str, place: str) -> float:
    try:
        time = float(line)
    except ValueError:
        time = math.nan
    if not math.isfinite(time):
        raise InvalidParameterError(f"{place} is {line.strip()!r}; it must be a number of seconds")
    return time
