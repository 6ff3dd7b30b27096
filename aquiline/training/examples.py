"""What a draft is trained on: token ids with a mask of those that the target wrote, in memory and on disk.

A store is a folder of shards, each a safetensors file that was written as a whole:

    token_ids    t0 t1 t2 t3 t4 | u0 u1 u2      int32   all examples of the shard, one after the other
    is_answer     0  0  1  1  1 |  0  1  1      uint8   1: the model wrote this token
    lengths       5               3             int32   tokens of each example
    categories    0               2             uint8   index into the list of category names
    category_names ["chat", ...]                uint8   that list as JSON
    fingerprints  f0              f1            uint64  of what was asked, to find duplicates
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from aquiline.atomic_file import write_atomically
from aquiline.errors import TrainingDataError

TRAINING_FOLDER = "train"
SHARD_SUFFIX = ".safetensors"
FORMAT = "aquiline-examples-1"
MAX_CATEGORIES = 256


@dataclass(frozen=True, slots=True)
class TrainingExample:
    """One conversation as the target sees it.

    Attributes:
        token_ids: of the whole conversation, in order, as it is served.
        is_answer: for each token whether the model writes it (its answers and the tokens that end them); the loss is
            taken there and only there.
        category: what kind of conversation it is; empty when that is unknown.

    Raises:
        TrainingDataError: the two differ in length, or the mask covers everything or nothing.
    """

    token_ids: tuple[int, ...]
    is_answer: tuple[bool, ...]
    category: str = ""

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.is_answer):
            raise TrainingDataError(
                f"an example has {len(self.token_ids)} token ids and {len(self.is_answer)} entries in its mask; "
                "it needs one for each token"
            )
        if not any(self.is_answer):
            raise TrainingDataError("an example has no answer token; every conversation needs an assistant turn")
        if all(self.is_answer):
            raise TrainingDataError("an example is all answer; every conversation needs something to answer")

    @property
    def num_answer_tokens(self) -> int:
        return sum(self.is_answer)

    @property
    def answers(self) -> list[tuple[int, ...]]:
        """The token ids of each answer."""
        flagged = zip(self.is_answer, self.token_ids, strict=True)
        groups = itertools.groupby(flagged, key=lambda pair: pair[0])
        return [tuple(token_id for _, token_id in group) for is_answer, group in groups if is_answer]


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of a store: its path, and what lies in memory about its examples."""

    path: Path
    starts: NDArray[np.int64]  # [num_examples + 1], offsets into token_ids
    num_answer_tokens: NDArray[np.int64]  # [num_examples]
    categories: tuple[str, ...]
    fingerprints: tuple[int, ...]


class ExampleStore(Sequence[TrainingExample]):
    """The examples of a folder, in the order of its shards; token ids are read when an example is looked up.

    Args:
        folder: of the shards, or of a whole dataset, of which it then is the part to train on; a folder without shards
            is an empty store.

    Raises:
        TrainingDataError: the folder is missing, or a shard is damaged or of another format.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise TrainingDataError(f"there is no folder {folder}; name one that train-data has written")
        self.folder = folder / TRAINING_FOLDER if (folder / TRAINING_FOLDER).is_dir() else folder
        self.shards = tuple(read_shard(path) for path in shard_paths(self.folder))
        self._first = np.cumsum([0, *(len(shard.categories) for shard in self.shards)])

    def __len__(self) -> int:
        return int(self._first[-1])

    @overload
    def __getitem__(self, index: int) -> TrainingExample: ...
    @overload
    def __getitem__(self, index: slice) -> list[TrainingExample]: ...
    def __getitem__(self, index: int | slice) -> TrainingExample | list[TrainingExample]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"there is no example {index} among {len(self)}")
        index %= len(self)
        number = int(np.searchsorted(self._first, index, side="right")) - 1
        return _read_example(self.shards[number], index - int(self._first[number]))

    def __iter__(self) -> Iterator[TrainingExample]:
        for shard in self.shards:
            yield from read_examples(shard)

    @property
    def num_tokens(self) -> int:
        return sum(int(shard.starts[-1]) for shard in self.shards)

    @property
    def num_answer_tokens(self) -> int:
        return sum(int(shard.num_answer_tokens.sum()) for shard in self.shards)

    @property
    def categories(self) -> list[str]:
        """The category of each example."""
        return [category for shard in self.shards for category in shard.categories]

    @property
    def lengths(self) -> list[int]:
        """The number of tokens of each example."""
        return [int(length) for shard in self.shards for length in np.diff(shard.starts)]

    @property
    def fingerprints(self) -> set[int]:
        """What has been asked already."""
        return {fingerprint for shard in self.shards for fingerprint in shard.fingerprints}


def shard_path(folder: Path, number: int) -> Path:
    """Where shard `number`, counted from 0, lies."""
    return folder / f"{number:06d}{SHARD_SUFFIX}"


def shard_paths(folder: Path) -> list[Path]:
    """The shards of a folder in order; files that are being written are not among them."""
    return sorted(path for path in folder.glob(f"*{SHARD_SUFFIX}") if re.fullmatch("[0-9]{6}", path.stem))


def write_shard(path: Path, examples: Sequence[TrainingExample], fingerprints: Sequence[int]) -> None:
    """Write a shard, as a whole or not at all.

    Args:
        fingerprints: one 64-bit number for each example, equal where the same was asked.

    Raises:
        OSError: the file cannot be written.
    """
    names = sorted({example.category for example in examples})
    assert len(names) <= MAX_CATEGORIES and len(fingerprints) == len(examples)
    tensors: dict[str, NDArray[Any]] = {
        "token_ids": np.array([token_id for example in examples for token_id in example.token_ids], np.int32),
        "is_answer": np.array([flag for example in examples for flag in example.is_answer], np.uint8),
        "lengths": np.array([len(example.token_ids) for example in examples], np.int32),
        "categories": np.array([names.index(example.category) for example in examples], np.uint8),
        "fingerprints": np.array(fingerprints, np.uint64),
    }
    # Beside one entry, metadata comes in an order that differs from run to run.
    tensors["category_names"] = np.frombuffer(json.dumps(names).encode(), np.uint8)
    write_atomically(path, safetensors.numpy.save(tensors, {"format": FORMAT}))


def read_shard(path: Path) -> Shard:
    """Read what a store keeps in memory of a shard.

    Raises:
        TrainingDataError: it is damaged or of another format.
    """
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise TrainingDataError(f"{path} is not a shard of examples ({FORMAT}); write the data again")
            names = json.loads(file.get_tensor("category_names").tobytes())
            lengths = file.get_tensor("lengths")
            starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
            answered = np.concatenate([np.zeros(1, np.int64), np.cumsum(file.get_tensor("is_answer"), dtype=np.int64)])
            return Shard(
                path=path,
                starts=starts,
                num_answer_tokens=np.diff(answered[starts]),
                categories=tuple(names[index] for index in file.get_tensor("categories")),
                fingerprints=tuple(int(value) for value in file.get_tensor("fingerprints")),
            )
    except FileNotFoundError as error:
        raise TrainingDataError(
            f"{path} is missing; remove the shards behind it, and they are written again"
        ) from error
    except (safetensors.SafetensorError, OSError, KeyError, ValueError, IndexError) as error:
        raise TrainingDataError(f"{path} is damaged ({error}); remove it, and the data is written again") from error


def _read_example(shard: Shard, index: int) -> TrainingExample:
    begin, end = int(shard.starts[index]), int(shard.starts[index + 1])
    with safetensors.safe_open(shard.path, framework="numpy") as file:
        token_ids = file.get_slice("token_ids")[begin:end]
        is_answer = file.get_slice("is_answer")[begin:end]
    return _example(token_ids, is_answer, shard.categories[index])


def read_examples(shard: Shard) -> Iterator[TrainingExample]:
    """All examples of a shard, read at once."""
    with safetensors.safe_open(shard.path, framework="numpy") as file:
        token_ids, is_answer = file.get_tensor("token_ids"), file.get_tensor("is_answer")
    for index, category in enumerate(shard.categories):
        begin, end = int(shard.starts[index]), int(shard.starts[index + 1])
        yield _example(token_ids[begin:end], is_answer[begin:end], category)


def _example(token_ids: NDArray[Any], is_answer: NDArray[Any], category: str) -> TrainingExample:
    return TrainingExample(tuple(token_ids.tolist()), tuple(map(bool, is_answer.tolist())), category)
