"""Has the target answer the questions of given conversations anew: a draft learns what its own target says."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aquiline.errors import PromptError, TrainingDataError
from aquiline.llm import LLM
from aquiline.training.conversations import BadLine, Conversation, read_conversations
from aquiline.training.dataset import DatasetFolder, StoredExample
from aquiline.training.exclusion import ExcludedPrompts
from aquiline.training.fingerprints import text_fingerprint
from aquiline.training.importing import ImportCallback, ImportReport, ImportSettings, in_rounds
from aquiline.training.self_written.dialogues import Asked, Dialogue, DialogueWriter, Seen
from aquiline.training.self_written.settings import SelfWrittenSettings
from aquiline.training.self_written.turns import UserTurn

TokenCallback = Callable[[int], None]
Message = Mapping[str, str]


@dataclass(frozen=True)
class Questions:
    """What one conversation asks: each entry is a user's turn with any system message before it."""

    category: str
    place: str
    turns: tuple[tuple[Message, ...], ...]

    @property
    def text(self) -> str:
        return "\n".join(message["content"] for turn in self.turns for message in turn if message["role"] == "user")


class AnswerWriter:
    """Answers the questions of files, and puts the conversations into a folder of training data.

    Args:
        llm: the target.
        settings: what is skipped and put aside.
        writing: how long answers are, and the seed of their noise.
        excluded: prompts that must not be trained on.
    """

    def __init__(
        self, llm: LLM, settings: ImportSettings, writing: SelfWrittenSettings, excluded: ExcludedPrompts
    ) -> None:
        self._llm = llm
        self._settings = settings
        self._writing = writing
        self._excluded = excluded

    def run(
        self,
        paths: Sequence[Path],
        dataset: DatasetFolder,
        on_progress: ImportCallback,
        on_tokens: TokenCallback = lambda num_tokens: None,
    ) -> ImportReport:
        """Answer all questions; rounds that are on disk are not answered again.

        Skipped, and counted by reason: no question, too long for an answer to fit, excluded, asked before, and answers
        that are empty or were given before.

        Raises:
            TrainingDataError: a file that cannot be read or is empty, a line that holds no conversation unless such
                lines are skipped, or no question that can be used.
        """
        report, seen, known = ImportReport(), set[int](), Seen()
        for number, lines in enumerate(in_rounds(read_conversations(paths), self._writing.num_turns_per_round)):
            questions = [found for line in lines if (found := self._checked(line, seen, report)) is not None]
            if number >= dataset.num_rounds:
                rng = random.Random(f"{self._writing.seed}/{number}")
                # A later run knows only the answers that came onto the disk.
                within = Seen(answers=set(known.answers))
                writer = DialogueWriter(self._llm, self._writing, self._excluded, within, on_tokens)
                dialogues = answer_questions(writer, questions, rng)
                dataset.write_round(
                    [StoredExample(each.example, each.fingerprint, writer.puts_aside(each)) for each in dialogues]
                )
                report.num_skipped.update(within.num_dropped)
            for stored in dataset.read_round(number):
                report.keep(stored)
                for answer in stored.example.answers:
                    known.learn_answer(answer)
            on_progress(report)
        report.require_stored()
        return report

    def _checked(self, line: Conversation | BadLine, seen: set[int], report: ImportReport) -> Questions | None:
        report.num_read += 1
        if isinstance(line, BadLine):
            if not self._settings.skips_bad_lines:
                raise TrainingDataError(f"{line.place}: {line.reason}; mend the line, or give --skip-bad-lines")
            report.skip("bad line", line.place, line.reason)
            return None
        questions = questions_of(line)
        if not questions.turns:
            report.skip("no question", line.place, "there is no user turn")
            return None
        try:
            length = len(self._llm.tokenizer.apply_chat_template(questions.turns[0]))
        except PromptError as error:
            report.skip("not usable", line.place, str(error))
            return None
        room = self._settings.max_length - self._writing.max_answer_tokens
        fingerprint = text_fingerprint(questions.text)
        if length > room:
            report.skip("too long", line.place, f"the question has {length} tokens, and {room} leave room to answer")
        elif self._excluded.overlap(questions.text):
            report.skip("excluded", line.place, "it overlaps with a prompt that is used for measuring")
        elif fingerprint in seen:
            report.skip("duplicate", line.place, "the same was asked before")
        else:
            seen.add(fingerprint)
            return questions
        return None


def questions_of(conversation: Conversation) -> Questions:
    """The user's turns of a conversation; the answers that it has are left out.

    system user assistant user      becomes     (system user) (user)
    """
    turns: list[tuple[Message, ...]] = []
    before: list[Message] = []
    for message in conversation.messages:
        if message["role"] == "system":
            before.append(message)
        elif message["role"] == "user":
            turns.append((*before, message))
            before = []
    return Questions(conversation.category, conversation.place, tuple(turns))


def answer_questions(writer: DialogueWriter, questions: Sequence[Questions], rng: random.Random) -> list[Dialogue]:
    """Answer each conversation turn by turn; one whose answer was cut off or dropped ends there."""
    result: dict[int, Dialogue] = {}
    going = list(range(len(questions)))
    for number in itertools.count():
        going = [index for index in going if number < len(questions[index].turns)]
        if not going:
            return [result[index] for index in sorted(result)]
        asked = []
        for index in going:
            each = questions[index]
            earlier = result[index].messages if index in result else ()
            turn = UserTurn(each.category, each.text, True)
            asked.append(Asked(turn, (*earlier, *each.turns[number]), text_fingerprint(each.text)))
        answered = dict(zip(going, writer.answer(asked, rng), strict=True))
        result |= {index: dialogue for index, dialogue in answered.items() if dialogue is not None}
        going = [index for index, dialogue in answered.items() if dialogue is not None and dialogue.has_ended]
    raise AssertionError("itertools.count never ends")
