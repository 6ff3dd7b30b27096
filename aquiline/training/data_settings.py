"""What a run that writes training data is told, checked once and never changed afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from aquiline.config import EngineConfig
from aquiline.errors import InvalidParameterError
from aquiline.request import MAX_COUNT, MAX_SEED

SELF = "self"
Way = Literal["self", "files", "answers", "folders"]
WRITING = frozenset({"seed", "held_out_share", "max_answer_tokens", "num_turns_per_round", "engine", "num_threads"})
# Which of the fields below mean something in which way of coming to data.
FIELDS_OF_WAY: dict[Way, frozenset[str]] = {
    "self": WRITING | {"num_tokens"},
    "answers": WRITING | {"skips_bad_lines", "regenerates"},
    "files": frozenset({"seed", "held_out_share", "max_length", "skips_bad_lines"}),
    "folders": frozenset(),
}


@dataclass(frozen=True)
class DataSettings:
    """Where training data comes from, and what it holds.

    Attributes:
        target: the model that the data is for: a known name, a file, a folder or a hub id.
        output: folder of the data.
        data: `self`, JSONL files, or folders that were written before.
        num_tokens: answer tokens to write.
        regenerates: of files only the questions are taken, and the target answers them.
        seed: of every random choice.
        held_out_share: of the conversations that are put aside for evaluation.
        max_answer_tokens: where answers that the target writes are cut off.
        num_turns_per_round: conversations that the target writes between two times that they are put on disk, which is
            what a run that was killed repeats.
        max_length: longest conversation from a file, in tokens; None: the target's context.
        exclude: JSONL files of prompts that must not be trained on, beside those that `aquiline train` measures on.
        skips_bad_lines: of files, instead of refusing them.
        engine: in which the target writes.
        num_threads: None: as for `LLM`.
    """

    target: str
    output: Path
    data: tuple[str, ...] = (SELF,)
    num_tokens: int = 1_000_000
    regenerates: bool = False
    seed: int = 0
    held_out_share: float = 0.01
    max_answer_tokens: int = 320
    num_turns_per_round: int = 512
    max_length: int | None = None
    exclude: tuple[str, ...] = ()
    skips_bad_lines: bool = False
    engine: EngineConfig = field(default_factory=EngineConfig)
    num_threads: int | None = None

    def __post_init__(self) -> None:
        _integer("num_tokens", self.num_tokens, 1, 2**62)
        _integer("seed", self.seed, 0, MAX_SEED)
        _integer("max_answer_tokens", self.max_answer_tokens, 1, MAX_COUNT)
        _integer("num_turns_per_round", self.num_turns_per_round, 1, MAX_COUNT)
        if self.max_length is not None:
            _integer("max_length", self.max_length, 2, MAX_COUNT)
        share = self.held_out_share
        if not isinstance(share, int | float) or isinstance(share, bool) or not 0.0 <= share <= 0.5:
            raise InvalidParameterError(f"held_out_share is {share!r}; it must be a number from 0 to 0.5")
        if not self.data:
            raise InvalidParameterError("data is empty; give self, JSONL files, or folders that train-data has written")
        if SELF in self.data and len(self.data) > 1:
            raise InvalidParameterError(
                f"data is {', '.join(self.data)}; self stands alone: write it into a folder of its own, and put the "
                "folders together afterwards"
            )
        are_folders = {Path(name).is_dir() for name in self.data}
        if len(are_folders) > 1:
            raise InvalidParameterError(
                f"data is {', '.join(self.data)}; give files or folders, not both: write the files into a folder first"
            )
        if self.regenerates and self.way != "answers":
            raise InvalidParameterError("regenerate answers the questions of JSONL files; name some with --data")

    @property
    def way(self) -> Way:
        """How this run comes to its data."""
        if self.data == (SELF,):
            return "self"
        if Path(self.data[0]).is_dir():
            return "folders"
        return "answers" if self.regenerates else "files"

    @property
    def paths(self) -> list[Path]:
        return [Path(name) for name in self.data]


def _integer(name: str, value: object, lowest: int, highest: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise InvalidParameterError(f"{name} is {value!r}; it must be an integer from {lowest} to {highest}")
