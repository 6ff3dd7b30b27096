"""Whether a server may listen at an address, found out before a model is loaded for it."""

from __future__ import annotations

import errno
import os
import socket

from aquiline.errors import InvalidParameterError


def check_address(host: str, port: int) -> None:
    """Bind every address that `host` stands for, as a server will, and let go of it again.

    Raises:
        InvalidParameterError: the name is unknown, or an address is in use, not allowed or of another machine.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise _refusal(host, port, getattr(error, "strerror", None) or "it is no name of a machine") from None
    missing: OSError | None = None
    num_bound = 0
    for family, kind, protocol, _, address in addresses:
        try:
            _bind(family, kind, protocol, address)
            num_bound += 1
        except OSError as error:
            # A name such as localhost often stands for an address of IPv6 that the machine does not have.
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise _refusal(host, port, os.strerror(error.errno or 0)) from None
            missing = error
    if missing is not None and num_bound == 0:
        raise _refusal(host, port, os.strerror(missing.errno or 0))


def _bind(family: int, kind: int, protocol: int, address: tuple[object, ...]) -> None:
    with socket.socket(family, kind, protocol) as listener:
        if os.name == "posix":
            # Connections of a server that has just ended do not keep a new one from its port.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)


def _refusal(host: str, port: int, reason: str) -> InvalidParameterError:
    return InvalidParameterError(
        f"{host}:{port} cannot be listened on: {reason}; choose another --port, or an address of this machine as --host"
    )
