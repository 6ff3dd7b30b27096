"""Keeps what the target said on disk, so that later epochs do not ask again.

    labels.json     what the labels belong to
    labels.bin      one record for each example, at an offset that follows from the lengths of those before it
    known-0.bin     one byte for each example: 1 where process 0 has written its record

A record holds token ids, log normalisers and hidden states of all labels, then the features of all rows. Examples are
kept in the order of the data until the space is used up; those behind are labelled anew each time. Labels have the same
bits either way, because the rows of a target do not depend on one another.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from aquiline.atomic_file import put_in_place, write_atomically
from aquiline.errors import InvalidParameterError
from aquiline.training.labels import TargetLabels
from aquiline.training.packing import ExampleIndex, Pack

IDENTITY, RECORDS = "labels.json", "labels.bin"


class LabelSource(Protocol):
    """Whatever labels packs."""

    def label(self, pack: Pack) -> TargetLabels:
        """The target's states at the rows of a pack."""


@dataclass(frozen=True)
class LabelShape:
    """What the labels of a target look like.

    Attributes:
        dtype: of features and hidden states.
    """

    feature_size: int
    hidden_size: int
    dtype: torch.dtype

    @property
    def row_bytes(self) -> int:
        """Of every row."""
        return self.feature_size * self.dtype.itemsize

    @property
    def label_bytes(self) -> int:
        """Of every label, besides its row."""
        return self.hidden_size * self.dtype.itemsize + torch.float32.itemsize + torch.int64.itemsize

    def pack(self, labels: TargetLabels) -> bytes:
        """The record of one example; the widest numbers come first, so that all lie on multiples of their size."""
        columns = (labels.token_ids, labels.log_normalisers, labels.hidden_states, labels.features)
        return b"".join(column.contiguous().view(torch.uint8).numpy().tobytes() for column in columns)

    def unpack(self, record: bytes, num_rows: int, num_labels: int) -> TargetLabels:
        """The way back."""
        buffer, start = bytearray(record), 0

        def column(dtype: torch.dtype, *shape: int) -> Tensor:
            nonlocal start
            count = math.prod(shape)
            if not count:
                return torch.empty(shape, dtype=dtype)
            found = torch.frombuffer(buffer, dtype=dtype, count=count, offset=start).view(shape)
            start += count * dtype.itemsize
            return found

        token_ids = column(torch.int64, num_labels)
        log_normalisers = column(torch.float32, num_labels)
        hidden_states = column(self.dtype, num_labels, self.hidden_size)
        return TargetLabels(column(self.dtype, num_rows, self.feature_size), hidden_states, log_normalisers, token_ids)


class LabelCache:
    """Labels from the disk where they are there, from a source otherwise.

    Args:
        folder: made where it does not exist.
        identity: what the labels depend on, ready for JSON: target, layers, data.
        max_bytes: most space that records take.
        rank: of this process; all processes of a run share one folder.

    Raises:
        InvalidParameterError: the folder holds labels of another target or other data, or cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        source: LabelSource,
        index: ExampleIndex,
        shape: LabelShape,
        identity: Mapping[str, Any],
        max_bytes: int,
        rank: int = 0,
    ) -> None:
        self._folder = folder
        self._source = source
        self._shape = shape
        sizes = [
            rows * shape.row_bytes + labels * shape.label_bytes
            for rows, labels in zip(index.num_rows, index.num_trained, strict=True)
        ]
        self._starts = [0, *accumulate(sizes)]
        self._num_kept = sum(end <= max_bytes for end in self._starts[1:])
        self._own_file = folder / f"known-{rank}.bin"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._claim(json.dumps(identity, sort_keys=True), is_first=rank == 0)
            self._file = os.open(folder / RECORDS, os.O_RDWR | os.O_CREAT, 0o644)
            self._known = self._read_known(len(sizes))
        except OSError as error:
            raise self._unwritable(error) from None
        self._own = self._known.copy()

    @property
    def num_bytes(self) -> int:
        """Space of the records when all that are kept are there."""
        return self._starts[self._num_kept]

    def label(self, pack: Pack) -> TargetLabels:
        """The target's states at the rows of a pack."""
        missing = [number for number, index in enumerate(pack.example_ids) if not self._known[index]]
        if len(missing) == len(pack.example_ids) and all(pack.example_ids[n] >= self._num_kept for n in missing):
            return _on_host(self._source.label(pack))
        found: dict[int, TargetLabels] = {}
        if missing:
            part = pack.part(missing)
            for number, labels in zip(missing, _split(part, _on_host(self._source.label(part))), strict=True):
                found[number] = labels
                self._keep(pack.example_ids[number], labels)
        for number, index in enumerate(pack.example_ids):
            if number not in found:
                num_labels = pack.part([number]).num_trained
                found[number] = self._read(index, pack.lengths[number], num_labels)
        return _join([found[number] for number in range(len(pack.example_ids))])

    def flush(self) -> None:
        """Make what was labelled so far survive a kill; what is lost is only labelled again."""
        try:
            os.fsync(self._file)
            # Under a name of its own meanwhile: another run may keep its labels here at the same time.
            with put_in_place(self._own_file) as scratch:
                scratch.write_bytes(self._own.tobytes())
        except OSError as error:
            raise self._unwritable(error) from None

    def close(self) -> None:
        """Give the file back; the cache must not be asked any more."""
        os.close(self._file)

    def remove(self) -> None:
        """Close the cache and drop what it kept."""
        self.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _claim(self, identity: str, is_first: bool) -> None:
        """Compare the folder with this run; the first process marks one that is new, for a file has one writer."""
        path = self._folder / IDENTITY
        if path.exists() and path.read_text(encoding="utf-8") != identity:
            raise InvalidParameterError(
                f"{self._folder} holds labels of another target, other layers or other data; delete it, or name another"
                " folder"
            )
        if is_first and not path.exists():
            write_atomically(path, identity.encode())

    def _read_known(self, num_examples: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        known = np.zeros(num_examples, dtype=np.uint8)
        for path in self._folder.glob("known-*.bin"):
            flags = np.frombuffer(path.read_bytes(), dtype=np.uint8)
            if len(flags) == num_examples:
                known |= flags
        # A file that was cut short holds the records that end before its end.
        known[np.array(self._starts[1:]) > os.fstat(self._file).st_size] = 0
        return known

    def _keep(self, index: int, labels: TargetLabels) -> None:
        if index >= self._num_kept:
            return
        record = self._shape.pack(labels)
        start = self._starts[index]
        assert len(record) == self._starts[index + 1] - start, "a record has the size that its lengths say"
        try:
            written = os.pwrite(self._file, record, start)
            if written < len(record):
                raise OSError("the disk is full")
        except OSError as error:
            raise self._unwritable(error) from None
        self._known[index] = self._own[index] = 1

    def _read(self, index: int, num_rows: int, num_labels: int) -> TargetLabels:
        start, end = self._starts[index], self._starts[index + 1]
        return self._shape.unpack(os.pread(self._file, end - start, start), num_rows, num_labels)

    def _unwritable(self, error: OSError) -> InvalidParameterError:
        return InvalidParameterError(
            f"labels cannot be kept in {self._folder}: {error.strerror or error}; make room, or set label_cache_gb to 0"
        )


def _split(pack: Pack, labels: TargetLabels) -> list[TargetLabels]:
    """The labels of each conversation."""
    counts = [pack.part([number]).num_trained for number in range(len(pack.lengths))]
    return [
        TargetLabels(features, hidden_states, log_normalisers, token_ids)
        for features, hidden_states, log_normalisers, token_ids in zip(
            torch.split(labels.features, list(pack.lengths)),
            torch.split(labels.hidden_states, counts),
            torch.split(labels.log_normalisers, counts),
            torch.split(labels.token_ids, counts),
            strict=True,
        )
    ]


def _on_host(labels: TargetLabels) -> TargetLabels:
    """Labels in the memory where records are read to."""
    return TargetLabels(
        labels.features.cpu(), labels.hidden_states.cpu(), labels.log_normalisers.cpu(), labels.token_ids.cpu()
    )


def _join(parts: Sequence[TargetLabels]) -> TargetLabels:
    return TargetLabels(
        torch.cat([part.features for part in parts]),
        torch.cat([part.hidden_states for part in parts]),
        torch.cat([part.log_normalisers for part in parts]),
        torch.cat([part.token_ids for part in parts]),
    )
