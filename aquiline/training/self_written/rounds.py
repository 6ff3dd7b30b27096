"""One round of writing: a function of the settings, the round's number, and what earlier rounds left behind."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aquiline.training.exclusion import words_of
from aquiline.training.self_written.dialogues import Dialogue, DialogueWriter
from aquiline.training.self_written.filling import SENTENCE_END
from aquiline.training.self_written.loops import is_repetitive
from aquiline.training.self_written.phrase_book import ENGLISH, OTHER_LANGUAGES
from aquiline.training.self_written.settings import SelfWrittenSettings
from aquiline.training.self_written.turns import TURN_MAKERS, Material, UserTurn, follow_up

# Written before everything else, for the tasks about a text.
MATERIAL_CATEGORIES = ("writing", "other languages")
DOCUMENT_CATEGORIES = ("writing", "chat")
MIN_DOCUMENT_WORDS = 40
MOST_REPEATED = 0.25
CODE_MARK = "```"


@dataclass(frozen=True, slots=True)
class Text:
    """An answer of an earlier round, as material."""

    category: str
    answer: str


def plan_counts(settings: SelfWrittenSettings, tokens_per_dialogue: Mapping[str, float]) -> dict[str, int]:
    """How many conversations of each category a round begins, so that answer tokens come in the shares asked for.

    Args:
        tokens_per_dialogue: mean answer tokens of a conversation so far, by category.
    """
    weights = {name: share / tokens_per_dialogue[name] for name, share in settings.shares.items()}
    total = sum(weights.values())
    exact = {name: settings.num_turns_per_round * weight / total for name, weight in weights.items()}
    counts = {name: int(number) for name, number in exact.items()}
    by_remainder = sorted(exact, key=lambda name: counts[name] - exact[name])
    for name in by_remainder[: settings.num_turns_per_round - sum(counts.values())]:
        counts[name] += 1
    return counts


def write_round(
    writer: DialogueWriter, number: int, counts: Mapping[str, int], earlier: Sequence[Text]
) -> list[Dialogue]:
    """Write the conversations of round `number`.

    Args:
        counts: conversations to begin, by category.
        earlier: answers of the round before, which tasks may be about.
    """
    rng = random.Random(f"{writer.settings.seed}/{number}")
    known = gather_material(earlier, [])
    first = writer.begin(_turns(MATERIAL_CATEGORIES, counts, rng, known), rng)
    # What is put aside for evaluation must not come back in questions that are trained on.
    material = gather_material(earlier, [dialogue for dialogue in first if not writer.puts_aside(dialogue)])
    others = [name for name in TURN_MAKERS if name not in MATERIAL_CATEGORIES]
    dialogues = first + writer.begin(_turns(others, counts, rng, material), rng)
    return _with_follow_ups(writer, dialogues, rng)


def gather_material(earlier: Sequence[Text], written: Sequence[Dialogue]) -> Material:
    """The answers that tasks can be about."""
    texts = [*earlier, *(Text(dialogue.turn.category, dialogue.answer) for dialogue in written)]
    whole = [(text.category, _whole_sentences(text.answer)) for text in texts]
    foreign: dict[str, list[str]] = {language: [] for language in OTHER_LANGUAGES}
    for dialogue in written:
        if dialogue.turn.language != ENGLISH and _is_document(dialogue.answer):
            foreign[dialogue.turn.language].append(_whole_sentences(dialogue.answer))
    return Material(
        documents=[text for category, text in whole if category in DOCUMENT_CATEGORIES and _is_document(text)],
        programs=[text.answer for text in texts if text.category == "code" and text.answer.count(CODE_MARK) >= 2],
        foreign=foreign,
    )


def _turns(names: Sequence[str], counts: Mapping[str, int], rng: random.Random, material: Material) -> list[UserTurn]:
    return [TURN_MAKERS[name](rng, material) for name in names for _ in range(counts.get(name, 0))]


def _with_follow_ups(writer: DialogueWriter, dialogues: Sequence[Dialogue], rng: random.Random) -> list[Dialogue]:
    """Some of the dialogues go on; those whose answer was cut off cannot."""
    ended = [index for index, dialogue in enumerate(dialogues) if dialogue.has_ended]
    num_going = min(len(ended), round(writer.settings.follow_up_share * len(dialogues)))
    going = sorted(rng.sample(ended, num_going))
    turns = [follow_up(rng, dialogues[index].turn.category) for index in going]
    result = list(dialogues)
    for index, dialogue in zip(going, writer.follow_up([dialogues[index] for index in going], turns, rng), strict=True):
        result[index] = dialogue
    return result


def _whole_sentences(text: str) -> str:
    """A text without a last sentence that does not end."""
    sentences = SENTENCE_END.split(text.strip())
    if len(sentences) > 1 and not sentences[-1].endswith((".", "!", "?", '"')):
        return text[: text.rindex(sentences[-1])].strip()
    return text.strip()


def _is_document(text: str) -> bool:
    words = words_of(text)
    return CODE_MARK not in text and len(words) >= MIN_DOCUMENT_WORDS and not is_repetitive(words, most=MOST_REPEATED)
