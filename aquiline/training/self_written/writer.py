"""Writes conversations round by round into a folder, and goes on where an earlier run ended."""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aquiline.errors import TrainingDataError
from aquiline.llm import LLM
from aquiline.training.atomic_file import write_atomically
from aquiline.training.examples import (
    ExampleStore,
    TrainingExample,
    read_examples,
    read_shard,
    shard_path,
    write_shard,
)
from aquiline.training.exclusion import ExcludedPrompts
from aquiline.training.fingerprints import is_held_out
from aquiline.training.self_written.dialogues import Dialogue, DialogueWriter, Seen
from aquiline.training.self_written.rounds import Text, plan_counts, write_round
from aquiline.training.self_written.settings import SelfWrittenSettings

TRAINING_FOLDER = "train"
EVALUATION_FOLDER = "evaluation"
SETTINGS_FILE = "settings.json"
# Answer tokens of a conversation, until there are some to count.
FIRST_GUESS = 200.0


@dataclass(frozen=True, slots=True)
class WritingProgress:
    """How far writing has come.

    Attributes:
        num_answer_tokens: on disk, held-out conversations included.
        num_tokens: answer tokens to write.
        num_new_tokens: generated since this call began, user turns and dropped texts included.
        seconds: since then.
        num_dropped: by reason, in this call.
    """

    num_answer_tokens: int
    num_tokens: int
    num_dialogues: int
    num_new_tokens: int
    seconds: float
    num_dropped: Mapping[str, int]


ProgressCallback = Callable[[WritingProgress], None]


class SelfWriter:
    """Has a target write conversations into a folder.

    A round is written as a whole or not at all, and depends only on the settings, its number and the rounds before it:
    a run that is killed and started again leaves what an uninterrupted one leaves.

    Args:
        llm: the target.
        folder: for `train/`, `evaluation/` and `settings.json`; made when missing.
        settings: what to write.
        excluded: prompts that must not be trained on.
        target_name: of the model, to be compared when a run goes on.

    Raises:
        TrainingDataError: the folder holds data of other settings, or damaged data.
    """

    def __init__(
        self,
        llm: LLM,
        folder: Path,
        settings: SelfWrittenSettings,
        excluded: ExcludedPrompts,
        target_name: str,
    ) -> None:
        self._llm = llm
        self._settings = settings
        self._excluded = excluded
        self._training, self._evaluation = folder / TRAINING_FOLDER, folder / EVALUATION_FOLDER
        for path in (self._training, self._evaluation):
            path.mkdir(parents=True, exist_ok=True)
        _claim_folder(folder, {"target": target_name, "excluded": excluded.fingerprint} | settings.described())
        self._seen = Seen()
        self._num_tokens: Counter[str] = Counter()
        self._num_dialogues: Counter[str] = Counter()
        self._earlier: list[Text] = []
        self._num_rounds = len(ExampleStore(self._training).shards)
        for number in range(self._num_rounds):
            self._learn_shard(number)

    @property
    def num_answer_tokens(self) -> int:
        return sum(self._num_tokens.values())

    def write(self, num_tokens: int, on_progress: ProgressCallback = lambda progress: None) -> WritingProgress:
        """Write until `num_tokens` answer tokens are on disk; nothing when they are there already."""
        begun, num_new = time.perf_counter(), 0

        def progress() -> WritingProgress:
            seconds = time.perf_counter() - begun
            dialogues = sum(self._num_dialogues.values())
            return WritingProgress(
                self.num_answer_tokens, num_tokens, dialogues, num_new, seconds, dict(self._seen.num_dropped)
            )

        def count(num_more: int) -> None:
            nonlocal num_new
            num_new += num_more
            on_progress(progress())

        while self.num_answer_tokens < num_tokens:
            # What is seen within a round counts for the next one only as far as it came onto the disk: a run that goes
            # on later knows no more than that.
            seen = Seen(set(self._seen.questions), set(self._seen.answers))
            writer = DialogueWriter(self._llm, self._settings, self._excluded, seen, count)
            counts = plan_counts(self._settings, self._mean_tokens())
            self._store(write_round(writer, self._num_rounds, counts, self._earlier))
            self._seen.num_dropped += seen.num_dropped
            on_progress(progress())
        return progress()

    def _mean_tokens(self) -> dict[str, float]:
        return {
            name: self._num_tokens[name] / self._num_dialogues[name] if self._num_tokens[name] else FIRST_GUESS
            for name in self._settings.shares
        }

    def _store(self, dialogues: Sequence[Dialogue]) -> None:
        """Put a round on disk; the training shard comes last, for it says that the round is complete."""
        held_out: list[Dialogue] = []
        kept: list[Dialogue] = []
        for dialogue in dialogues:
            is_out = is_held_out(dialogue.fingerprint, self._settings.seed, self._settings.held_out_share)
            (held_out if is_out else kept).append(dialogue)
        for folder, part in ((self._evaluation, held_out), (self._training, kept)):
            examples = [dialogue.example for dialogue in part]
            write_shard(shard_path(folder, self._num_rounds), examples, [dialogue.fingerprint for dialogue in part])
        self._learn_shard(self._num_rounds)
        self._num_rounds += 1

    def _learn_shard(self, number: int) -> None:
        """Take over what a round on disk says, whether it was written now or by an earlier run."""
        self._earlier = []
        for folder in (self._evaluation, self._training):
            shard = read_shard(shard_path(folder, number))
            self._seen.questions.update(shard.fingerprints)
            for example in read_examples(shard):
                answers = answer_runs(example)
                self._num_tokens[example.category] += sum(map(len, answers))
                self._num_dialogues[example.category] += 1
                for answer in answers:
                    self._seen.learn_answer(answer)
                if folder == self._training:
                    self._earlier.append(Text(example.category, self._llm.tokenizer.decode(answers[-1])))


def answer_runs(example: TrainingExample) -> list[tuple[int, ...]]:
    """The token ids of each answer of a conversation."""
    flagged = zip(example.is_answer, example.token_ids, strict=True)
    groups = itertools.groupby(flagged, key=lambda pair: pair[0])
    return [tuple(token_id for _, token_id in group) for is_answer, group in groups if is_answer]


def _claim_folder(folder: Path, described: Mapping[str, object]) -> None:
    """Leave a note of the settings, or compare them with those that are there."""
    path = folder / SETTINGS_FILE
    if not path.exists():
        write_atomically(path, (json.dumps(described, indent=2) + "\n").encode())
        return
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise TrainingDataError(f"{path} cannot be read ({error}); write into another folder") from error
    for name, value in described.items():
        if not isinstance(found, dict) or found.get(name) != value:
            given = found.get(name) if isinstance(found, dict) else found
            raise TrainingDataError(
                f"{folder} holds data that was written with {name} {given!r}, and now it is {value!r}; give the same"
                " settings to go on, or another folder"
            )
