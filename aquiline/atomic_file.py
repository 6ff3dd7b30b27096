"""Files that are there as a whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# What the system says where nothing more can be written.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_atomically(path: Path, content: bytes) -> None:
    """Put `content` under `path`; whoever is killed meanwhile leaves what was there before.

    The folder must exist and has one writer at a time. A power cut after the return loses nothing.

    Raises:
        OSError: the disk is full, or the folder cannot be written.
    """
    with put_in_place(path, scratch_of(path)) as scratch:
        scratch.write_bytes(content)


def scratch_of(path: Path) -> Path:
    """Where `write_atomically` writes what will be under `path`; a killed process leaves it behind."""
    return path.with_name(f".{path.name}.partial")


@contextmanager
def put_in_place(path: Path, scratch: Path | None = None) -> Iterator[Path]:
    """An empty file to be written within `with`; behind it, it is under `path`, or after a failure nowhere.

    It may be read by whom files of this process may be read, whatever its writer does. A power cut afterwards loses
    nothing.

    Args:
        scratch: where it lies meanwhile, in the same folder; None takes a name that no other process takes.

    Raises:
        OSError: the disk is full, or the folder cannot be written.
    """
    scratch = scratch or path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        scratch.write_bytes(b"")
        mode = scratch.stat().st_mode
        yield scratch
        scratch.chmod(mode)
        sync(scratch)
        os.replace(scratch, path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    sync(path.parent)


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk, so that a power cut loses nothing; where the system can."""
    if os.name == "posix":
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
