"""The pump sends everything once and in order, however slow the client is and whatever goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

from aquiline.errors import AquilineError
from aquiline.server.event_pump import EventPump, begun


class Numbers:
    """Tells numbers, as many as it is given; 0 is an error, and 9 the last one."""

    def __init__(self) -> None:
        self.waiting: list[int] = []
        self.is_over = False
        self._on_news: Callable[[], None] = lambda: None

    def subscribe(self, on_news: Callable[[], None]) -> None:
        self._on_news = on_news

    def add(self, number: int) -> None:
        self.waiting.append(number)
        self._on_news()

    def take(self) -> bytes:
        taken, self.waiting = self.waiting, []
        if 0 in taken:
            raise AquilineError("a zero")
        self.is_over = 9 in taken
        return bytes(taken)


class Client:
    """Takes parts at once, or later, as `delays` say: so many turns of the event loop each."""

    def __init__(self, delays: list[int]) -> None:
        self._delays = iter(delays)
        self.received = b""
        self.is_busy = False

    async def send(self, message: Message) -> None:
        assert not self.is_busy and message["more_body"]
        self.is_busy = True
        for _ in range(next(self._delays, 0)):
            gone_by = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(gone_by.set_result, None)
            await gone_by
        self.is_busy = False
        self.received += message["body"]


@given(
    numbers=st.lists(st.integers(1, 8), max_size=12),
    early=st.integers(0, 12),
    delays=st.lists(st.integers(0, 3), max_size=13),
    turns=st.lists(st.integers(0, 3), max_size=13),
)
def test_everything_arrives_once_and_in_order(
    numbers: list[int], early: int, delays: list[int], turns: list[int]
) -> None:
    async def run() -> bytes:
        source, client, pauses = Numbers(), Client(delays), iter(turns)
        numbers.append(9)
        for number in numbers[:early]:
            source.add(number)
        pump = asyncio.ensure_future(EventPump(client.send, source).run())
        for number in numbers[early:]:
            for _ in range(next(pauses, 0)):
                await asyncio.sleep(0)
            source.add(number)
        await asyncio.wait_for(pump, 5)
        assert not client.is_busy
        return client.received

    assert asyncio.run(run()) == bytes(numbers)


def test_a_quick_client_has_the_news_before_any_task_runs() -> None:
    async def run() -> None:
        source, client = Numbers(), Client([])
        pump = asyncio.ensure_future(EventPump(client.send, source).run())
        await asyncio.sleep(0)
        source.add(7)
        assert client.received == b"\x07"
        pump.cancel()

    asyncio.run(run())


@pytest.mark.parametrize("delay", [0, 2])
def test_an_error_ends_the_run_and_nobody_else(delay: int) -> None:
    async def run() -> None:
        source, client = Numbers(), Client([delay])
        pump = asyncio.ensure_future(EventPump(client.send, source).run())
        await asyncio.sleep(0)
        source.add(1)
        source.add(0)
        source.add(2)
        with pytest.raises(AquilineError, match="a zero"):
            await asyncio.wait_for(pump, 5)
        source.add(3)
        assert client.received == b"\x01"

    asyncio.run(run())


@pytest.mark.parametrize("delay", [0, 2])
def test_a_failing_send_ends_the_run(delay: int) -> None:
    async def broken(_: Message) -> None:
        for _turn in range(delay):
            await asyncio.sleep(0)
        raise OSError("gone")

    async def run() -> None:
        source = Numbers()
        pump = asyncio.ensure_future(EventPump(broken, source).run())
        await asyncio.sleep(0)
        source.add(1)
        with pytest.raises(OSError, match="gone"):
            await asyncio.wait_for(pump, 5)

    asyncio.run(run())


def test_a_cancelled_run_stops_sending_to_a_slow_client() -> None:
    async def run() -> None:
        source, client = Numbers(), Client([10**6])
        pump = asyncio.ensure_future(EventPump(client.send, source).run())
        await asyncio.sleep(0)
        source.add(1)
        pump.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pump
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def test_work_that_needs_no_waiting_is_done_at_once() -> None:
    done: list[int] = []

    async def quick() -> None:
        done.append(1)

    async def slow() -> None:
        await asyncio.sleep(0)
        done.append(2)

    async def run() -> None:
        assert begun(quick()) is None and done == [1]
        rest: Coroutine[Any, Any, None] | None = begun(slow())
        assert rest is not None and done == [1]
        await rest
        assert done == [1, 2]

    asyncio.run(run())
