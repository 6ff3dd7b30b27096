"""Labels kept on disk are those that the target gives, and no more of them than there is room for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from aquiline import atomic_file
from aquiline.errors import InvalidParameterError
from aquiline.training.label_cache import IDENTITY, RECORDS, LabelCache, LabelShape
from aquiline.training.labels import TargetLabeller, TargetLabels
from aquiline.training.packing import ExampleIndex, Pack, make_pack
from aquiline.training.trainer import LABELS, TrainerCallbacks
from tests.training.test_resume import assert_same_run
from tests.training.toy_run import AUX_LAYER_IDS, toy_examples, toy_settings, toy_target, toy_trainer

EXAMPLES = toy_examples(6)
INDEX = ExampleIndex.of(EXAMPLES, 100)
SHAPE = LabelShape(32 * len(AUX_LAYER_IDS), 32, torch.float32)
PLENTY = 10**9


class CountingSource:
    """The toy target, and what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self._labeller = TargetLabeller(toy_target().model, torch.float32)

    def label(self, pack: Pack) -> TargetLabels:
        self.asked += pack.example_ids
        return self._labeller.label(pack)


def new_cache(
    folder: Path, source: CountingSource, max_bytes: int = PLENTY, identity: str = "toy", rank: int = 0
) -> LabelCache:
    return LabelCache(folder, source, INDEX, SHAPE, {"target": identity}, max_bytes, rank)


def assert_same_labels(found: TargetLabels, expected: TargetLabels) -> None:
    for name in ("features", "hidden_states", "log_normalisers", "token_ids"):
        assert torch.equal(getattr(found, name), getattr(expected, name))


PACKS = [(2, 0), (4,), (0, 2), (5, 4, 1), (3, 2, 1, 0)]


def test_every_pack_has_the_labels_of_the_target_and_no_example_is_asked_for_twice(tmp_path: Path) -> None:
    source, fresh = CountingSource(), CountingSource()
    cache = new_cache(tmp_path, source)
    for ids in PACKS:
        pack = make_pack(EXAMPLES, ids, 100)
        assert_same_labels(cache.label(pack), fresh.label(pack))
    assert sorted(source.asked) == [0, 1, 2, 3, 4, 5]
    assert (tmp_path / RECORDS).stat().st_size == cache.num_bytes


def test_what_was_flushed_outlives_the_process_and_the_rest_is_labelled_again(tmp_path: Path) -> None:
    first = new_cache(tmp_path, CountingSource())
    first.label(make_pack(EXAMPLES, [1, 4], 100))
    first.flush()
    first.label(make_pack(EXAMPLES, [2], 100))
    first.close()
    source, fresh = CountingSource(), CountingSource()
    pack = make_pack(EXAMPLES, [4, 2, 1], 100)
    assert_same_labels(new_cache(tmp_path, source).label(pack), fresh.label(pack))
    assert source.asked == [2]


def test_examples_behind_the_limit_are_labelled_anew_each_time(tmp_path: Path) -> None:
    whole = new_cache(tmp_path / "whole", CountingSource()).num_bytes
    source, fresh = CountingSource(), CountingSource()
    cache = new_cache(tmp_path / "half", source, whole // 2)
    assert 0 < cache.num_bytes <= whole // 2
    pack = make_pack(EXAMPLES, range(6), 100)
    for _ in range(2):
        assert_same_labels(cache.label(pack), fresh.label(pack))
    assert (tmp_path / "half" / RECORDS).stat().st_size <= whole // 2
    once = [index for index in range(6) if source.asked.count(index) == 1]
    assert once == list(range(len(once)))
    assert 0 < len(once) < 6


def test_a_file_that_was_cut_short_is_filled_again(tmp_path: Path) -> None:
    cache = new_cache(tmp_path, CountingSource())
    cache.label(make_pack(EXAMPLES, range(6), 100))
    cache.flush()
    cache.close()
    with (tmp_path / RECORDS).open("r+b") as file:
        file.truncate(cache.num_bytes - 1)
    source, fresh = CountingSource(), CountingSource()
    pack = make_pack(EXAMPLES, range(6), 100)
    assert_same_labels(new_cache(tmp_path, source).label(pack), fresh.label(pack))
    assert source.asked == [5]


def test_labels_of_something_else_are_refused(tmp_path: Path) -> None:
    new_cache(tmp_path, CountingSource())
    with pytest.raises(InvalidParameterError, match="labels of another target, other layers or other data; delete it"):
        new_cache(tmp_path, CountingSource(), identity="other")


def test_two_runs_may_keep_their_labels_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = new_cache(tmp_path, CountingSource()), new_cache(tmp_path, CountingSource())
    one.label(make_pack(EXAMPLES, [0], 100))
    other.label(make_pack(EXAMPLES, [0, 1], 100))
    really_sync = atomic_file.sync

    def sync_late(path: Path) -> None:
        monkeypatch.setattr(atomic_file, "sync", really_sync)
        other.flush()
        really_sync(path)

    monkeypatch.setattr(atomic_file, "sync", sync_late)
    one.flush()
    source = CountingSource()
    new_cache(tmp_path, source).label(make_pack(EXAMPLES, [0], 100))
    assert not source.asked


def test_only_the_first_process_marks_a_new_folder(tmp_path: Path) -> None:
    """Two that start together would rename one another's half-written file."""
    second = new_cache(tmp_path, CountingSource(), rank=1)
    assert not (tmp_path / IDENTITY).exists()
    first = new_cache(tmp_path, CountingSource())
    assert (tmp_path / IDENTITY).exists()
    first.close()
    second.close()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InvalidParameterError, match="make room, or set label_cache_gb to 0"):
        new_cache(tmp_path / "file" / "labels", CountingSource())


@pytest.mark.parametrize("kind", ["eagle3", "eagle1"])
def test_a_run_with_a_cache_ends_with_the_weights_of_one_without(kind: str, tmp_path: Path) -> None:
    plain = toy_trainer(tmp_path / "plain", toy_settings(kind, label_cache_gb=0.0)).run()
    cached = toy_trainer(tmp_path / "cached", toy_settings(kind))
    seen: list[bool] = []
    folder = tmp_path / "cached" / LABELS
    assert_same_run(cached.run(TrainerCallbacks(on_step=lambda _: seen.append(folder.exists()))), plain)
    assert all(seen)
    assert not folder.exists(), "what only this run needed is gone"


def test_a_named_folder_stays_for_the_next_run(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    settings = toy_settings(label_folder=str(folder))
    first = toy_trainer(tmp_path / "one", settings).run()
    written = (folder / RECORDS).stat().st_mtime_ns
    assert_same_run(toy_trainer(tmp_path / "two", settings).run(), first)
    assert (folder / RECORDS).stat().st_mtime_ns == written
    with pytest.raises(InvalidParameterError, match="labels of another target, other layers or other data"):
        toy_trainer(tmp_path / "three", settings, toy_examples(seed=1))
