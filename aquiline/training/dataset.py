"""A folder of training data: what is trained on, what is put aside, and with which settings it was written.

    train/        shards of examples to train on
    evaluation/   shards of examples that are put aside
    settings.json what the data depends on

Data is written in rounds. A round has one shard in each folder; the one to train on comes last and says that the round
is complete.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aquiline.atomic_file import write_atomically
from aquiline.errors import TrainingDataError
from aquiline.training.examples import (
    TRAINING_FOLDER,
    TrainingExample,
    read_examples,
    read_shard,
    shard_path,
    shard_paths,
    write_shard,
)

EVALUATION_FOLDER = "evaluation"
SETTINGS_FILE = "settings.json"


@dataclass(frozen=True, slots=True)
class StoredExample:
    """An example in a folder of training data.

    Attributes:
        fingerprint: 64 bits, equal where the same was asked.
        is_held_out: put aside for evaluation.
    """

    example: TrainingExample
    fingerprint: int
    is_held_out: bool


class DatasetFolder:
    """A folder that data is written into.

    Args:
        folder: made when missing.
        described: what the data depends on, as JSON can hold it; a run that goes on must bring the same.

    Raises:
        TrainingDataError: the folder holds data of other settings, or cannot be written.
    """

    def __init__(self, folder: Path, described: Mapping[str, object]) -> None:
        self.folder = folder
        self._parts = {True: folder / EVALUATION_FOLDER, False: folder / TRAINING_FOLDER}
        try:
            for part in self._parts.values():
                part.mkdir(parents=True, exist_ok=True)
            self._claim(described)
        except OSError as error:
            raise TrainingDataError(f"{folder} cannot be used ({error.strerror}); name another folder") from error
        self.num_rounds = len(shard_paths(self._parts[False]))

    def write_round(self, stored: Sequence[StoredExample]) -> None:
        """Put the next round on disk, as a whole or not at all.

        Raises:
            TrainingDataError: the disk is full, or the folder cannot be written.
        """
        try:
            for is_held_out, part in self._parts.items():
                chosen = [each for each in stored if each.is_held_out == is_held_out]
                examples = [each.example for each in chosen]
                write_shard(shard_path(part, self.num_rounds), examples, [each.fingerprint for each in chosen])
        except OSError as error:
            raise TrainingDataError(
                f"{self.folder} cannot be written ({error.strerror}); make room, and give the command again to go on"
            ) from error
        self.num_rounds += 1

    def read_round(self, number: int) -> Iterator[StoredExample]:
        """The examples of a round, those put aside first.

        Raises:
            TrainingDataError: a shard is missing or damaged.
        """
        for is_held_out, part in self._parts.items():
            shard = read_shard(shard_path(part, number))
            for example, fingerprint in zip(read_examples(shard), shard.fingerprints, strict=True):
                yield StoredExample(example, fingerprint, is_held_out)

    def _claim(self, described: Mapping[str, object]) -> None:
        """Leave a note of the settings, or compare them with those that are there.

        A run that was refused before it kept any conversation, for a broken line say, binds nobody to its settings.
        """
        path = self.folder / SETTINGS_FILE
        changed = self._changed(path, described) if path.exists() else None
        if changed is not None:
            if holds_conversations(self.folder):
                raise TrainingDataError(f"{self.folder} holds data that {changed} to go on, or another folder")
            for part in self._parts.values():
                for shard in shard_paths(part):
                    shard.unlink()
        if changed is not None or not path.exists():
            write_atomically(path, (json.dumps(described, indent=2) + "\n").encode())

    def _changed(self, path: Path, described: Mapping[str, object]) -> str | None:
        """What an earlier run was given otherwise, and what to give, in words."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise TrainingDataError(f"{path} cannot be read ({error}); write into another folder") from error
        if not isinstance(found, dict) or found.keys() != described.keys():
            return (
                "came about in another way (written by the target, read from files, answered anew, or put together); "
                "give the command it was begun with"
            )
        changes = (
            f"was written with {key} {found[key]!r}, and now it is {now!r}; give the same settings"
            for key, now in described.items()
            if found[key] != now
        )
        return next(changes, None)


def holds_conversations(folder: Path) -> bool:
    """Whether a folder of training data has any, those put aside included."""
    shards = [shard for part in (EVALUATION_FOLDER, TRAINING_FOLDER) for shard in shard_paths(folder / part)]
    return any(read_shard(shard).categories for shard in shards)
