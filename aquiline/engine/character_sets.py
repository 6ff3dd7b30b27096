"""Sets of Unicode characters, as regular expressions name them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

LAST_CHARACTER = 0x10FFFF
FIRST_SURROGATE, LAST_SURROGATE = 0xD800, 0xDFFF


@dataclass(frozen=True, slots=True)
class CharacterSet:
    """Characters by code point.

    Attributes:
        ranges: (first, last), both included, rising and with a gap between any two.
    """

    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, ranges: Iterable[tuple[int, int]]) -> CharacterSet:
        """The union of ranges in any order, without surrogates: no text has one."""
        merged: list[tuple[int, int]] = []
        for first, last in sorted(_without_surrogates(ranges)):
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(merged[-1][1], last))
            else:
                merged.append((first, last))
        return cls(tuple(merged))

    @classmethod
    def of_text(cls, characters: str) -> CharacterSet:
        """The characters of a text."""
        return cls.of((ord(character), ord(character)) for character in characters)

    def __contains__(self, code_point: int) -> bool:
        return any(first <= code_point <= last for first, last in self.ranges)

    def __or__(self, other: CharacterSet) -> CharacterSet:
        return CharacterSet.of((*self.ranges, *other.ranges))

    def __sub__(self, other: CharacterSet) -> CharacterSet:
        return ~(~self | other)

    def __and__(self, other: CharacterSet) -> CharacterSet:
        return ~(~self | ~other)

    def __invert__(self) -> CharacterSet:
        edges, start = [], 0
        for first, last in self.ranges:
            edges.append((start, first - 1))
            start = last + 1
        return CharacterSet.of((first, last) for first, last in (*edges, (start, LAST_CHARACTER)) if first <= last)


def _without_surrogates(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for first, last in ranges:
        if last < FIRST_SURROGATE or first > LAST_SURROGATE:
            yield first, last
            continue
        if first < FIRST_SURROGATE:
            yield first, FIRST_SURROGATE - 1
        if last > LAST_SURROGATE:
            yield LAST_SURROGATE + 1, last


ANY = CharacterSet.of([(0, LAST_CHARACTER)])
ASCII = CharacterSet.of([(0, 0x7F)])
DIGITS = CharacterSet.of_text("0123456789")
WORD = CharacterSet.of_text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
BLANKS = CharacterSet.of_text(" \t\n\r\f\v")
UNICODE_BLANKS = BLANKS | CharacterSet.of(
    [
        *((0x1C, 0x1F), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x180E, 0x180E), (0x2000, 0x200A)),
        *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
    ]
)
LINE_ENDS = CharacterSet.of_text("\n\r\u2028\u2029")

# A negated class is cut to what every dialect counts as negated: some take all of Unicode's digits, letters and blanks.
CLASS_ESCAPES = {
    "d": DIGITS,
    "w": WORD,
    "s": BLANKS,
    "D": ASCII - DIGITS,
    "W": ASCII - WORD,
    "S": ANY - UNICODE_BLANKS,
}
# What a dialect may count in, for classes that are negated around the escape: all but what is surely in the opposite.
WIDEST_CLASS_ESCAPES = {letter: ANY - CLASS_ESCAPES[letter.swapcase()] for letter in CLASS_ESCAPES}
