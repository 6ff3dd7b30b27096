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
