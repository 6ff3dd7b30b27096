"""Training examples on disk: what goes in comes out, whole shards or none, damage is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aquiline.errors import TrainingDataError
from aquiline.training.examples import ExampleStore, TrainingExample, shard_path, write_shard


def example_of(num_prompt: int, num_answer: int, category: str = "", first_id: int = 0) -> TrainingExample:
    token_ids = tuple(range(first_id, first_id + num_prompt + num_answer))
    return TrainingExample(token_ids, (False,) * num_prompt + (True,) * num_answer, category)


@st.composite
def examples(draw: st.DrawFn) -> TrainingExample:
    flags = draw(st.lists(st.booleans(), min_size=2, max_size=12).filter(lambda flags: 0 < sum(flags) < len(flags)))
    token_ids = draw(st.lists(st.integers(0, 2**31 - 1), min_size=len(flags), max_size=len(flags)))
    return TrainingExample(tuple(token_ids), tuple(flags), draw(st.sampled_from(["", "chat", "code"])))


@given(shards=st.lists(st.lists(examples(), max_size=4), max_size=3))
def test_a_store_returns_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, shards: list[list[TrainingExample]]
) -> None:
    folder = tmp_path_factory.mktemp("store")
    for number, shard in enumerate(shards):
        write_shard(shard_path(folder, number), shard, [2**64 - 1 - index for index in range(len(shard))])
    store = ExampleStore(folder)
    expected = [example for shard in shards for example in shard]
    assert list(store) == expected == [store[index] for index in range(len(store))] == store[:]
    assert store[-1:] == expected[-1:]
    assert store.num_tokens == sum(len(example.token_ids) for example in expected) == sum(store.lengths)
    assert store.num_answer_tokens == sum(example.num_answer_tokens for example in expected)
    assert store.categories == [example.category for example in expected]
    assert store.fingerprints == {2**64 - 1 - index for shard in shards for index in range(len(shard))}


def test_an_index_outside_is_refused(tmp_path: Path) -> None:
    write_shard(shard_path(tmp_path, 0), [example_of(2, 2)], [0])
    for index in (1, -2):
        with pytest.raises(IndexError):
            ExampleStore(tmp_path)[index]


@pytest.mark.parametrize(
    ("flags", "message"),
    [((False, False), "no answer token"), ((True, True), "all answer"), ((True,), "one for each token")],
    ids=["nothing", "everything", "short"],
)
def test_a_mask_must_cover_a_part(flags: tuple[bool, ...], message: str) -> None:
    with pytest.raises(TrainingDataError, match=message):
        TrainingExample((1, 2), flags)


def test_a_shard_that_was_cut_off_is_no_shard(tmp_path: Path) -> None:
    write_shard(shard_path(tmp_path, 0), [example_of(2, 2)], [0])
    (tmp_path / f".{shard_path(tmp_path, 1).name}.partial").write_bytes(shard_path(tmp_path, 0).read_bytes()[:50])
    assert len(ExampleStore(tmp_path)) == 1


@pytest.mark.parametrize("keep", [0, 7, 100, -3])
def test_a_damaged_shard_is_named(tmp_path: Path, keep: int) -> None:
    path = shard_path(tmp_path, 0)
    write_shard(path, [example_of(4, 9)], [0])
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(TrainingDataError, match=r"000000\.safetensors is damaged"):
        ExampleStore(tmp_path)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrainingDataError, match="no folder"):
        ExampleStore(tmp_path / "missing")
