"""From conversations in files to a folder of training data: checked, encoded, without duplicates."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aquiline.errors import PromptError, TrainingDataError
from aquiline.tokenizer import Tokenizer
from aquiline.training.conversations import BadLine, Conversation, read_conversations
from aquiline.training.dataset import DatasetFolder, StoredExample
from aquiline.training.exclusion import ExcludedPrompts
from aquiline.training.fingerprints import is_held_out, text_fingerprint
from aquiline.training.masks import check_template, encode_conversation

LINES_PER_ROUND = 2048
CHUNK_BYTES = 2**20


@dataclass(frozen=True)
class ImportSettings:
    """How conversations in files become training data.

    Attributes:
        max_length: longest conversation in tokens; longer ones are skipped.
        seed: of the choice of what is put aside.
        held_out_share: of the conversations that are put aside for evaluation.
        skips_bad_lines: lines that hold no conversation are skipped and reported; otherwise the first one is an error.
    """

    max_length: int
    seed: int = 0
    held_out_share: float = 0.01
    skips_bad_lines: bool = False


@dataclass
class ImportReport:
    """What became of the lines.

    Attributes:
        num_read: lines that were not empty.
        num_stored: conversations on disk, those put aside included.
        num_answer_tokens: of them.
        num_skipped: by reason.
        first_skipped: file, line and reason of the first line skipped for each reason.
    """

    num_read: int = 0
    num_stored: int = 0
    num_answer_tokens: int = 0
    num_skipped: Counter[str] = field(default_factory=Counter)
    first_skipped: dict[str, str] = field(default_factory=dict)

    def skip(self, reason: str, place: str, detail: str) -> None:
        self.num_skipped[reason] += 1
        self.first_skipped.setdefault(reason, f"{place}: {detail}")

    def require_stored(self, what: str = "conversations") -> None:
        """Go on only where something came onto the disk.

        Raises:
            TrainingDataError: nothing did; it names the first line of each reason, or how many there were.
        """
        if not self.num_stored:
            counts = {reason: count for reason, count in self.num_skipped.items() if count}
            reasons = "; ".join(self.first_skipped.get(reason, f"{count} {reason}") for reason, count in counts.items())
            raise TrainingDataError(f"none of {self.num_read} {what} can be used ({reasons})")

    def keep(self, stored: StoredExample) -> None:
        self.num_stored += 1
        self.num_answer_tokens += stored.example.num_answer_tokens


ImportCallback = Callable[[ImportReport], None]


class ConversationImporter:
    """Encodes the conversations of files.

    Args:
        tokenizer: of the target, with its chat template.
        eos_token_ids: ids that end an answer when the target is served.
        excluded: prompts that must not be trained on.

    Raises:
        TrainingDataError: the chat template cannot tell answers from the rest.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        eos_token_ids: frozenset[int],
        settings: ImportSettings,
        excluded: ExcludedPrompts,
    ) -> None:
        check_template(tokenizer)
        self._tokenizer = tokenizer
        self._eos_token_ids = eos_token_ids
        self._settings = settings
        self._excluded = excluded

    def run(self, paths: Sequence[Path], dataset: DatasetFolder, on_progress: ImportCallback) -> ImportReport:
        """Encode all conversations into `dataset`; rounds that are there already are only read.

        Skipped, and counted by reason: no assistant turn, longer than allowed, refused by the template, excluded,
        said before.

        Raises:
            TrainingDataError: a file that cannot be read or is empty, a line that holds no conversation unless such
                lines are skipped, or no conversation that can be used.
        """
        report, seen = ImportReport(), set[int]()
        for number, lines in enumerate(in_rounds(read_conversations(paths), LINES_PER_ROUND)):
            stored: list[StoredExample] = []
            for line in lines:
                report.num_read += 1
                example = self._encode(line, seen, report)
                if example is not None:
                    stored.append(example)
                    report.keep(example)
            if number >= dataset.num_rounds:
                dataset.write_round(stored)
            on_progress(report)
        report.require_stored()
        return report

    def _encode(self, line: Conversation | BadLine, seen: set[int], report: ImportReport) -> StoredExample | None:
        if isinstance(line, BadLine):
            if not self._settings.skips_bad_lines:
                raise TrainingDataError(
                    f"{line.place}: {line.reason}; mend the line, or have it left out by train-data --skip-bad-lines"
                )
            report.skip("bad line", line.place, line.reason)
            return None
        fingerprint = text_fingerprint("\n".join(f"{each['role']}: {each['content']}" for each in line.messages))
        asked = [each["content"] for each in line.messages if each["role"] == "user"]
        if any(self._excluded.overlap(text) for text in asked):
            report.skip("excluded", line.place, "it overlaps with a prompt that is used for measuring")
        elif fingerprint in seen:
            report.skip("duplicate", line.place, "the same conversation came before")
        else:
            seen.add(fingerprint)
            return self._checked(line, fingerprint, "\n".join(asked), report)
        return None

    def _checked(self, line: Conversation, fingerprint: int, asked: str, report: ImportReport) -> StoredExample | None:
        try:
            example = encode_conversation(self._tokenizer, line.messages, self._eos_token_ids, line.category)
        except (TrainingDataError, PromptError) as error:
            has_answer = any(each["role"] == "assistant" for each in line.messages)
            report.skip("not usable" if has_answer else "no assistant turn", line.place, str(error))
            return None
        length = len(example.token_ids)
        if length > self._settings.max_length:
            report.skip("too long", line.place, f"it has {length} tokens, and {self._settings.max_length} are allowed")
            return None
        held_out = is_held_out(text_fingerprint(asked), self._settings.seed, self._settings.held_out_share)
        return StoredExample(example, fingerprint, held_out)


def files_fingerprint(paths: Sequence[Path]) -> str:
    """Of the contents of some files, so that a run does not go on with others.

    Raises:
        TrainingDataError: a file that cannot be read.
    """
    digest = hashlib.sha256()
    for path in paths:
        try:
            with path.open("rb") as file:
                while chunk := file.read(CHUNK_BYTES):
                    digest.update(chunk)
        except OSError as error:
            raise TrainingDataError(
                f"{path} cannot be read ({error.strerror}); --data takes JSONL files, folders that train-data has "
                "written, or self"
            ) from None
        digest.update(b"\0end of file\0")
    return digest.hexdigest()[:16]


def in_rounds(lines: Iterator[Conversation | BadLine], size: int) -> Iterator[list[Conversation | BadLine]]:
    """The lines in lists of `size`; the last may be shorter."""
    while round_lines := list(itertools.islice(lines, size)):
        yield round_lines
