"""Running a test with every instruction set that this machine has."""

from __future__ import annotations

import pytest

LEVELS = ("avx512", "avx2", "portable")

with_levels = pytest.mark.parametrize("level", LEVELS, indirect=True)
