"""The thread pool: every task runs once, whoever calls, and idle threads use no processor time."""

from __future__ import annotations

import os
import threading
import time

import pytest

from aquiline.errors import InvalidParameterError
from aquiline.kernels import cpu
from aquiline.kernels.cpu import Threads

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason=cpu.why_not())


def sum_below(count: int) -> int:
    return count * (count - 1) // 2


@pytest.mark.parametrize("num_threads", [1, 2, 3, 8])
def test_every_task_runs_once(num_threads: int) -> None:
    threads = Threads(num_threads)
    assert threads.num_threads == num_threads
    for num_tasks in (0, 1, 2, 3, 17, 1000):
        assert threads.handle.sum_tasks(num_tasks) == sum_below(num_tasks)


@pytest.mark.parametrize("num_threads", [1, 2, 3, 8])
def test_every_shared_item_is_handed_out_once(num_threads: int) -> None:
    threads = Threads(num_threads)
    for num_items in (0, 1, 2, 3, 17, 1000, 100_003):
        assert threads.handle.sum_items(num_items) == sum_below(num_items)


def test_many_short_loops_in_a_row() -> None:
    threads = Threads(3)
    assert all(threads.handle.sum_tasks(4) == 6 for _ in range(2000))
    assert all(threads.handle.sum_items(num_items) == sum_below(num_items) for num_items in range(2000))


def test_loops_after_the_threads_have_gone_to_sleep() -> None:
    threads = Threads(3)
    for _ in range(20):
        time.sleep(0.002)
        assert threads.handle.sum_tasks(50) == sum_below(50)


def test_callers_take_turns() -> None:
    threads = Threads(2)
    results: list[int] = []
    callers = [
        threading.Thread(target=lambda: results.extend(threads.handle.sum_tasks(30) for _ in range(200)))
        for _ in range(3)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert results == [sum_below(30)] * 600


def test_pools_come_and_go() -> None:
    for count in range(20):
        threads = Threads(1 + count % 4)
        assert threads.handle.sum_tasks(10) == 45
        del threads


def test_idle_threads_use_no_processor_time() -> None:
    threads = Threads(4)
    threads.handle.sum_tasks(100)
    time.sleep(0.05)
    before = os.times()
    time.sleep(0.5)
    after = os.times()
    assert (after.user + after.system) - (before.user + before.system) <= 0.05


@pytest.mark.parametrize("num_threads", [0, -1, 1025])
def test_a_number_of_threads_that_makes_no_sense_is_refused(num_threads: int) -> None:
    with pytest.raises(InvalidParameterError, match="num_threads"):
        Threads(num_threads)
