"""Installations with and without the native kernels."""

from __future__ import annotations

import subprocess
import sys

import pytest

from aquiline.errors import UnsupportedFeatureError
from aquiline.kernels import cpu
from aquiline.kernels.cpu import extension
from tests.source_tree import ROOT

HIDE_EXTENSION = """
import sys
sys.modules["aquiline.kernels.cpu._native"] = None
import aquiline
from aquiline.kernels import cpu
print(cpu.is_available(), cpu.why_not())
"""

# A daemon thread keeps what it was given until the process is gone.
END_WHILE_SOMETHING_IS_HELD = """
import threading
from aquiline.kernels import cpu
never = threading.Event()
threading.Thread(target=lambda threads: never.wait(), args=(cpu.Threads(2),), daemon=True).start()
"""


def test_an_available_extension_has_no_excuse() -> None:
    assert cpu.is_available() == (cpu.why_not() == "")
    if cpu.is_available():
        assert cpu.level() in ("portable", "avx2", "avx512")


def test_a_missing_extension_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extension, "_module", None)
    monkeypatch.setattr(extension, "_reason", "no compiler")
    assert not cpu.is_available() and cpu.why_not() == "no compiler"
    with pytest.raises(UnsupportedFeatureError, match="no compiler"):
        cpu.Threads(1)


def test_the_package_loads_without_the_extension() -> None:
    result = subprocess.run(
        [sys.executable, "-c", HIDE_EXTENSION], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert result.stdout.startswith("False ") and len(result.stdout.strip().splitlines()) == 1


@pytest.mark.skipif(not cpu.is_available(), reason=cpu.why_not())
def test_a_program_that_ends_while_it_holds_native_objects_ends_in_silence() -> None:
    result = subprocess.run(
        [sys.executable, "-c", END_WHILE_SOMETHING_IS_HELD], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
