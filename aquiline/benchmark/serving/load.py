"""Sends requests as a load says: at their time, or as soon as another one has ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from aquiline.benchmark.serving.reading import Reading

# The event loop sleeps a little too long; what is left is waited for with short sleeps.
SLEEP_SLACK_SECONDS = 0.002

LoadKind = Literal["rate", "burst", "trace", "concurrency"]
Body = Mapping[str, Any]
Ask = Callable[[Body, float | None], Coroutine[Any, Any, Reading]]


class Asked(Protocol):
    """Something that answers requests."""

    def ask(self, body: Body, due: float | None = None) -> Awaitable[Reading]: ...


@dataclass(frozen=True)
class Load:
    """How requests come.

    Attributes:
        kind: `rate`, `burst` (all come at once) and `trace` are open loops, in which no arrival waits for an answer; in
            the closed loop of `concurrency` a request follows when another has ended.
        value: requests per second, or requests at once; None for the others.
        arrivals: of an open loop, in seconds from its start.
        num_requests: as many as there are arrivals.
    """

    kind: LoadKind
    value: float | None
    num_requests: int
    arrivals: tuple[float, ...] = ()


def load_text(row: Mapping[str, Any]) -> str:
    """The load of a row of figures, in a word."""
    if row["load"] == "rate":
        return f"{row['request_rate']:g}/s"
    return f"{row['concurrency']:g} at once" if row["load"] == "concurrency" else str(row["load"])


@dataclass(frozen=True)
class LoadRun:
    """A load that was sent.

    Attributes:
        readings: of all requests, in the order of their sending.
        client_seconds: processor time that the client took for it.
    """

    load: Load
    readings: Sequence[Reading]
    client_seconds: float


async def run_load(
    endpoint: Asked, load: Load, bodies: Sequence[Body], on_end: Callable[[Reading], None] | None = None
) -> LoadRun:
    """Send one request per body and read all answers to their end.

    Args:
        on_end: called with each reading when it is there.
    """
    started = time.process_time()

    async def ask(body: Body, due: float | None) -> Reading:
        reading = await endpoint.ask(body, due)
        if on_end is not None:
            on_end(reading)
        return reading

    if load.kind == "concurrency":
        assert load.value is not None
        readings = await _closed_loop(ask, bodies, int(load.value))
    else:
        readings = await _open_loop(ask, bodies, load.arrivals)
    return LoadRun(load, readings, time.process_time() - started)


async def _open_loop(ask: Ask, bodies: Sequence[Body], arrivals: Sequence[float]) -> list[Reading]:
    started = time.perf_counter()
    tasks: list[asyncio.Task[Reading]] = []
    async with asyncio.TaskGroup() as group:
        for body, arrival in zip(bodies, arrivals, strict=True):
            due = started + arrival
            await _sleep_until(due)
            tasks.append(group.create_task(ask(body, due)))
    return [task.result() for task in tasks]


async def _closed_loop(ask: Ask, bodies: Sequence[Body], concurrency: int) -> list[Reading]:
    readings: dict[int, Reading] = {}
    waiting = iter(enumerate(bodies))

    async def work() -> None:
        for index, body in waiting:
            readings[index] = await ask(body, None)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(bodies))):
            group.create_task(work())
    return [readings[index] for index in range(len(bodies))]


async def _sleep_until(due: float) -> None:
    """Wait for a time; even where it is over, others get the event loop once, so that no answer is kept waiting."""
    await asyncio.sleep(max(0.0, due - time.perf_counter() - SLEEP_SLACK_SECONDS))
    while time.perf_counter() < due:
        await asyncio.sleep(0.0002)
