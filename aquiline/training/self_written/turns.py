"""What the user says, by category: a complete text, or a beginning from which the target goes on."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from aquiline.training.self_written.filling import excerpt, pick
from aquiline.training.self_written.phrase_book import ENGLISH, OTHER_LANGUAGES, phrase_book


@dataclass(frozen=True, slots=True)
class UserTurn:
    """What a user says, or begins to say.

    Attributes:
        category: what kind of conversation this begins.
        text: all of it, or its beginning; may be empty then.
        is_complete: the target adds nothing.
        language: English name of the language that an answer is expected in.
    """

    category: str
    text: str
    is_complete: bool
    language: str = ENGLISH


@dataclass(frozen=True, slots=True)
class Material:
    """Texts that the target wrote earlier and that tasks are about.

    Attributes:
        documents: English texts.
        programs: answers that hold code.
        foreign: texts by the English name of their language.
    """

    documents: Sequence[str] = ()
    programs: Sequence[str] = ()
    foreign: Mapping[str, Sequence[str]] | None = None


def chat(rng: random.Random, material: Material) -> UserTurn:
    """Free conversation: mostly what the target itself would ask."""
    phrases, kind = phrase_book("chat"), rng.random()
    if kind < 0.3:
        return UserTurn("chat", "", False)
    if kind < 0.55:
        return UserTurn("chat", rng.choice(phrases["beginnings"]), False)
    if kind < 0.7:
        return UserTurn("chat", pick(phrases["beginnings_about"], rng), False)
    return UserTurn("chat", pick(phrases["questions"], rng), True)


def writing(rng: random.Random, material: Material) -> UserTurn:
    """Texts of many kinds; most of them become the material of other tasks."""
    templates = phrase_book("chat")["creative"] if rng.random() < 0.2 else phrase_book("chat")["documents"]
    return UserTurn("writing", pick(templates, rng), True)


def code(rng: random.Random, material: Material) -> UserTurn:
    """Programs to write, to explain and to mend."""
    phrases, kind = phrase_book("code"), rng.random()
    if kind < 0.15 and material.programs:
        return UserTurn("code", pick(phrases["about_code"], rng, document=rng.choice(material.programs)), True)
    if kind < 0.6:
        return UserTurn("code", pick(phrases["requests"], rng), True)
    if kind < 0.72:
        return UserTurn("code", pick(phrases["signatures"], rng), False)
    if kind < 0.82:
        concepts = _two(phrases["concepts"], rng)
        return UserTurn("code", pick(phrases["concept_questions"], rng, **concepts), True)
    return UserTurn("code", rng.choice(phrases["beginnings"]), False)


def maths(rng: random.Random, material: Material) -> UserTurn:
    """Word problems, exercises and what lies behind them."""
    phrases, kind = phrase_book("maths"), rng.random()
    if kind < 0.4:
        return UserTurn("maths", pick(phrases["problems"], rng) + rng.choice(phrases["suffixes"]), True)
    if kind < 0.6:
        return UserTurn("maths", pick(phrases["exercises"], rng) + rng.choice(phrases["suffixes"]), True)
    if kind < 0.7:
        concepts = _two(phrases["concepts"], rng)
        return UserTurn("maths", pick(phrases["concept_questions"], rng, **concepts), True)
    return UserTurn("maths", pick(phrases["beginnings"], rng), False)


def question(rng: random.Random, material: Material) -> UserTurn:
    """Questions of fact, and questions about a passage."""
    kind = rng.random()
    if kind < 0.3 or not material.documents:
        return UserTurn("question answering", pick(phrase_book("questions")["questions"], rng), True)
    if kind < 0.5:
        return UserTurn("question answering", rng.choice(phrase_book("questions")["beginnings"]), False)
    passage = pick(phrase_book("documents")["passage_questions"], rng, document=rng.choice(material.documents))
    is_complete = rng.random() < 0.4
    rest = (
        phrase_book("documents")["passage_complete"] if is_complete else phrase_book("documents")["passage_beginnings"]
    )
    asked = pick(rest, rng)
    begins_sentence = passage.endswith(("Question: ", "\n\n"))
    return UserTurn(
        "question answering", passage + (asked[0].upper() + asked[1:] if begins_sentence else asked), is_complete
    )


def summary(rng: random.Random, material: Material) -> UserTurn:
    """A document to shorten."""
    return _about_document("summarising", phrase_book("documents")["summarising"], rng, material)


def extraction(rng: random.Random, material: Material) -> UserTurn:
    """Facts to find in a document."""
    return _about_document("extraction", phrase_book("documents")["extraction"], rng, material)


def rewriting(rng: random.Random, material: Material) -> UserTurn:
    """A text to edit."""
    return _about_document("rewriting", phrase_book("documents")["rewriting"], rng, material)


def translation(rng: random.Random, material: Material) -> UserTurn:
    """From English into another language, or the other way round."""
    other = rng.choice(OTHER_LANGUAGES)
    foreign = (material.foreign or {}).get(other, ())
    if foreign and rng.random() < 0.4:
        names = {"source": other, "language": ENGLISH}
        return UserTurn(
            "translation",
            pick(phrase_book("documents")["translation"], rng, excerpt=excerpt(rng.choice(foreign), rng), **names),
            True,
        )
    has_document = bool(material.documents) and rng.random() < 0.65
    text = (
        excerpt(rng.choice(material.documents), rng) if has_document else pick(phrase_book("documents")["phrases"], rng)
    )
    names = {"source": ENGLISH, "language": other}
    return UserTurn("translation", pick(phrase_book("documents")["translation"], rng, excerpt=text, **names), True)


def other_language(rng: random.Random, material: Material) -> UserTurn:
    """Conversation in French, Spanish, German or Italian."""
    language = rng.choice(OTHER_LANGUAGES)
    phrases = phrase_book(language.lower())
    if rng.random() < 0.3:
        return UserTurn("other languages", rng.choice(phrases["beginnings"]), False, language)
    text = pick(phrases["templates"], rng, topic=rng.choice(phrases["topics"]))
    return UserTurn("other languages", text, True, language)


def follow_up(rng: random.Random, category: str) -> UserTurn:
    """What the user says after an answer."""
    if rng.random() < 0.5:
        return UserTurn(category, pick(phrase_book("chat")["follow_ups"], rng), True)
    return UserTurn(category, rng.choice(phrase_book("chat")["follow_up_beginnings"]), False)


def _about_document(category: str, templates: Sequence[str], rng: random.Random, material: Material) -> UserTurn:
    if not material.documents:
        return chat(rng, material)
    document = rng.choice(material.documents)
    return UserTurn(category, pick(templates, rng, document=document, excerpt=excerpt(document, rng)), True)


def _two(concepts: Sequence[str], rng: random.Random) -> dict[str, str]:
    first, second = rng.sample(concepts, 2)
    return {"concept": first, "concept2": second}


TurnMaker = Callable[[random.Random, Material], UserTurn]

TURN_MAKERS: Mapping[str, TurnMaker] = {
    "chat": chat,
    "writing": writing,
    "code": code,
    "maths": maths,
    "question answering": question,
    "summarising": summary,
    "extraction": extraction,
    "translation": translation,
    "rewriting": rewriting,
    "other languages": other_language,
}
