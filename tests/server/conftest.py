"""One toy model and one server of it for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aquiline.llm import LLM
from tests.server.serving import Running, toy_llm, toy_server, write_toy


@pytest.fixture(scope="session")
def toy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="session")
def solo_llm(toy_folder: Path) -> LLM:
    """The toy model without speculation and without a server: what every answer has to equal."""
    return toy_llm(toy_folder, "off")


@pytest.fixture(scope="session")
def server(toy_folder: Path) -> Iterator[Running]:
    with toy_server(toy_llm(toy_folder)) as running:
        yield running
