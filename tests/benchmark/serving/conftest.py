"""A fresh fake server for every test that asks for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.benchmark.serving.fake_server import FakeServer, fake_server


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    with fake_server() as server:
        yield server
