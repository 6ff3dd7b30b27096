"""The pump sends everything once and in order, however slow the client is and whatever goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aquiline.errors import AquilineError
from aquiline.server.event_pump import EventPump


class Numbers:
    """Tells numbers, as many as it is given; 0 is an error, and 9 the last one."""

    def __init__(self) -> None:
        self.waiting: list[int] = []
        self.is_over = False
        self._on_news: Callable[[], None] = lambda: None

    @property
    def has_failed(self) -> bool:
        return 0 in self.waiting

    def subscribe(self, on_news: Callable[[], None]) -> None:
        self._on_news = on_news

    def add(self, number: int) -> None:
        self.waiting.append(number)
        self._on_news()

    def take(self) -> bytes:
        taken, self.waiting = self.waiting, []
        if 0 in taken:
            self.waiting = taken
            raise AquilineError("a zero")
        self.is_over = 9 in taken
        return bytes(taken)


class Client:
    """Takes parts at once, or is full after them as `delays` say: so many turns of the event loop each."""

    def __init__(self, delays: list[int]) -> None:
        self._delays = iter(delays)
        self.received = b""
        self._num_turns = 0

    @property
    def is_full(self) -> bool:
        return self._num_turns > 0

    def write(self, part: bytes) -> None:
        assert not self.is_full and part
        self.received += part
        self._num_turns = next(self._delays, 0)

    async def emptied(self) -> None:
        while self._num_turns:
            self._num_turns -= 1
            await asyncio.sleep(0)


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
        pump = asyncio.ensure_future(EventPump(client, source).run())
        for number in numbers[early:]:
            for _ in range(next(pauses, 0)):
                await asyncio.sleep(0)
            source.add(number)
        await asyncio.wait_for(pump, 5)
        return client.received

    assert asyncio.run(run()) == bytes(numbers)


def test_a_quick_client_has_the_news_before_any_task_runs() -> None:
    async def run() -> None:
        source, client = Numbers(), Client([])
        pump = asyncio.ensure_future(EventPump(client, source).run())
        await asyncio.sleep(0)
        source.add(7)
        assert client.received == b"\x07"
        pump.cancel()

    asyncio.run(run())


@pytest.mark.parametrize("delay", [0, 2, 10**6], ids=["quick", "slow", "does_not_read"])
def test_an_error_ends_the_run_and_nobody_else(delay: int) -> None:
    async def run() -> None:
        source, client = Numbers(), Client([delay])
        pump = asyncio.ensure_future(EventPump(client, source).run())
        await asyncio.sleep(0)
        source.add(1)
        source.add(0)
        source.add(2)
        with pytest.raises(AquilineError, match="a zero"):
            await asyncio.wait_for(pump, 5)
        source.add(3)
        assert client.received == b"\x01"

    asyncio.run(run())


def test_a_failing_write_ends_the_run() -> None:
    class Broken(Client):
        def write(self, part: bytes) -> None:
            raise OSError("gone")

    async def run() -> None:
        source = Numbers()
        pump = asyncio.ensure_future(EventPump(Broken([]), source).run())
        await asyncio.sleep(0)
        source.add(1)
        with pytest.raises(OSError, match="gone"):
            await asyncio.wait_for(pump, 5)

    asyncio.run(run())


def test_a_cancelled_run_stops_waiting_for_a_slow_client() -> None:
    async def run() -> None:
        source, client = Numbers(), Client([10**6])
        pump = asyncio.ensure_future(EventPump(client, source).run())
        await asyncio.sleep(0)
        source.add(1)
        source.add(2)
        pump.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pump
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())
