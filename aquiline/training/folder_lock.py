"""One writer at a time in a folder that runs go on in.

The system gives the lock back when the process that holds it ends, however it ends; a note that a killed process leaves
behind binds nobody.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from aquiline.errors import InvalidParameterError

if sys.platform != "win32":
    import fcntl

NOTE = ".in-use"
# What a file system answers that has no locks: there nobody is kept out.
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
HELD = {errno.EAGAIN, errno.EACCES}


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Within `with` no other process that asks for it gets this folder.

    It is made where it does not exist, and goes again where nothing was written into it.

    Raises:
        InvalidParameterError: another has it, or the folder cannot be written.
    """
    if sys.platform == "win32":
        yield
        return
    path = folder / NOTE
    try:
        was_there = folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        note = _locked(path)
    except OSError as error:
        raise InvalidParameterError(f"{folder} cannot be written: {error.strerror}; name another") from None
    try:
        # The lock holds without a name in it, on a full disk say.
        with suppress(OSError):
            os.truncate(note, 0)
            os.write(note, f"{os.getpid()}\n".encode())
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(note)
        if not was_there:
            with suppress(OSError):
                folder.rmdir()


def _locked(path: Path) -> int:
    """An open file under `path` that is locked.

    Whoever waited for a lock may get that of a file which its last holder has removed, and then tries again.
    """
    while True:
        note = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(note, path)
            if path.exists() and os.path.samestat(os.fstat(note), path.stat()):
                return note
        except BaseException:
            os.close(note)
            raise
        os.close(note)


def _lock(note: int, path: Path) -> None:
    try:
        fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in HELD:
            holder = os.read(note, 32).decode(errors="replace").strip()
            named = f" (process {holder})" if holder else ""
            raise InvalidParameterError(
                f"another run{named} is writing to {path.parent}; wait until it ends, or name another output folder"
            ) from None
        if error.errno not in NO_LOCKS:
            raise
