"""Fills the slots of templates with random choices."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence

from aquiline.training.self_written.phrase_book import OTHER_LANGUAGES, phrase_book

SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
MAX_EXCERPT_SENTENCES = 4
Drawn = Callable[[random.Random], str]


def _one_of(book: str, name: str) -> Drawn:
    return lambda rng: rng.choice(phrase_book(book)[name])


def _whole_number(lowest: int, highest: int) -> Drawn:
    return lambda rng: str(rng.randint(lowest, highest))


_DRAWN: Mapping[str, Drawn] = {
    "topic": _one_of("general", "topics"),
    "person": _one_of("general", "persons"),
    "name": _one_of("general", "names"),
    "place": _one_of("general", "places"),
    "quality": _one_of("general", "qualities"),
    "number": _one_of("general", "numbers"),
    "language": lambda rng: rng.choice(OTHER_LANGUAGES),
    "count": _whole_number(2, 12),
    "small": _whole_number(2, 12),
    "a": _whole_number(2, 99),
    "b": _whole_number(2, 99),
    "c": _whole_number(2, 99),
    "d": _whole_number(2, 99),
    "big": _whole_number(100, 5000),
    "code": _one_of("code", "languages"),
    "task": _one_of("code", "tasks"),
    "identifier": _one_of("code", "identifiers"),
    "arguments": _one_of("code", "arguments"),
    "country": _one_of("questions", "countries"),
    "thing": _one_of("questions", "things"),
    "animal": _one_of("questions", "animals"),
    "figure": _one_of("questions", "figures"),
    "event": _one_of("questions", "events"),
}


class _Slots(dict[str, str]):
    """Draws a value for a slot when it is first asked for; `name2` is another draw of `name`."""

    def __init__(self, rng: random.Random, given: Mapping[str, str]) -> None:
        super().__init__(given)
        self._rng = rng

    def __missing__(self, name: str) -> str:
        self[name] = value = _DRAWN[name.rstrip("23")](self._rng)
        return value


def fill(template: str, rng: random.Random, **given: str) -> str:
    """A template with every slot filled: with what is given, or else with a random choice."""
    return template.format_map(_Slots(rng, given))


def pick(templates: Sequence[str], rng: random.Random, **given: str) -> str:
    """One template of many, filled."""
    return fill(rng.choice(templates), rng, **given)


def excerpt(document: str, rng: random.Random) -> str:
    """One to four sentences of a document that follow each other."""
    sentences = SENTENCE_END.split(document.strip())
    start = rng.randrange(len(sentences))
    return " ".join(sentences[start : start + rng.randint(1, MAX_EXCERPT_SENTENCES)])
