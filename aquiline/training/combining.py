"""Puts folders of training data together: nothing twice, nothing that is used for measuring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from aquiline.errors import TrainingDataError
from aquiline.tokenizer import Tokenizer
from aquiline.training.dataset import EVALUATION_FOLDER, DatasetFolder, StoredExample
from aquiline.training.examples import TRAINING_FOLDER, TrainingExample, read_examples, read_shard, shard_paths
from aquiline.training.exclusion import ExcludedPrompts
from aquiline.training.importing import ImportReport

CombineCallback = Callable[[ImportReport], None]


def combine(
    folders: Sequence[Path],
    dataset: DatasetFolder,
    tokenizer: Tokenizer,
    excluded: ExcludedPrompts,
    on_progress: CombineCallback,
) -> ImportReport:
    """Copy the examples of `folders` into `dataset`, shard by shard; what was put aside stays so.

    Args:
        tokenizer: of the target that the data was written for, to see what was asked.

    Raises:
        TrainingDataError: a folder that holds no training data, or damaged data, or nothing that can be used.
    """
    report, seen, number = ImportReport(), set[int](), 0
    for folder in folders:
        if not (folder / TRAINING_FOLDER).is_dir():
            raise TrainingDataError(f"{folder} holds no training data; name a folder that train-data has written")
        parts = [
            (path, part == EVALUATION_FOLDER)
            for part in (EVALUATION_FOLDER, TRAINING_FOLDER)
            for path in shard_paths(folder / part)
        ]
        for path, is_held_out in parts:
            shard = read_shard(path)
            stored: list[StoredExample] = []
            for example, fingerprint in zip(read_examples(shard), shard.fingerprints, strict=True):
                report.num_read += 1
                if fingerprint in seen:
                    report.skip("duplicate", str(path), "the same was asked before")
                elif excluded.overlap(asked_text(tokenizer, example)):
                    report.skip("excluded", str(path), "it overlaps with a prompt that is used for measuring")
                else:
                    seen.add(fingerprint)
                    stored.append(StoredExample(example, fingerprint, is_held_out))
                    report.keep(stored[-1])
            if number >= dataset.num_rounds:
                dataset.write_round(stored)
            number += 1
            on_progress(report)
    report.require_stored("examples")
    return report


def num_shards(folder: Path) -> int:
    """How much a folder holds: what has grown since is not what was put together before."""
    return sum(len(shard_paths(folder / part)) for part in (EVALUATION_FOLDER, TRAINING_FOLDER))


def asked_text(tokenizer: Tokenizer, example: TrainingExample) -> str:
    """Everything in an example that the target did not write, one piece after the other."""
    token_ids = [token_id for token_id, flag in zip(example.token_ids, example.is_answer, strict=True) if not flag]
    return tokenizer.decode(token_ids)
