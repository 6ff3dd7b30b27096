"""The loops that measure the machine do the work that they are credited with."""

from __future__ import annotations

import pytest

from aquiline.benchmark.machine import MemoryStream, last_cache_bytes, least_seconds, measure_machine
from aquiline.kernels import cpu
from aquiline.kernels.cpu import Threads
from tests.kernels.cpu.levels import with_levels

if cpu.is_available():
    from aquiline.kernels.cpu.extension import native

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason=cpu.why_not())
KINDS = ("float32", "bfloat16", "int8")


@with_levels
@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("num_steps", [1, 2, 13, 100])
def test_every_word_is_read_once(level: str, num_threads: int, num_steps: int) -> None:
    buffer = native().MemoryBuffer(256 * num_steps)
    buffer.fill(0x01000001)
    assert buffer.read(Threads(num_threads).handle) == 0x01000001 * 64 * num_steps % 2**32


@with_levels
@pytest.mark.parametrize("kind", KINDS)
def test_products_are_counted(level: str, kind: str) -> None:
    module = native()
    product_kind = getattr(module.ProductKind, kind)
    once, thrice = (module.multiply_and_add(Threads(1).handle, product_kind, rounds) for rounds in (1, 3))
    assert once >= 64 * 16 and thrice == 3 * once
    assert module.multiply_and_add(Threads(2).handle, product_kind, 1) == 2 * once
    assert module.multiply_and_add(Threads(1).handle, product_kind, 65536) == 65536 * once


@with_levels
@pytest.mark.parametrize("kind", KINDS)
def test_more_products_take_longer(level: str, kind: str) -> None:
    module, threads = native(), Threads(1)
    product_kind = getattr(module.ProductKind, kind)
    few, many = (
        least_seconds(lambda rounds=rounds: module.multiply_and_add(threads.handle, product_kind, rounds), 5)  # type: ignore[misc]
        for rounds in (200, 2000)
    )
    assert many > 3 * few


@pytest.mark.parametrize("num_bytes", [0, -256, 255, 300])
def test_buffers_of_other_sizes_are_refused(num_bytes: int) -> None:
    with pytest.raises(ValueError, match="256"):
        native().MemoryBuffer(num_bytes)


@pytest.mark.parametrize("num_rounds", [0, -1, 65537])
def test_other_numbers_of_rounds_are_refused(num_rounds: int) -> None:
    with pytest.raises(ValueError, match="num_rounds"):
        native().multiply_and_add(Threads(1).handle, native().ProductKind.int8, num_rounds)


def test_figures_of_this_machine_are_plausible() -> None:
    threads = Threads(1)
    stream = MemoryStream(threads)
    assert stream.num_bytes >= 8 * last_cache_bytes()
    machine = measure_machine(threads, stream, num_tries=2)
    assert (machine.level, machine.num_threads) == (cpu.level(), 1)
    assert 0.1 < machine.memory_gb_per_s < machine.cache_gb_per_s * 2
    assert min(machine.float32_gops, machine.bfloat16_gops, machine.int8_gops) > 0.1
