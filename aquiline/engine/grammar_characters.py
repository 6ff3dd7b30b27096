"""Characters in EBNF: what literals and classes stand for, and how to write them so that they are read as meant.

xgrammar compiles half characters (surrogates, as the three bytes of a character that is none) where a class or an
escape lets them in, reads `\\x` with as many hexadecimal digits as follow, and prints it with two. So every literal and
class is read here, and written again with escapes of eight digits and classes of characters that exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from string import hexdigits

from aquiline.engine.character_sets import ANY, FIRST_SURROGATE, LAST_CHARACTER, LAST_SURROGATE, CharacterSet
from aquiline.errors import InvalidParameterError

# Comments go with the rest so that nothing is looked for inside them.
_PART = re.compile(r'#[^\n]*|"(?:[^"\\\n]|\\[^\n])*"|\[(?:[^\]\\\n]|\\[^\n])*\]')
_DIGITS = {"x": 2, "u": 4, "U": 8}
_LETTERS = {"n": "\n", "r": "\r", "t": "\t", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "e": "\x1b", "0": "\0"}


class _UnreadableError(Exception):
    """Something between quotes or brackets that stands for no character.

    Attributes:
        place: where, from the beginning of what is read.
    """

    def __init__(self, reason: str, place: int) -> None:
        super().__init__(reason)
        self.place = place


def rewritten(text: str, allowed: CharacterSet = ANY) -> str:
    """The same rules, every literal and class of them in a form that is read in one way and holds whole characters.

    Args:
        text: EBNF, from outside or as xgrammar prints it.
        allowed: what classes that are negated may hold at most.

    Raises:
        InvalidParameterError: an escape that stands for no character, or a class without any; with line and column.
    """

    def written(part: re.Match[str]) -> str:
        body = part.group()
        if body.startswith("#"):
            return ""
        try:
            return literal(_text(body)) if body.startswith('"') else character_class(_members(body, allowed))
        except _UnreadableError as error:
            place = part.start() + error.place
            line = text.count("\n", 0, place) + 1
            column = place - text.rfind("\n", 0, place)
            raise InvalidParameterError(
                f"the grammar of guided is refused at line {line}, column {column}: {error}"
            ) from None

    return _PART.sub(written, text)


def literal(text: str) -> str:
    """A text as EBNF writes it."""
    return '"' + "".join(map(_literal_character, text)) + '"'


def character_class(characters: CharacterSet) -> str:
    """A class of characters as EBNF writes it.

    A wide one is written as all but some: xgrammar takes what is negated a byte at a time, and what is not apart into
    every form that UTF-8 has for it, which makes counts of it a hundred times as slow.
    """
    if sum(last + 1 - first for first, last in characters.ranges) <= LAST_CHARACTER // 2:
        return f"[{_spans(characters.ranges)}]"
    return f"[^{_spans([*(~characters).ranges, (FIRST_SURROGATE, LAST_SURROGATE)])}]"


def _spans(ranges: Sequence[tuple[int, int]]) -> str:
    return "".join(_end(first) + (f"-{_end(last)}" if last > first else "") for first, last in ranges)


def _literal_character(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    return character if character.isprintable() else f"\\U{ord(character):08x}"


def _end(code_point: int) -> str:
    character = chr(code_point)
    return character if character.isascii() and character.isalnum() else f"\\U{code_point:08x}"


def _text(body: str) -> str:
    return "".join(chr(code_point) for code_point, _ in _read(body[:-1], 1))


def _members(body: str, allowed: CharacterSet) -> CharacterSet:
    is_negated = body.startswith("[^")
    read = [*_read(body[:-1], 1 + is_negated)]
    ranges: list[tuple[int, int]] = []
    at = 0
    while at < len(read):
        first, _ = read[at]
        # At either end of a class a minus is a member: [+-] and [-+] have two, [+--] has those from plus to minus.
        is_range = at + 2 < len(read) and read[at + 1] == (ord("-"), True)
        at += 2 * is_range
        last, _ = read[at]
        at += 1
        if last < first:
            raise _UnreadableError("a range goes from one character to a later one", 0)
        ranges.append((first, last))
    named = CharacterSet.of(ranges)
    members = allowed - named if is_negated else named
    if not members.ranges:
        raise _UnreadableError("no character is in this class", 0)
    return members


def _read(body: str, start: int) -> Iterator[tuple[int, bool]]:
    """Code points from `start` on, and whether each stands there as it is."""
    place = start
    while place < len(body):
        if body[place] != "\\":
            yield ord(body[place]), True
            place += 1
            continue
        letter = body[place + 1]
        num_digits = _DIGITS.get(letter, 0)
        digits = body[place + 2 : place + 2 + num_digits]
        if letter in _LETTERS or not letter.isalnum():
            yield ord(_LETTERS.get(letter, letter)), False
        elif num_digits and len(digits) == num_digits and set(digits) <= set(hexdigits):
            if int(digits, 16) not in ANY:
                raise _UnreadableError(f"\\{letter}{digits} is not a whole character", place)
            yield int(digits, 16), False
        else:
            needed = f" without {num_digits} hexadecimal digits" if num_digits else ""
            raise _UnreadableError(f"the escape \\{letter}{needed} is not understood", place)
        place += 2 + num_digits
