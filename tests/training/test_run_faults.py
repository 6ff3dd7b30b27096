"""What a run does when it is killed at an awkward moment, and when its disk is full."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aquiline.atomic_file import scratch_of
from aquiline.errors import TrainingDataError
from aquiline.training import run as training_run
from aquiline.training.checkpoint import FOLDER, CheckpointFolder
from aquiline.training.evaluation_prompts import held_out_prompts
from aquiline.training.run_settings import RUN, RunSettings


class Killed(BaseException):
    """What kills a run in these tests; nothing catches it."""


def settings(folder: Path) -> RunSettings:
    return RunSettings("target", folder / "run", (str(folder),), held_out_prompts(), has_plot=False)


def test_a_head_that_a_killed_run_has_not_brought_out_is_brought_out_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = CheckpointFolder(tmp_path, {}, 1)
    folders = [tmp_path / FOLDER / f"step-{step:08d}" for step in (4, 8)]
    for folder in folders:
        folder.mkdir(parents=True)
    checkpoints.mark_best(folders[0])
    head = tmp_path / training_run.HEAD
    head.mkdir()
    (head / "config.json").write_text("{}")
    evaluations = [{"step": 4, "time_per_committed_token_ms": 2.0}, {"step": 8, "time_per_committed_token_ms": 1.0}]
    run = SimpleNamespace(
        _history=SimpleNamespace(of_kind=lambda kind: evaluations),
        _trainer=SimpleNamespace(checkpoints=checkpoints),
        _settings=SimpleNamespace(output=tmp_path),
        _prepared=SimpleNamespace(opened=SimpleNamespace(config=None)),
        _checkpoint=lambda step: tmp_path / FOLDER / f"step-{step:08d}",
    )

    def killed(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(training_run, "write_head", killed)
    with pytest.raises(Killed):
        training_run._Run._settle_best(cast(Any, run))
    written: list[Path] = []
    monkeypatch.setattr(training_run, "write_head", lambda folder, draft, *_: written.append(draft.parent))
    for _ in range(2):
        training_run._Run._settle_best(cast(Any, run))
    assert written == [folders[1]] and checkpoints.best == folders[1]


def test_a_run_that_was_killed_while_it_claimed_its_folder_begins_again(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    chosen.output.mkdir()
    scratch_of(chosen.output / RUN).write_bytes(b"{")
    chosen.claim_output()
    assert (chosen.output / RUN).exists()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES], ids=errno.errorcode.get)
def test_a_full_disk_is_told_apart_from_faults_of_ours(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, "what the system says", str(tmp_path / "history.jsonl"))

    monkeypatch.setattr(training_run, "_train_among", fail)
    told = r"history.jsonl cannot be written \(what the system says\); make room, and give the command again"
    with pytest.raises(TrainingDataError if number == errno.ENOSPC else PermissionError) as caught:
        training_run.train(settings(tmp_path))
    if number == errno.ENOSPC:
        assert caught.match(told)
