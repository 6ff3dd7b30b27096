"""Keeps prompts that are used for measuring out of the training data."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from aquiline.errors import TrainingDataError
from aquiline.json_line import json_fault

WORD = re.compile(r"\w+")
NUM_WORDS = 8
MIN_PART_WORDS = 4


class ExcludedPrompts:
    """Texts that must not be trained on.

    Whatever the case and punctuation, a text overlaps with them when it shares a run of eight words with one of them,
    when it holds the whole of one of four to seven words, or when it is one of fewer.

    Args:
        texts: prompts used for measuring.
    """

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._runs: dict[int, set[tuple[str, ...]]] = {}
        self._short: set[tuple[str, ...]] = set()
        for text in texts:
            words = words_of(text)
            length = min(NUM_WORDS, len(words))
            if length < MIN_PART_WORDS:
                self._short.add(tuple(words))
            else:
                self._runs.setdefault(length, set()).update(_runs(words, length))

    def overlap(self, text: str) -> bool:
        """Whether `text` must be left out."""
        words = words_of(text)
        return tuple(words) in self._short or any(
            not runs.isdisjoint(_runs(words, length)) for length, runs in self._runs.items()
        )

    @property
    def fingerprint(self) -> str:
        """Equal for equal sets of texts; empty without any."""
        if not self._runs and not self._short:
            return ""
        spelled = sorted(" ".join(run) for runs in (self._short, *self._runs.values()) for run in runs)
        return hashlib.blake2b("\n".join(spelled).encode(), digest_size=8).hexdigest()


def read_excluded(paths: Sequence[Path]) -> ExcludedPrompts:
    """Every text in JSONL files, whatever the keys: prompts, turns, messages, passages.

    Raises:
        TrainingDataError: a file cannot be read, or a line of it is not JSON.
    """
    return ExcludedPrompts(text for path in paths for text in _texts_of(path))


def words_of(text: str) -> list[str]:
    """The words of a text in lower case, without punctuation."""
    return WORD.findall(text.lower())


def _runs(words: Sequence[str], length: int) -> set[tuple[str, ...]]:
    return {tuple(words[index : index + length]) for index in range(len(words) - length + 1)}


def _texts_of(path: Path) -> Iterator[str]:
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise TrainingDataError(f"{path} cannot be read ({error.strerror}); --exclude takes JSONL files") from None
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield from _texts_in(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise TrainingDataError(f"{path} line {number} is not JSON: {json_fault(error)}") from None


def _texts_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, each in value.items():
            if key not in ("category", "role"):
                yield from _texts_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts_in(each)
