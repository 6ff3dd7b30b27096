"""What this machine reaches: the figures that kernels are measured against."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from aquiline.kernels import cpu
from aquiline.kernels.cpu import Threads
from aquiline.kernels.cpu.extension import native

CACHE_SIZE_FILE = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
USUAL_CACHE_BYTES = 32 * 2**20
LEAST_STREAM_BYTES = 256 * 2**20
# Rounds of a multiplication loop that take milliseconds on any machine of today.
PRODUCT_ROUNDS = 4000


@dataclass(frozen=True)
class MachineSpeed:
    """Best of several tries, all threads together.

    Attributes:
        level: instruction set of the kernels.
        memory_gb_per_s, cache_gb_per_s: reading memory, and a buffer that stays in the last cache; 10^9 bytes.
        float32_gops, bfloat16_gops, int8_gops: multiplications and additions, 10^9 of both together per second.
    """

    level: str
    num_threads: int
    memory_gb_per_s: float
    cache_gb_per_s: float
    float32_gops: float
    bfloat16_gops: float
    int8_gops: float


class MemoryStream:
    """A buffer several times as large as the last cache; reading it leaves nothing else there."""

    def __init__(self, threads: Threads, num_bytes: int | None = None) -> None:
        self.num_bytes = num_bytes or max(LEAST_STREAM_BYTES, 8 * last_cache_bytes())
        self._threads = threads
        self._buffer = native().MemoryBuffer(self.num_bytes)
        # Pages that were never written all show the same zeros.
        self._buffer.fill(1)

    def read(self) -> int:
        """Read all of it; the sum of its 32-bit words modulo 2^32."""
        return int(self._buffer.read(self._threads.handle))


def measure_machine(threads: Threads, stream: MemoryStream, num_tries: int = 10) -> MachineSpeed:
    """Measure reading and multiplying on the threads that kernels run on."""
    in_cache = MemoryStream(threads, last_cache_bytes() // 4 // 256 * 256)
    return MachineSpeed(
        level=cpu.level(),
        num_threads=threads.num_threads,
        memory_gb_per_s=stream.num_bytes / least_seconds(stream.read, num_tries) / 1e9,
        cache_gb_per_s=in_cache.num_bytes / least_seconds(in_cache.read, 5 * num_tries) / 1e9,
        float32_gops=_gops(threads, "float32", num_tries),
        bfloat16_gops=_gops(threads, "bfloat16", num_tries),
        int8_gops=_gops(threads, "int8", num_tries),
    )


def last_cache_bytes() -> int:
    """Size of the cache that the cores share, where the system tells it."""
    try:
        found = re.fullmatch(r"(\d+)K\s*", CACHE_SIZE_FILE.read_text())
    except OSError:
        found = None
    return int(found[1]) * 1024 if found else USUAL_CACHE_BYTES


def least_seconds(run: Callable[[], object], num_tries: int) -> float:
    """The shortest of some runs, after one that does not count."""
    run()
    seconds = []
    for _ in range(num_tries):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def _gops(threads: Threads, kind: str, num_tries: int) -> float:
    module = native()
    product_kind = getattr(module.ProductKind, kind)

    def multiply() -> float:
        return float(module.multiply_and_add(threads.handle, product_kind, PRODUCT_ROUNDS))

    return 2 * multiply() / least_seconds(multiply, num_tries) / 1e9
