"""How much memory this process has held at most."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path

STATUS_FILE = Path("/proc/self/status")


def peak_memory_bytes() -> int:
    """Largest resident size of this process so far, in bytes.

    Linux keeps it for the program that runs now (`VmHWM`). What `getrusage` reports is kept across the start of a
    program: a small child of a large process would show its parent's size. It serves where there is no `/proc`.
    """
    if STATUS_FILE.exists():
        found = re.search(r"^VmHWM:\s+(\d+) kB$", STATUS_FILE.read_text(), re.MULTILINE)
        if found is not None:
            return 1024 * int(found.group(1))
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
