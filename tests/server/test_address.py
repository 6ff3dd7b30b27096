"""An address at which no server can listen is refused before anything is loaded."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from aquiline.cli import main
from aquiline.errors import InvalidParameterError
from aquiline.server.address import check_address


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_a_free_port_stays_free(host: str) -> None:
    check_address(host, 0)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    check_address(host, port)
    check_address(host, port)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_port_in_use_is_named_with_the_reason(host: str, taken_port: int) -> None:
    with pytest.raises(InvalidParameterError, match=rf"{host}:{taken_port} cannot be listened on: Address already in"):
        check_address(host, taken_port)


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        pytest.param("192.0.2.1", "Cannot assign requested address", id="of another machine"),
        pytest.param("no such host", "cannot be listened on: .+; choose", id="no name"),
        pytest.param("a" * 64 + ".example", "cannot be listened on: .+; choose", id="no possible name"),
    ],
)
def test_a_host_that_is_not_this_machine_is_refused(host: str, reason: str) -> None:
    with pytest.raises(InvalidParameterError, match=reason):
        check_address(host, 0)


def test_the_address_is_checked_before_the_model_is_looked_for(
    taken_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "no/such/model", "--port", str(taken_port)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"aquiline: error: 127.0.0.1:{taken_port} cannot be listened on") and error.count("\n") == 1
