"""Files that are there as a whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Put `content` under `path`; whoever is killed meanwhile leaves what was there before.

    The folder must exist and has one writer at a time. A power cut after the return loses nothing.

    Raises:
        OSError: the disk is full, or the folder cannot be written.
    """
    scratch = path.with_name(f".{path.name}.partial")
    try:
        with scratch.open("wb") as sink:
            sink.write(content)
            sink.flush()
            os.fsync(sink.fileno())
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
