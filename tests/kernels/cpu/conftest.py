"""Fixtures of the native kernels' tests."""

from __future__ import annotations

import pytest

from aquiline.kernels import cpu


@pytest.fixture
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Lower the instruction set of everything that is made during the test."""
    name = str(request.param)
    monkeypatch.setenv("AQUILINE_CPU_LEVEL", name)
    if cpu.is_available() and cpu.level() != name:
        pytest.skip(f"this machine has no {name}")
    return name
