"""Writes conversations round by round into a folder, and goes on where an earlier run ended."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from aquiline.errors import TrainingDataError
from aquiline.llm import LLM
from aquiline.training.dataset import DatasetFolder, StoredExample
from aquiline.training.exclusion import ExcludedPrompts
from aquiline.training.self_written.dialogues import DialogueWriter, Seen
from aquiline.training.self_written.rounds import Text, plan_counts, write_round
from aquiline.training.self_written.settings import SelfWrittenSettings

# Answer tokens of a conversation, until there are some to count.
FIRST_GUESS = 200.0


@dataclass(frozen=True, slots=True)
class WritingProgress:
    """How far writing has come.

    Attributes:
        num_answer_tokens: on disk, held-out conversations included.
        num_pending_tokens: generated in the round that is being written.
        num_tokens: answer tokens to write.
        num_new_tokens: generated since this call began, user turns and dropped texts included.
        seconds: since then.
        num_dropped: by reason, in this call.
    """

    num_answer_tokens: int
    num_pending_tokens: int
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
        folder: of the data, see `dataset.py`; made when missing.
        settings: what to write.
        excluded: prompts that must not be trained on.
        target: its name and what else its texts depend on, to be compared when a run goes on.

    Raises:
        TrainingDataError: the folder holds data of other settings, or damaged data.
    """

    def __init__(
        self,
        llm: LLM,
        folder: Path,
        settings: SelfWrittenSettings,
        excluded: ExcludedPrompts,
        target: Mapping[str, object],
    ) -> None:
        self._llm = llm
        self._settings = settings
        self._excluded = excluded
        described = {**target, "excluded": excluded.fingerprint, **settings.described()}
        self._dataset = DatasetFolder(folder, described)
        self._seen = Seen()
        self._num_tokens: Counter[str] = Counter()
        self._num_dialogues: Counter[str] = Counter()
        self._earlier: list[Text] = []
        for number in range(self._dataset.num_rounds):
            self._learn_round(number)

    @property
    def num_answer_tokens(self) -> int:
        return sum(self._num_tokens.values())

    def write(self, num_tokens: int, on_progress: ProgressCallback = lambda progress: None) -> WritingProgress:
        """Write until `num_tokens` answer tokens are on disk; nothing when they are there already.

        Raises:
            TrainingDataError: a round in which the target said nothing new, or a folder that cannot be written.
        """
        begun, num_new, num_pending = time.perf_counter(), 0, 0

        def progress() -> WritingProgress:
            seconds = time.perf_counter() - begun
            dialogues = sum(self._num_dialogues.values())
            return WritingProgress(
                self.num_answer_tokens,
                num_pending,
                num_tokens,
                dialogues,
                num_new,
                seconds,
                dict(self._seen.num_dropped),
            )

        def count(num_more: int) -> None:
            nonlocal num_new, num_pending
            num_new += num_more
            num_pending += num_more
            on_progress(progress())

        while self.num_answer_tokens < num_tokens:
            # What is seen within a round counts for the next one only as far as it came onto the disk: a run that goes
            # on later knows no more than that.
            seen = Seen(set(self._seen.questions), set(self._seen.answers))
            writer = DialogueWriter(self._llm, self._settings, self._excluded, seen, count)
            counts = plan_counts(self._settings, self._mean_tokens())
            dialogues = write_round(writer, self._dataset.num_rounds, counts, self._earlier)
            if not dialogues:
                dropped = ", ".join(f"{count} {reason}" for reason, count in seen.num_dropped.items() if count)
                raise TrainingDataError(
                    f"a round brought no conversation ({dropped} were dropped); the target repeats itself: ask for "
                    "fewer tokens, or check that it is a chat model"
                )
            self._dataset.write_round(
                [StoredExample(each.example, each.fingerprint, writer.puts_aside(each)) for each in dialogues]
            )
            self._learn_round(self._dataset.num_rounds - 1)
            self._seen.num_dropped += seen.num_dropped
            num_pending = 0
            on_progress(progress())
        return progress()

    def _mean_tokens(self) -> dict[str, float]:
        return {
            name: self._num_tokens[name] / self._num_dialogues[name] if self._num_tokens[name] else FIRST_GUESS
            for name in self._settings.shares
        }

    def _learn_round(self, number: int) -> None:
        """Take over what a round on disk says, whether it was written now or by an earlier run."""
        self._earlier = []
        for stored in self._dataset.read_round(number):
            example, answers = stored.example, stored.example.answers
            self._seen.questions.add(stored.fingerprint)
            self._num_tokens[example.category] += sum(map(len, answers))
            self._num_dialogues[example.category] += 1
            for answer in answers:
                self._seen.learn_answer(answer)
            if not stored.is_held_out:
                self._earlier.append(Text(example.category, self._llm.tokenizer.decode(answers[-1])))
