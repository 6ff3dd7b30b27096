"""Measures a server under one load after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from aquiline.benchmark.peak_memory import peak_memory_of
from aquiline.benchmark.serving.bodies import Message, RequestSettings, request_bodies
from aquiline.benchmark.serving.endpoint import Endpoint, EndpointSettings
from aquiline.benchmark.serving.figures import Counting, row_of
from aquiline.benchmark.serving.load import Load, run_load
from aquiline.benchmark.serving.reading import Reading
from aquiline.benchmark.serving.server_figures import growth, read_counters
from aquiline.benchmark.serving.service_levels import ServiceLevels
from aquiline.errors import EndpointError

WARM_UP_TOKENS = 8


@dataclass(frozen=True)
class ServingPlan:
    """What is measured.

    Attributes:
        model: as requests call it; None: the only model that the server names.
        requests: its `model` is filled in.
        server_pid: a process of this machine whose memory is told, with that of its children.
    """

    endpoint: EndpointSettings
    conversations: Sequence[Sequence[Message]]
    requests: RequestSettings
    loads: Sequence[Load]
    model: str | None = None
    levels: ServiceLevels | None = None
    counting: Counting = field(default_factory=Counting)
    server_pid: int | None = None


@dataclass(frozen=True)
class Serving:
    """What was measured: the model as requests called it, and a row per load."""

    model: str
    rows: Sequence[Mapping[str, Any]]


async def measure_serving(plan: ServingPlan, on_end: Callable[[Reading], None] | None = None) -> Serving:
    """Ask one short question to warm the server up, then send every load, each when the one before has been answered.

    Args:
        on_end: called with the reading of each request that has ended.

    Raises:
        EndpointError: the server cannot be reached or refuses; what fails later is counted in the rows.
    """
    endpoint_settings = plan.endpoint
    async with Endpoint(endpoint_settings) as endpoint:
        model = await _model_name(endpoint, plan.model)
        requests = replace(plan.requests, model=model)
        if not await _warm_up(endpoint, plan, requests):
            endpoint_settings = replace(endpoint_settings, asks_usage=False)
    async with Endpoint(endpoint_settings) as endpoint:
        rows = []
        num_before = 1
        for load in plan.loads:
            bodies = request_bodies(plan.conversations, requests, load.num_requests, num_before)
            num_before += load.num_requests
            before = read_counters(await endpoint.metrics())
            run = await run_load(endpoint, load, bodies, on_end)
            after = read_counters(await endpoint.metrics())
            row = row_of(run, plan.levels, plan.counting) | {"server": growth(before, after)}
            if plan.server_pid is not None:
                row["server_peak_memory_mb"] = _memory_mb(plan.server_pid)
            rows.append(row)
    return Serving(model, rows)


async def _model_name(endpoint: Endpoint, asked: str | None) -> str:
    names = await endpoint.model_names()
    url = endpoint.settings.url
    if names is None:
        if asked is None:
            raise EndpointError(
                f"{url} names no models; most servers are at http://HOST:PORT/v1, and --served-model says which to ask"
            )
        return asked
    if asked is not None and asked not in names:
        raise EndpointError(f"{url} has no model {asked!r}; --served-model may be {', '.join(names) or 'none there'}")
    if asked is None and len(names) != 1:
        raise EndpointError(f"{url} has the models {', '.join(names) or 'none'}; choose one with --served-model")
    return names[0] if asked is None else asked


async def _warm_up(endpoint: Endpoint, plan: ServingPlan, requests: RequestSettings) -> bool:
    """Whether the server takes requests as they are; False: only without `stream_options`.

    Raises:
        EndpointError: it takes none.
    """
    short = replace(requests, max_tokens=min(WARM_UP_TOKENS, requests.max_tokens))
    (body,) = request_bodies(plan.conversations, short, 1)
    reading = await endpoint.ask(body)
    if reading.is_complete:
        return True
    if reading.outcome not in ("400", "422") or "stream_options" not in reading.message:
        raise EndpointError(reading.message)
    async with Endpoint(replace(endpoint.settings, asks_usage=False)) as other:
        reading = await other.ask(body)
    if not reading.is_complete:
        raise EndpointError(reading.message)
    return False


def _memory_mb(pid: int) -> float | None:
    num_bytes = peak_memory_of(pid)
    return None if num_bytes is None else round(num_bytes / 2**20, 1)
