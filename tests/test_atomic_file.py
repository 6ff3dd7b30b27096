"""Files are there as a whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aquiline.atomic_file import put_in_place, write_atomically


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def fail(descriptor: int) -> None:
        raise OSError(28, "no room")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no room"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]


def test_several_may_write_one_file_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with put_in_place(path) as first:
        first.write_bytes(b"first")
        with put_in_place(path) as second:
            second.write_bytes(b"second")
        assert path.read_bytes() == b"second"
    assert path.read_bytes() == b"first" and os.listdir(tmp_path) == ["file"]


def test_others_may_read_what_its_writer_would_keep_from_them(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    with put_in_place(tmp_path / "file") as scratch:
        scratch.chmod(0o600)
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode
