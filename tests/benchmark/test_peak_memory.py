"""A process reports its own peak memory, not that of the program it was started from."""

from __future__ import annotations

import subprocess
import sys

import pytest

from aquiline.benchmark import peak_memory
from aquiline.benchmark.peak_memory import peak_memory_bytes

CHILD = "from aquiline.benchmark.peak_memory import peak_memory_bytes; print(peak_memory_bytes())"
# A parent that holds 600 MB starts a child.
PARENT = f"""
import subprocess, sys
held = b"x" * 600_000_000
print(subprocess.check_output([sys.executable, "-c", {CHILD!r}]).decode())
"""


@pytest.mark.skipif(not peak_memory.STATUS_FILE.exists(), reason="needs Linux")
def test_a_child_does_not_report_its_parent() -> None:
    alone = int(subprocess.check_output([sys.executable, "-c", CHILD]))
    below_a_large_parent = int(subprocess.check_output([sys.executable, "-c", PARENT]))
    assert below_a_large_parent < alone + 200_000_000


def test_a_peak_stays_when_the_memory_is_given_back() -> None:
    before = peak_memory_bytes()
    held = b"x" * 300_000_000
    del held
    assert peak_memory_bytes() > before + 100_000_000 or before > 600_000_000
