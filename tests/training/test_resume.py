"""A run that is killed anywhere goes on to the same weights, bit for bit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from aquiline.errors import InvalidParameterError, ModelFormatError, TrainingDataError, TrainingDivergedError
from aquiline.training.checkpoint import DRAFT, FOLDER, PARTIAL_PREFIX, PROGRESS, STATE
from aquiline.training.examples import TrainingExample
from aquiline.training.settings import TrainingSettings
from aquiline.training.trainer import StepRecord, Trainer, TrainerCallbacks
from tests.source_tree import ROOT
from tests.training.toy_run import toy_examples, toy_settings, toy_trainer


class Killed(BaseException):
    """What kills a run in these tests; nothing catches it."""


def state_of(checkpoint: Path) -> dict[str, torch.Tensor]:
    return load_file(checkpoint / STATE)


def assert_same_run(found: Path, expected: Path) -> None:
    """Equal weights, moments and exported heads."""
    assert found.name == expected.name
    for name in (STATE, "draft/model.safetensors"):
        mine, right = load_file(found / name), load_file(expected / name)
        assert mine.keys() == right.keys()
        assert all(torch.equal(mine[key], right[key]) for key in right)
    progress = [json.loads((folder / PROGRESS).read_text())["progress"] for folder in (found, expected)]
    assert progress[0] == progress[1]


def run_until(trainer: Trainer, last_step: int) -> None:
    """Train and be killed after a step, before anything else happens."""

    def on_step(record: StepRecord) -> None:
        if record.step == last_step:
            raise Killed

    with pytest.raises(Killed):
        trainer.run(TrainerCallbacks(on_step=on_step))


VARIANTS: dict[str, TrainingSettings] = {
    "eagle3": toy_settings(),
    "averaged weights, frozen head": toy_settings(ema_decay=0.9, freeze_head=True),
    "bfloat16": toy_settings(dtype="bfloat16"),
    "eagle1 with noise": toy_settings("eagle1"),
}


@pytest.fixture(scope="module", params=list(VARIANTS))
def settings(request: pytest.FixtureRequest) -> TrainingSettings:
    return VARIANTS[request.param]


@pytest.fixture(scope="module")
def whole(settings: TrainingSettings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The last checkpoint of a run that nothing disturbed."""
    return toy_trainer(tmp_path_factory.mktemp("whole"), settings).run()


@pytest.mark.parametrize("killed_after", [(1,), (3, 7), (2, 4, 6, 7)], ids=str)
def test_a_killed_run_ends_as_if_it_had_not_been(
    settings: TrainingSettings, whole: Path, killed_after: tuple[int, ...], tmp_path: Path
) -> None:
    for step in killed_after:
        run_until(toy_trainer(tmp_path, settings), step)
    assert_same_run(toy_trainer(tmp_path, settings).run(), whole)


def test_a_finished_run_is_not_trained_again(settings: TrainingSettings, whole: Path) -> None:
    records: list[StepRecord] = []
    trainer = toy_trainer(whole.parent.parent, settings)
    assert trainer.is_finished
    assert trainer.run(TrainerCallbacks(on_step=records.append)) == whole
    assert not records


@pytest.mark.parametrize("stage", ["state", "draft", "before the rename"])
def test_a_kill_while_a_checkpoint_is_written_leaves_the_one_before(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = toy_settings()
    expected = toy_trainer(tmp_path / "whole", settings).run()
    with monkeypatch.context() as patched:
        count = 0

        def killed_the_second_time(*_: object, **__: object) -> None:
            nonlocal count
            count += 1
            if count == 2:
                raise Killed
            original(*_, **__)

        place, name = {
            "state": ("aquiline.training.checkpoint", "save_file"),
            "draft": ("aquiline.training.trainer", "export_draft"),
            "before the rename": ("aquiline.training.checkpoint.os", "rename"),
        }[stage]
        original = getattr(sys.modules["os" if name == "rename" else place], name)
        patched.setattr(f"{place}.{name}", killed_the_second_time)
        with pytest.raises(Killed):
            toy_trainer(tmp_path / "killed", settings).run()
    folder = tmp_path / "killed" / FOLDER
    assert any(path.name.startswith(PARTIAL_PREFIX) for path in folder.iterdir())
    assert_same_run(toy_trainer(tmp_path / "killed", settings).run(), expected)
    assert not any(path.name.startswith(PARTIAL_PREFIX) for path in folder.iterdir())


PROGRAM = """
import os, signal, sys
from pathlib import Path
from aquiline.training.trainer import TrainerCallbacks
from tests.training.toy_run import toy_trainer
import torch
torch.set_num_threads(1)
last = int(sys.argv[2])
def on_step(record):
    if record.step == last:
        os.kill(os.getpid(), signal.SIGKILL)
toy_trainer(Path(sys.argv[1])).run(TrainerCallbacks(on_step=on_step))
"""


def test_kill_9_and_another_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "killed"), "7"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == -9
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert_same_run(toy_trainer(tmp_path / "killed").run(), toy_trainer(tmp_path / "whole").run())
    finally:
        torch.set_num_threads(threads)


def test_other_settings_data_or_targets_are_refused(tmp_path: Path) -> None:
    settings = toy_settings()
    run_until(toy_trainer(tmp_path, settings), 4)
    others = {
        "settings.seed is 7": replace(settings, seed=7),
        "settings.stages.1.learning_rate is 0.5": replace(
            settings, stages=(settings.stages[0], replace(settings.stages[1], learning_rate=0.5))
        ),
        "settings.draft.num_layers is 2": replace(settings, draft=replace(settings.draft, num_layers=2)),
        "settings.dtype is 'bfloat16'": replace(settings, dtype="bfloat16"),
    }
    for message, other in others.items():
        with pytest.raises(InvalidParameterError, match=message):
            toy_trainer(tmp_path, other)
    with pytest.raises(InvalidParameterError, match="data_digest is"):
        toy_trainer(tmp_path, settings, toy_examples(seed=1))
    kept = replace(settings, checkpoint_every=1, keep_checkpoints=5)
    assert toy_trainer(tmp_path, kept).progress.num_steps > 0


def test_old_checkpoints_go_and_the_best_stays(tmp_path: Path) -> None:
    folders: list[Path] = []
    trainer = toy_trainer(tmp_path, toy_settings(checkpoint_every=1, keep_checkpoints=2))

    def on_checkpoint(folder: Path) -> None:
        folders.append(folder)
        if len(folders) == 2:
            trainer.checkpoints.mark_best(folder)

    newest = trainer.run(TrainerCallbacks(on_checkpoint=on_checkpoint))
    assert len(folders) > 4
    assert newest == folders[-1]
    assert sorted(path for path in newest.parent.iterdir() if path.is_dir()) == [folders[1], *folders[-2:]]
    assert trainer.checkpoints.best == folders[1]


@pytest.mark.parametrize("name", [STATE, PROGRESS])
def test_a_damaged_checkpoint_is_refused_with_what_to_do(name: str, tmp_path: Path) -> None:
    newest = toy_trainer(tmp_path).run()
    (newest / name).write_bytes((newest / name).read_bytes()[:50])
    with pytest.raises(ModelFormatError, match="delete it to go on from the checkpoint before"):
        toy_trainer(tmp_path)
    shutil.rmtree(newest)
    assert toy_trainer(tmp_path).run() == newest


@pytest.mark.parametrize(
    ("poisoned_step", "message"),
    [(6, "step 7: the loss is nan"), (5, "step 5: fc.weight holds NaN")],
    ids=["before a step", "before a checkpoint"],
)
def test_what_is_no_number_stops_the_run_and_keeps_the_last_checkpoint(
    poisoned_step: int, message: str, tmp_path: Path
) -> None:
    trainer = toy_trainer(tmp_path)

    def on_step(record: StepRecord) -> None:
        if record.step == poisoned_step:
            with torch.no_grad():
                trainer.network.parameters["fc.weight"][0, 0] = torch.nan

    with pytest.raises(TrainingDivergedError, match=message):
        trainer.run(TrainerCallbacks(on_step=on_step))
    newest = trainer.checkpoints.newest
    assert newest is not None
    assert all(bool(tensor.isfinite().all()) for tensor in state_of(newest).values())
    assert_same_run(toy_trainer(tmp_path).run(), toy_trainer(tmp_path / "whole").run())


def test_data_without_two_answer_tokens_in_a_row_is_refused(tmp_path: Path) -> None:
    lonely = TrainingExample((1, 2, 3, 4), (False, True, False, True))
    with pytest.raises(TrainingDataError, match="none of the 1 examples has two answer tokens in a row"):
        toy_trainer(tmp_path, examples=[lonely])


def test_the_provenance_names_the_earlier_draft_but_not_where_it_lay(tmp_path: Path) -> None:
    settings = toy_settings()
    earlier = toy_trainer(tmp_path / "first", settings).run() / DRAFT
    going_on = replace(settings, draft=replace(settings.draft, start=str(earlier)))
    checkpoint = toy_trainer(tmp_path / "second", going_on).run()
    provenance = json.loads((checkpoint / PROGRESS).read_text())["provenance"]
    assert provenance["settings"]["draft"]["start"] == DRAFT
    assert str(tmp_path) not in json.dumps(provenance)
