"""Kernel threads by default: one for each physical core that the process may use, on faked machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from aquiline.cores import default_num_threads, num_usable_cores


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Two packages of two cores with two hardware threads each: threads n and n + 4 are of one core."""
    for cpu in range(8):
        topology = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
        write(topology / "thread_siblings_list", f"{cpu % 4},{cpu % 4 + 4}")
    return tmp_path


@pytest.mark.parametrize(
    ("cpus", "expected"),
    [(range(8), 4), (range(4), 4), ([0, 4], 1), ([1, 5, 2], 2), ([7], 1)],
    ids=["all", "one thread of each", "both threads of one", "two cores", "one thread"],
)
def test_hardware_threads_of_one_core_count_once(machine: Path, cpus: list[int], expected: int) -> None:
    assert num_usable_cores(cpus, machine) == expected


def test_without_topology_every_hardware_thread_is_a_core(tmp_path: Path) -> None:
    assert num_usable_cores(range(6), tmp_path) == 6


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("200000 100000", 2), ("350000 100000", 3), ("50000 100000", 1), ("max 100000", 4), ("900000 100000", 4)],
)
def test_quota_of_the_control_group(machine: Path, limit: str, expected: int) -> None:
    write(machine / "proc/self/cgroup", "0::/service/worker")
    write(machine / "sys/fs/cgroup/service/worker/cpu.max", limit)
    assert num_usable_cores(range(8), machine) == expected


def test_quota_of_a_group_above(machine: Path) -> None:
    write(machine / "proc/self/cgroup", "0::/service/worker")
    write(machine / "sys/fs/cgroup/service/cpu.max", "100000 100000")
    write(machine / "sys/fs/cgroup/service/worker/cpu.max", "300000 100000")
    assert num_usable_cores(range(8), machine) == 1


@pytest.mark.parametrize(("quota", "expected"), [("300000", 3), ("-1", 4)])
@pytest.mark.parametrize("controllers", ["cpu", "cpu,cpuacct"])
def test_quota_of_version_1(machine: Path, controllers: str, quota: str, expected: int) -> None:
    write(machine / "proc/self/cgroup", f"7:memory:/box\n3:{controllers}:/box")
    group = machine / f"sys/fs/cgroup/{controllers}/box"
    write(group / "cpu.cfs_quota_us", quota)
    write(group / "cpu.cfs_period_us", "100000")
    assert num_usable_cores(range(8), machine) == expected


@pytest.mark.parametrize("cgroup", ["", "nonsense", "0::/../..", "1:cpu"])
@pytest.mark.parametrize("limit", ["", "word 100000", "100000 0", "100000"])
def test_what_cannot_be_understood_restricts_nothing(machine: Path, cgroup: str, limit: str) -> None:
    write(machine / "proc/self/cgroup", cgroup)
    write(machine / "sys/fs/cgroup/cpu.max", limit)
    assert num_usable_cores(range(8), machine) == 4


@pytest.mark.parametrize(("value", "expected"), [("3", 3), ("5,2", 5), (" 2 ", 2)])
def test_openmp_variable_is_the_default(value: str, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert default_num_threads() == expected


@pytest.mark.parametrize("value", ["", "0", "-1", "many"])
def test_openmp_variable_without_a_number_is_passed_over(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2}, raising=False)
    assert default_num_threads(tmp_path) == 3
