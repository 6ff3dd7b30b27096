"""What a run works on: examples of several folders, and the tokens that its draft may propose."""

from __future__ import annotations

from pathlib import Path

import pytest

from aquiline.errors import InvalidParameterError, TrainingDataError
from aquiline.training.evaluation_prompts import held_out_prompts
from aquiline.training.examples import TrainingExample, shard_path, write_shard
from aquiline.training.prepare import draft_vocabulary, read_examples, torch_device
from aquiline.training.run_settings import RunSettings
from aquiline.training.settings import DraftSettings, TrainingSettings


def example(first: int) -> TrainingExample:
    return TrainingExample((first, first + 1, first + 2), (False, True, True))


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    """Folders of two, no and three examples."""
    names = []
    for name, firsts in (("one", [10, 20]), ("none", []), ("two", [30, 40, 50])):
        folder = tmp_path / name
        folder.mkdir()
        write_shard(shard_path(folder, 0), [example(first) for first in firsts], firsts)
        names.append(str(folder))
    return names


def test_folders_follow_each_other(folders: list[str]) -> None:
    examples, expected = read_examples(folders), [example(first) for first in (10, 20, 30, 40, 50)]
    assert list(examples) == expected and len(examples) == 5
    assert [examples[index] for index in range(5)] == expected
    assert [examples[index] for index in range(-5, 0)] == expected
    assert examples[1:4] == expected[1:4]
    for index in (5, -6):
        with pytest.raises(IndexError):
            examples[index]


def test_folders_without_examples_are_refused(folders: list[str]) -> None:
    with pytest.raises(TrainingDataError, match="there is no example in"):
        read_examples(folders[1:2])


def settings(tmp_path: Path, draft: DraftSettings) -> RunSettings:
    training = TrainingSettings(draft=draft)
    return RunSettings("target", tmp_path / "run", (str(tmp_path),), held_out_prompts(), training)


def test_a_draft_proposes_what_is_written_most_and_what_ends_an_answer(folders: list[str], tmp_path: Path) -> None:
    examples = [example(10), example(10), example(20)]
    found = draft_vocabulary(settings(tmp_path, DraftSettings(draft_vocab_size=3)), examples, 60, frozenset({59}))
    assert found.target_ids == (11, 12, 59) and found.coverage == pytest.approx(4 / 6)


@pytest.mark.parametrize("draft", [DraftSettings(draft_vocab_size=None), DraftSettings(kind="eagle1")])
def test_some_drafts_propose_any_token(draft: DraftSettings, tmp_path: Path) -> None:
    found = draft_vocabulary(settings(tmp_path, draft), [example(10)], 60, frozenset())
    assert found.target_ids == tuple(range(60)) and found.coverage == 1.0


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert torch_device("auto").type == torch_device("cpu").type == "cpu"
    with pytest.raises(InvalidParameterError, match="finds no CUDA device"):
        torch_device("cuda")
