"""The client against a server whose delays are known: what it measures is what there was."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from aquiline.benchmark.serving.arrivals import poisson_arrivals
from aquiline.benchmark.serving.bodies import RequestSettings, request_bodies
from aquiline.benchmark.serving.endpoint import Endpoint, EndpointSettings
from aquiline.benchmark.serving.figures import Counting
from aquiline.benchmark.serving.load import Body, Load, run_load
from aquiline.benchmark.serving.measure import ServingPlan, measure_serving
from aquiline.benchmark.serving.reading import Reading
from aquiline.benchmark.serving.service_levels import parse_service_levels
from aquiline.errors import EndpointError
from tests.benchmark.serving.fake_server import (
    FIRST_SECONDS,
    GAP_SECONDS,
    KEY,
    NUM_EVENTS,
    NUM_PROMPT_TOKENS,
    NUM_TOKENS,
    FakeServer,
)

QUESTIONS = [[{"role": "user", "content": text}] for text in ("one", "two", "three")]
LAST_SECONDS = FIRST_SECONDS + (NUM_EVENTS - 1) * GAP_SECONDS
# The machine may be busy with other tests; nothing can be earlier than the server sends it.
LATE_SECONDS = 0.15


def at_rate(rate: float, num_requests: int) -> Load:
    return Load("rate", rate, num_requests, poisson_arrivals(rate, num_requests, seed=0))


def plan_for(fake: FakeServer, load: Load, **changes: Any) -> ServingPlan:
    endpoint = EndpointSettings(fake.url, timeout=20.0)
    return replace(ServingPlan(endpoint, QUESTIONS, RequestSettings("", max_tokens=10), [load]), **changes)


def measured(plan: ServingPlan) -> Sequence[Mapping[str, Any]]:
    return asyncio.run(measure_serving(plan)).rows


def test_latencies_are_those_of_the_server(fake: FakeServer) -> None:
    levels = parse_service_levels(f"ttft:{1e3 * (FIRST_SECONDS + LATE_SECONDS)},tpot:{1e3 * GAP_SECONDS}")
    (row,) = measured(plan_for(fake, at_rate(20.0, 10), levels=levels))
    assert (row["num_complete"], row["failures"], row["tokens_counted_by"]) == (10, {}, "usage")
    assert row["num_output_tokens"] == 10 * NUM_TOKENS and row["num_input_tokens"] == 10 * NUM_PROMPT_TOKENS
    tpot = (LAST_SECONDS - FIRST_SECONDS) / (NUM_TOKENS - 1)
    for name, seconds in (("ttft", FIRST_SECONDS), ("itl", GAP_SECONDS), ("tpot", tpot), ("e2el", LAST_SECONDS)):
        median = row[f"{name}_ms"]["p50"] / 1e3
        assert 0.95 * seconds <= median <= seconds + LATE_SECONDS, name
    assert row["goodput"] * row["seconds"] >= 5 and row["good_share"] >= 0.5
    assert row["most_at_once"] > 1


def test_limits_that_the_server_breaks_leave_no_goodput(fake: FakeServer) -> None:
    levels = parse_service_levels(f"ttft:{900 * FIRST_SECONDS}")
    (row,) = measured(plan_for(fake, at_rate(50.0, 4), levels=levels))
    assert (row["goodput"], row["good_share"], row["num_complete"]) == (0.0, 0.0, 4)


def test_arrivals_do_not_wait_for_answers(fake: FakeServer) -> None:
    load = Load("trace", None, 8, tuple(0.02 * n for n in range(8)))
    (row,) = measured(plan_for(fake, load))
    assert row["most_at_once"] == 8
    assert row["seconds"] < 2 * LAST_SECONDS + 8 * LATE_SECONDS < 8 * LAST_SECONDS


def test_a_closed_loop_never_asks_more_at_once(fake: FakeServer) -> None:
    (row,) = measured(plan_for(fake, Load("concurrency", 2.0, 6)))
    assert (row["most_at_once"], row["num_complete"], row["concurrency"]) == (2, 6, 2.0)
    assert row["seconds"] >= 0.95 * 3 * LAST_SECONDS


@pytest.mark.parametrize(
    ("model", "outcome", "count"), [("full", "429", 2), ("failing", "error", 4), ("cutting", "cut", 4)]
)
def test_failures_are_counted_by_what_happened(model: str, outcome: str, count: int, fake: FakeServer) -> None:
    fake.models = [model]
    (row,) = measured(plan_for(fake, at_rate(50.0, 4)))
    assert row["failures"] == {outcome: count} and row["num_complete"] == 4 - count
    assert row["failure_messages"]


def test_a_request_that_takes_too_long_is_a_failure(fake: FakeServer) -> None:
    async def ask() -> Reading:
        async with Endpoint(EndpointSettings(fake.url, timeout=timeout)) as endpoint:
            return await endpoint.ask({"model": "slow", "messages": []})

    timeout = FIRST_SECONDS + 0.5
    reading = asyncio.run(ask())
    assert (reading.outcome, len(reading.appeared)) == ("timeout", 1)
    assert 0.99 * timeout <= reading.ended - reading.sent <= timeout + 5


def test_no_server_is_a_failed_connection() -> None:
    async def ask() -> Reading:
        async with Endpoint(EndpointSettings("http://127.0.0.1:9/v1")) as endpoint:
            return await endpoint.ask({})

    assert asyncio.run(ask()).outcome == "connection"


def test_a_server_without_usage_is_asked_without_it(fake: FakeServer) -> None:
    fake.models = ["strict"]
    (row,) = measured(plan_for(fake, at_rate(50.0, 2), counting=Counting(lambda text: 3 * text.count("owl"))))
    assert (row["tokens_counted_by"], row["num_output_tokens"]) == ("tokenizer", 2 * 3 * NUM_EVENTS)
    assert "stream_options" not in fake.bodies[-1]


def test_completions_are_asked_and_read(fake: FakeServer) -> None:
    plan = plan_for(fake, at_rate(50.0, 2))
    plan = replace(
        plan,
        endpoint=replace(plan.endpoint, kind="completions"),
        requests=replace(plan.requests, kind="completions"),
    )
    (row,) = measured(plan)
    assert row["num_complete"] == 2 and row["itl_ms"]["mean"] >= 0.95e3 * GAP_SECONDS
    assert fake.bodies[-1]["prompt"].startswith("Question 3.\n") and "messages" not in fake.bodies[-1]


def test_a_server_of_ours_and_its_memory_are_told(fake: FakeServer) -> None:
    (row,) = measured(plan_for(fake, at_rate(50.0, 3), server_pid=os.getpid()))
    assert row["server"]["num_committed_tokens"] == 3 * NUM_TOKENS
    assert row["server"]["acceptance_length"] == 2.0
    assert row["server"]["phases_ms"] == {"verify": pytest.approx(3.0, abs=1e-3)}
    assert row["server_peak_memory_mb"] > 10


@pytest.mark.parametrize(
    ("models", "asked", "key", "message"),
    [
        (["a", "b"], None, None, "has the models a, b; choose one with --served-model"),
        (["a"], "b", None, "has no model 'b'; --served-model may be a"),
        ([], None, None, "has the models none"),
        (["good"], None, "wrong", "status 401: no such key; name the right key with --api-key-file"),
        (["broken"], None, None, "status 500: out of order"),
    ],
)
def test_what_cannot_begin_is_an_error(
    models: list[str], asked: str | None, key: str | None, message: str, fake: FakeServer
) -> None:
    fake.models = models
    plan = plan_for(fake, at_rate(1.0, 1), model=asked)
    with pytest.raises(EndpointError, match=message):
        asyncio.run(measure_serving(replace(plan, endpoint=replace(plan.endpoint, api_key=key))))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:9/v1", "cannot be reached: Connection refused; is the server"),
        ("http://127.0.0.1:1:2/v1", "no address"),
        ("{root}", "names no models"),
    ],
)
def test_a_wrong_address_is_an_error(url: str, message: str, fake: FakeServer) -> None:
    plan = plan_for(fake, at_rate(1.0, 1))
    settings = replace(plan.endpoint, url=url.replace("{root}", fake.url.removesuffix("/v1")), api_key=KEY)
    with pytest.raises(EndpointError, match=message):
        asyncio.run(measure_serving(replace(plan, endpoint=settings)))


class BusyClient:
    """Answers at once, and keeps the event loop busy while it is asked."""

    async def ask(self, body: Body, due: float | None = None) -> Reading:
        sent = time.perf_counter()
        time.sleep(0.05)
        return Reading(sent if due is None else due, sent, time.perf_counter(), outcome="429")


def test_lateness_of_the_client_is_measured() -> None:
    load = Load("trace", None, 5, (0.0,) * 5)
    run = asyncio.run(run_load(BusyClient(), load, [{}] * 5))
    assert max(reading.sent - reading.due for reading in run.readings) >= 4 * 0.05


def test_prompts_are_seeded_numbered_and_used_evenly() -> None:
    settings = RequestSettings("m", temperature=0.5, seed=5, extra={"top_k": 3, "max_tokens": 9})
    bodies = request_bodies(QUESTIONS, settings, 7, first_number=10)
    texts = [body["messages"][0]["content"] for body in bodies]
    assert [text.split("\n")[0] for text in texts] == [f"Question {n}." for n in range(11, 18)]
    words = [text.split("\n")[1] for text in texts]
    assert sorted(words[:3]) == sorted(words[3:6]) == ["one", "three", "two"]
    assert [body["seed"] for body in bodies] == list(range(15, 22))
    assert all((body["top_k"], body["max_tokens"]) == (3, 9) for body in bodies)
    repeated = request_bodies(QUESTIONS, replace(settings, repeats_prompts=True, temperature=0.0), 7)
    assert [body["messages"][0]["content"] for body in repeated] == words
    assert all("seed" not in body for body in repeated)
