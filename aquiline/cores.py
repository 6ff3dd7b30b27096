"""How many cores this process may keep busy.

Two hardware threads of one core share its arithmetic, so a second kernel thread there only gets in the way. A container
may hold the process to some of the cores (affinity), or to a share of their time (the quota of a control group).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

OMP_VARIABLE = "OMP_NUM_THREADS"


def default_num_threads(root: Path = Path("/")) -> int:
    """Threads for the kernels where nobody asked for a number: `OMP_NUM_THREADS` where it is set, else one per core.

    Args:
        root: where `proc` and `sys` lie.
    """
    # OpenMP takes a list, one number for each level of nesting, and passes over what is no number.
    wanted = os.environ.get(OMP_VARIABLE, "").partition(",")[0].strip()
    return int(wanted) if wanted.isdecimal() and int(wanted) > 0 else num_usable_cores(_affinity(), root)


def num_usable_cores(cpus: Iterable[int], root: Path = Path("/")) -> int:
    """Physical cores among `cpus`, and no more than the quota of the process's control group allows; at least 1.

    Args:
        cpus: numbers of the hardware threads that the process may run on.
        root: where `proc` and `sys` lie. What is missing there restricts nothing.
    """
    folder = root / "sys" / "devices" / "system" / "cpu"
    cores = {_text(folder / f"cpu{cpu}" / "topology" / "thread_siblings_list") or f"only {cpu}" for cpu in cpus}
    return max(1, min([len(cores), *(int(share) for share in _quotas(root))]))


def _affinity() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _quotas(root: Path) -> Iterator[float]:
    """Cores' worth of time that the process's control group and those above it may use; nothing where all may."""
    mounted = root / "sys" / "fs" / "cgroup"
    for line in (_text(root / "proc" / "self" / "cgroup") or "").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            places = [mounted]
        elif "cpu" in controllers.split(","):
            places = [mounted / "cpu", mounted / controllers]
        else:
            continue
        parts = [part for part in path.split("/") if part and part != ".."]
        for place in places:
            for depth in range(len(parts) + 1):
                yield from _quota_of(place.joinpath(*parts[:depth]))


def _quota_of(group: Path) -> Iterator[float]:
    """The quota that one control group sets: `cpu.max` in version 2, two files in version 1."""
    quota, _, period = (_text(group / "cpu.max") or "").partition(" ")
    if not quota:
        quota, period = _text(group / "cpu.cfs_quota_us") or "", _text(group / "cpu.cfs_period_us") or ""
    if quota.isdecimal() and period.isdecimal() and int(period) > 0:
        yield int(quota) / int(period)


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
