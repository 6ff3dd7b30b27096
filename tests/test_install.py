"""What `scripts/install` asks pip for, told by a stand-in for the interpreter of `.venv`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.source_tree import ROOT

PYPROJECT = """
[project]
dependencies = ["first>=1", "second>=2; sys_platform != 'win32'"]
[project.optional-dependencies]
test = ["third[part]>=3"]
check = ["fourth>=4"]
"""
# Writes what pip is asked for, one line a call, with the requirements that it reads.
STAND_IN = """#!/usr/bin/env bash
case "$*" in
    "-c import torch") ;;
    "-m pip "*/dev/stdin) echo "${*:3} $(paste -sd' ')" >>asked ;;
    "-m pip "*) echo "${*:3}" >>asked ;;
    *) exec PYTHON "$@" ;;
esac
"""
PACKAGE = "install --quiet --editable ."
TEST = "install --quiet --requirement /dev/stdin first>=1 second>=2; sys_platform != 'win32' third[part]>=3"
CHECK = "install --quiet --requirement /dev/stdin first>=1 second>=2; sys_platform != 'win32' fourth>=4"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder like a clone, whose `.venv` has an interpreter that writes down what pip is asked for."""
    for folder in ("scripts", "native", ".venv/bin"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "install", tmp_path / "scripts")
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    (tmp_path / "CMakeLists.txt").write_text("")
    (tmp_path / "native" / "kernel.cpp").write_text("int a;")
    for name in ("python", f"python{sys.version_info[0]}.{sys.version_info[1]}"):
        interpreter = tmp_path / ".venv" / "bin" / name
        interpreter.write_text(STAND_IN.replace("PYTHON", sys.executable))
        interpreter.chmod(0o755)
    return tmp_path


def asked(clone: Path, extras: str) -> list[str]:
    """What one run of the script asks pip for."""
    (clone / "asked").write_text("")
    script = ["bash", str(clone / "scripts" / "install"), extras]
    subprocess.run(script, check=True, env={"PATH": "/usr/bin:/bin", "PYTHON": sys.executable})
    return (clone / "asked").read_text().splitlines()


def test_the_kernels_are_compiled_once_whatever_extras_follow(clone: Path) -> None:
    assert asked(clone, "") == [PACKAGE]
    assert asked(clone, "test") == [TEST]
    assert asked(clone, "test,check") == [CHECK]
    assert asked(clone, "") == asked(clone, "check") == asked(clone, "test,check") == []


@pytest.mark.parametrize("changed", ["native/kernel.cpp", "CMakeLists.txt", "pyproject.toml"])
def test_a_change_of_the_package_installs_it_and_its_extras_anew(clone: Path, changed: str) -> None:
    assert asked(clone, "test") == [PACKAGE, TEST]
    (clone / changed).write_text((clone / changed).read_text() + "\n")
    assert asked(clone, "test") == [PACKAGE, TEST]


def test_what_pip_did_not_manage_is_asked_for_again(clone: Path) -> None:
    assert asked(clone, "") == [PACKAGE]
    (clone / "pyproject.toml").write_text("[project]\ndependencies = []\n[project.optional-dependencies]\n")
    with pytest.raises(subprocess.CalledProcessError):
        asked(clone, "test")
    (clone / "pyproject.toml").write_text(PYPROJECT)
    assert asked(clone, "test") == [PACKAGE, TEST]


def test_an_interpreter_that_is_too_old_is_named(clone: Path) -> None:
    old = clone / "python3.10"
    old.write_text("#!/bin/sh\necho 3.10\nexit 1\n")
    old.chmod(0o755)
    script = ["bash", str(clone / "scripts" / "install")]
    done = subprocess.run(script, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "PYTHON": str(old)})
    assert done.returncode == 2
    assert done.stderr == f"scripts/install: {old} is not Python 3.11 or later; set PYTHON to one that is\n"
