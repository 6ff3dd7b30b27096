"""Two runs never write into one folder at once, and a killed one keeps nobody out."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from aquiline.cli import main
from aquiline.errors import InvalidParameterError
from aquiline.training import run as training_run
from aquiline.training.evaluation_prompts import held_out_prompts
from aquiline.training.folder_lock import NOTE, only_writer
from aquiline.training.parallel import Processes
from aquiline.training.run_settings import RunSettings
from aquiline.training.settings import TrainingSettings
from tests.source_tree import ROOT

PROGRAM = """
import sys
from pathlib import Path
from aquiline.training.folder_lock import only_writer
with only_writer(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@dataclass
class Holder:
    """A process that writes into a folder."""

    folder: Path
    process: subprocess.Popen[str]


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Holder]:
    folder = tmp_path / "new" / "output"
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield Holder(folder, process)
        process.kill()


def test_a_second_process_is_refused_until_the_first_is_killed(holder: Holder) -> None:
    message = rf"another run \(process {holder.process.pid}\) is writing to .*; wait until it ends, or name another"
    for _ in range(2):
        with pytest.raises(InvalidParameterError, match=message), only_writer(holder.folder):
            pass
    holder.process.kill()
    holder.process.wait()
    assert (holder.folder / NOTE).exists()
    with only_writer(holder.folder):
        pass
    assert not list(holder.folder.iterdir())


def test_a_process_that_ends_leaves_nothing_behind(holder: Holder) -> None:
    holder.process.communicate("", timeout=60)
    assert holder.process.returncode == 0 and not holder.folder.exists()


def test_what_was_written_stays(tmp_path: Path) -> None:
    for name in ("first", "second"):
        with only_writer(tmp_path / "output"):
            (tmp_path / "output" / name).touch()
    assert {path.name for path in (tmp_path / "output").iterdir()} == {"first", "second"}


def test_what_is_removed_while_it_is_asked_for_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    really_open = os.open

    def open_and_lose(path: Path, flags: int, mode: int = 0o777) -> int:
        opened.append(really_open(path, flags, mode))
        if len(opened) == 1:
            os.unlink(path)
        return opened[-1]

    monkeypatch.setattr(os, "open", open_and_lose)
    with only_writer(tmp_path):
        monkeypatch.undo()
        assert len(opened) == 2
        with pytest.raises(InvalidParameterError, match="another run"), only_writer(tmp_path):
            pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidParameterError, match="cannot be written"), only_writer(tmp_path / "file" / "folder"):
        pass


@pytest.mark.parametrize("command", ["train-data", "train"])
def test_commands_refuse_a_folder_in_use(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data.jsonl").touch()
    argv = [command, "--target", str(write_nothing(tmp_path)), "--data", str(tmp_path / "data.jsonl"), "--output"]
    with only_writer(tmp_path / "output"):
        assert main([*argv, str(tmp_path / "output")]) == 2
    assert "another run" in capsys.readouterr().err


def write_nothing(folder: Path) -> Path:
    """A model's folder as far as it is looked at before there is work."""
    (folder / "target").mkdir()
    (folder / "target" / "config.json").write_text("{}")
    return folder / "target"


def test_only_the_first_of_several_processes_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = RunSettings(
        target="smollm2-135m",
        output=tmp_path,
        data=(str(tmp_path),),
        prompts=held_out_prompts(),
        training=TrainingSettings(),
        has_plot=False,
    )

    def reached(*_: object) -> None:
        raise NotADirectoryError("prepared")

    monkeypatch.setattr(training_run, "join_processes", lambda device: Processes(1, 2))
    monkeypatch.setattr(Processes, "wait", lambda self: None)
    monkeypatch.setattr(training_run, "prepare", reached)
    with only_writer(tmp_path), pytest.raises(NotADirectoryError, match="prepared"):
        training_run.train(settings)


def test_a_name_that_no_folder_can_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameterError, match="cannot be written"), only_writer(tmp_path / ("x" * 300)):
        pass


def test_a_lock_holds_where_its_note_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with only_writer(tmp_path / "output"):
        monkeypatch.undo()
        with pytest.raises(InvalidParameterError, match="another run is writing"), only_writer(tmp_path / "output"):
            pass


def test_a_folder_may_be_gone_at_the_end(tmp_path: Path) -> None:
    with only_writer(tmp_path / "output"):
        shutil.rmtree(tmp_path / "output")
    assert not (tmp_path / "output").exists()
