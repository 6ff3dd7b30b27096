"""How much memory processes have held at most."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path

PROCESSES = Path("/proc")
STATUS_FILE = PROCESSES / "self" / "status"


def peak_memory_bytes() -> int:
    """Largest resident size of this process so far, in bytes.

    Linux keeps it for the program that runs now (`VmHWM`). What `getrusage` reports is kept across the start of a
    program: a small child of a large process would show its parent's size. It serves where there is no `/proc`.
    """
    if STATUS_FILE.exists():
        found = _resident_peak(STATUS_FILE)
        if found is not None:
            return found
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def peak_memory_of(pid: int) -> int | None:
    """The sum of the largest resident sizes of a process and of all that descend from it, in bytes.

    Memory that they share counts for each. None where the system does not tell, or there is no such process.
    """
    peak = _resident_peak(PROCESSES / str(pid) / "status")
    if peak is None:
        return None
    return peak + sum(peak_memory_of(child) or 0 for child in _children(pid))


def _resident_peak(status_file: Path) -> int | None:
    try:
        found = re.search(r"^VmHWM:\s+(\d+) kB$", status_file.read_text(), re.MULTILINE)
    except OSError:
        return None
    return 1024 * int(found.group(1)) if found is not None else None


def _children(pid: int) -> list[int]:
    """Processes that any thread of a process has started."""
    found: list[int] = []
    try:
        for file in (PROCESSES / str(pid) / "task").glob("*/children"):
            found += map(int, file.read_text().split())
    except OSError:
        return found
    return found
