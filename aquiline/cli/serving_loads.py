"""How requests come to a measured server: the options, and the loads that they mean."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from aquiline.benchmark.serving.arrivals import MOST_ARRIVALS, poisson_arrivals, read_trace
from aquiline.benchmark.serving.load import Load
from aquiline.cli.measurement import check_each_once
from aquiline.cli.parser import integer
from aquiline.errors import InvalidParameterError

MOST_AT_ONCE = 10_000
Value = TypeVar("Value")


@dataclass(frozen=True)
class LoadChoice:
    """The loads that were typed; one of the three is not empty."""

    rates: tuple[float, ...] = ()
    concurrencies: tuple[int, ...] = ()
    trace: tuple[float, ...] = ()
    num_requests: int = 64

    def loads(self, seed: int) -> list[Load]:
        """All of them, in the order in which they were typed; `seed` decides when requests come at a rate."""
        count = self.num_requests
        if self.trace:
            return [Load("trace", None, len(self.trace), self.trace)]
        if self.rates:
            return [self._at_rate(rate, seed) for rate in self.rates]
        return [Load("concurrency", float(value), count) for value in self.concurrencies]

    def _at_rate(self, rate: float, seed: int) -> Load:
        if rate == math.inf:
            return Load("burst", None, self.num_requests, (0.0,) * self.num_requests)
        return Load("rate", rate, self.num_requests, poisson_arrivals(rate, self.num_requests, seed))


def add_load_options(group: argparse._ArgumentGroup) -> None:
    """Add the three kinds of load, and how many requests each of them has."""
    group.add_argument(
        "--request-rates", metavar="R,R", help="requests per second that come by chance; inf: all at once"
    )
    group.add_argument("--arrivals", metavar="FILE", help="a file of arrival times, seconds, one on each line")
    group.add_argument("--concurrency", metavar="N,N", help="requests at once, each after another has ended")
    group.add_argument("--num-requests", type=integer, metavar="N", help="of each rate or concurrency (default 64)")


def load_choice(args: argparse.Namespace) -> LoadChoice:
    """The loads that were typed.

    Raises:
        InvalidParameterError: none or several kinds, a value outside its range, or a trace that cannot be read.
    """
    kinds = {"--request-rates": args.request_rates, "--arrivals": args.arrivals, "--concurrency": args.concurrency}
    given = [flag for flag, text in kinds.items() if text is not None]
    if len(given) != 1:
        found = " and ".join(given) if given else "none of them"
        raise InvalidParameterError(f"give one of {', '.join(kinds)}; there is {found}")
    if args.arrivals is not None:
        if args.num_requests is not None:
            raise InvalidParameterError("--arrivals says how many requests there are; leave --num-requests away")
        return LoadChoice(trace=read_trace(Path(args.arrivals)))
    num_requests = 64 if args.num_requests is None else args.num_requests
    if not 1 <= num_requests <= MOST_ARRIVALS:
        raise InvalidParameterError(
            f"--num-requests is {num_requests}; it must be an integer from 1 to {MOST_ARRIVALS}"
        )
    if args.request_rates is not None:
        return LoadChoice(rates=_values("--request-rates", args.request_rates, _rate), num_requests=num_requests)
    concurrencies = _values("--concurrency", args.concurrency, _concurrency)
    return LoadChoice(concurrencies=concurrencies, num_requests=num_requests)


def _values(flag: str, text: str, parse: Callable[[str, str], Value]) -> tuple[Value, ...]:
    values = tuple(parse(flag, part) for part in text.split(","))
    check_each_once(flag, text, values)
    return values


def _rate(flag: str, text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not rate > 0.0:
        raise InvalidParameterError(f"{flag} has {text!r}; it must be positive numbers, for example 0.5,1,2, or inf")
    return rate


def _concurrency(flag: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MOST_AT_ONCE):
        raise InvalidParameterError(f"{flag} has {text!r}; it must be 1 to {MOST_AT_ONCE}, for example 1,4,16")
    return int(text)
