"""Regular expressions, as far as a grammar can follow them: read into a tree, or refused with the place.

What the dialects of ECMAScript (which JSON schemas use), Python and RE2 agree on is understood. Where they count
different characters into a class, the tree has those that all of them count in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import hexdigits
from typing import NoReturn

from aquiline.engine.character_sets import ANY, CLASS_ESCAPES, LINE_ENDS, WIDEST_CLASS_ESCAPES, CharacterSet
from aquiline.errors import InvalidParameterError

MAX_DEPTH = 64
MAX_COUNT = 10_000
PLAIN_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"}
HEX_ESCAPES = {"x": 2, "u": 4, "U": 8}


@dataclass(frozen=True, slots=True)
class Characters:
    """One character of a set."""

    allowed: CharacterSet


@dataclass(frozen=True, slots=True)
class Sequenced:
    """Parts one after the other; no parts: the empty text."""

    parts: tuple[Regex, ...]


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Any of some."""

    options: tuple[Regex, ...]


@dataclass(frozen=True, slots=True)
class Repeated:
    """One part several times; `most` None: as often as one likes."""

    part: Regex
    least: int
    most: int | None


Regex = Characters | Sequenced | Alternatives | Repeated
EMPTY = Sequenced(())
ANYTHING = Repeated(Characters(ANY - LINE_ENDS), 0, None)


@dataclass(frozen=True, slots=True)
class ParsedRegex:
    """The alternatives of a whole pattern, and whether each must begin and end where the text does."""

    options: tuple[Regex, ...]
    begins: tuple[bool, ...]
    ends: tuple[bool, ...]

    def whole(self) -> Regex:
        """What matches the whole text."""
        return _alternatives(self.options)

    def found(self) -> Regex:
        """What matches a text in which the pattern is found, as JSON schemas use patterns."""
        widened = []
        for option, begins, ends in zip(self.options, self.begins, self.ends, strict=True):
            before = () if begins else (ANYTHING,)
            behind = () if ends else (ANYTHING,)
            widened.append(_sequence((*before, option, *behind)))
        return _alternatives(tuple(widened))


def parse_regex(pattern: str, place: str) -> ParsedRegex:
    """Read a pattern.

    Args:
        place: what it is, for messages.

    Raises:
        InvalidParameterError: it is malformed, or has something in it that no grammar can follow.
    """
    return _Parser(pattern, place).parsed()


class _Parser:
    def __init__(self, pattern: str, place: str) -> None:
        self._pattern = pattern
        self._place = place
        self._at = 0
        self._depth = 0

    def parsed(self) -> ParsedRegex:
        options, begins, ends = [], [], []
        while True:
            begins.append(self._take("^"))
            options.append(self._sequence())
            ends.append(self._take("$"))
            if self._at == len(self._pattern):
                return ParsedRegex(tuple(options), tuple(begins), tuple(ends))
            if not self._take("|"):
                closes = self._pattern[self._at] == ")"
                self._refuse("this parenthesis closes nothing" if closes else "nothing may follow the end of the text")

    def _refuse(self, reason: str) -> NoReturn:
        shown = self._pattern if len(self._pattern) <= 80 else f"{self._pattern[:77]}..."
        raise InvalidParameterError(f"{self._place} {shown!r} is refused at character {self._at}: {reason}")

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _take(self, text: str) -> bool:
        if not self._pattern.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _sequence(self) -> Regex:
        parts = []
        while self._peek() not in ("", "|", ")", "$"):
            parts.append(self._quantified(self._atom()))
        return _sequence(tuple(parts))

    def _atom(self) -> Regex:
        character = self._peek()
        if character == "(":
            return self._group()
        if character == "[":
            self._at += 1
            return Characters(self._set())
        if character in "*+?{":
            self._refuse("there is nothing to repeat; a backslash before it means the character itself")
        if character == "^":
            self._refuse("the beginning of the text is only understood at the beginning of an alternative")
        if character == "\\":
            return Characters(self._escape(CLASS_ESCAPES, in_set=False))
        self._at += 1
        return Characters(ANY - LINE_ENDS if character == "." else CharacterSet.of_text(character))

    def _group(self) -> Regex:
        self._at += 1
        if self._take("?") and not self._take(":"):
            is_named = self._take("P<") or (self._take("<") and self._peek() not in ("=", "!"))
            name, closed, _ = self._pattern[self._at :].partition(">")
            if not is_named or not closed or not name.isidentifier():
                self._refuse("lookaround, flags and other special groups cannot be followed by a grammar")
            self._at += len(name) + 1
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._refuse(f"groups lie deeper than {MAX_DEPTH} in each other")
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        if self._peek() == "$":
            self._refuse("the end of the text is only understood at the end of an alternative of the whole pattern")
        if not self._take(")"):
            self._refuse("a parenthesis is not closed")
        self._depth -= 1
        return _alternatives(tuple(options))

    def _quantified(self, part: Regex) -> Regex:
        if self._take("*"):
            least, most = 0, None
        elif self._take("+"):
            least, most = 1, None
        elif self._take("?"):
            least, most = 0, 1
        elif self._take("{"):
            least, most = self._counts()
        else:
            return part
        # A lazy quantifier matches the same whole texts as a greedy one.
        self._take("?")
        if self._peek() and self._peek() in "*+?{":
            self._refuse("a quantifier behind a quantifier, such as a possessive one, is not understood")
        return repeated(part, least, most)

    def _counts(self) -> tuple[int, int | None]:
        body, closed, _ = self._pattern[self._at :].partition("}")
        first, comma, second = body.partition(",")
        is_count = closed and _is_count(first) and (not comma or not second or _is_count(second))
        if not is_count:
            self._refuse("braces need counts, such as {2}, {2,} or {2,5}; a backslash means the character itself")
        least = int(first)
        most = int(second) if second else None if comma else least
        if most is not None and most < least:
            self._refuse(f"the most repetitions, {most}, are less than the least, {least}")
        if max(least, most or 0) > MAX_COUNT:
            self._refuse(f"more than {MAX_COUNT} repetitions")
        self._at += len(body) + 1
        return least, most

    def _set(self) -> CharacterSet:
        is_negated = self._take("^")
        class_escapes = WIDEST_CLASS_ESCAPES if is_negated else CLASS_ESCAPES
        if self._peek() == "]":
            self._refuse("the first bracket inside brackets needs a backslash, and empty brackets are not understood")
        found = CharacterSet(())
        while not self._take("]"):
            if not self._peek():
                self._refuse("a bracket is not closed")
            if self._pattern.startswith(("[:", "[.", "[="), self._at):
                self._refuse("classes of POSIX are not understood; write the characters out")
            low = self._set_member(class_escapes)
            if self._peek() == "-" and self._pattern[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                high = self._set_member(class_escapes)
                ends = (*low.ranges, *high.ranges)
                if len(ends) != 2 or any(first != last for first, last in ends) or ends[0][0] > ends[1][0]:
                    self._refuse("a range goes from one character to a later one")
                low = CharacterSet.of([(ends[0][0], ends[1][0])])
            found |= low
        found = ANY - found if is_negated else found
        if not found.ranges:
            self._refuse("no character is in this class")
        return found

    def _set_member(self, class_escapes: Mapping[str, CharacterSet]) -> CharacterSet:
        character = self._peek()
        if character == "\\":
            return self._escape(class_escapes, in_set=True)
        if not character:
            self._refuse("a bracket is not closed")
        self._at += 1
        return CharacterSet.of_text(character)

    def _escape(self, class_escapes: Mapping[str, CharacterSet], in_set: bool) -> CharacterSet:
        self._at += 1
        letter = self._peek()
        if letter in class_escapes:
            self._at += 1
            return class_escapes[letter]
        if letter in PLAIN_ESCAPES or (letter and not letter.isalnum()):
            self._at += 1
            return CharacterSet.of_text(PLAIN_ESCAPES.get(letter, letter))
        if letter in HEX_ESCAPES:
            digits = self._pattern[self._at + 1 : self._at + 1 + HEX_ESCAPES[letter]]
            is_number = len(digits) == HEX_ESCAPES[letter] and set(digits) <= set(hexdigits)
            if is_number and int(digits, 16) in ANY:
                self._at += 1 + len(digits)
                return CharacterSet.of_text(chr(int(digits, 16)))
        if letter and letter in "bB" and not in_set:
            self._refuse("word boundaries cannot be followed by a grammar")
        if letter.isdigit():
            self._refuse("references to groups cannot be followed by a grammar")
        self._refuse(f"the escape \\{letter} is not understood")


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9


def _sequence(parts: Sequence[Regex]) -> Regex:
    flat: list[Regex] = []
    for part in parts:
        flat += part.parts if isinstance(part, Sequenced) else (part,)
    return flat[0] if len(flat) == 1 else Sequenced(tuple(flat))


def _alternatives(options: Sequence[Regex]) -> Regex:
    return options[0] if len(options) == 1 else Alternatives(tuple(options))


def repeated(part: Regex, least: int, most: int | None) -> Regex:
    """`part` so often; an unbounded repetition of an unbounded repetition is one of them."""
    if most is None and isinstance(part, Repeated) and part.most is None and part.least <= 1:
        return Repeated(part.part, min(least, part.least) if part.least == 0 else least, None)
    return Repeated(part, least, most)


def is_nullable(regex: Regex) -> bool:
    """Whether the empty text matches."""
    if isinstance(regex, Characters):
        return False
    if isinstance(regex, Sequenced):
        return all(map(is_nullable, regex.parts))
    if isinstance(regex, Alternatives):
        return any(map(is_nullable, regex.options))
    return regex.least == 0 or is_nullable(regex.part)
