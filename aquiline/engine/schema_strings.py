"""Texts inside JSON: what a pattern or a format means once quotes and backslashes are escaped."""

from __future__ import annotations

from collections.abc import Sequence

from aquiline.engine.character_sets import ANY, CharacterSet
from aquiline.engine.regex_parser import (
    EMPTY,
    Alternatives,
    Characters,
    Regex,
    Repeated,
    Sequenced,
    parse_regex,
)

# The two characters that JSON writes for one that cannot stand in a string as it is.
SHORT_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
CONTROLS = CharacterSet.of([(0, 0x1F)])
PLAIN = ANY - CONTROLS - CharacterSet.of_text('"\\')

_MONTH_DAYS = "(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8])"
_YEAR = "([0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_LEAP_YEAR = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_DATE = f"({_YEAR}-({_MONTH_DAYS})|{_LEAP_YEAR}-02-29)"
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_LABEL = "[a-zA-Z0-9](-?[a-zA-Z0-9]){0,15}"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_HEX = "[0-9a-fA-F]"
_GROUP = f"{_HEX}{{1,4}}"
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": r"P([0-9]{1,4}W|[0-9]{1,4}D|[0-9]{1,4}DT[0-9]{1,4}H|T([0-9]{1,4}H)?[0-9]{1,4}M|T[0-9]{1,4}S)",
    "email": rf"[a-zA-Z0-9_+-]{{1,16}}(\.[a-zA-Z0-9_+-]{{1,16}}){{0,3}}@{_LABEL}(\.{_LABEL}){{1,3}}",
    "hostname": rf"{_LABEL}(\.{_LABEL}){{0,3}}",
    "ipv4": rf"{_BYTE}\.{_BYTE}\.{_BYTE}\.{_BYTE}",
    "ipv6": f"({_GROUP}:){{7}}{_GROUP}|({_GROUP}:){{1,4}}:{_GROUP}|::({_GROUP}:){{0,4}}{_GROUP}",
    "uri": rf"(https?|ftp)://{_LABEL}(\.{_LABEL}){{0,3}}(:[1-9][0-9]{{0,3}})?(/[a-zA-Z0-9._~/-]*)?",
    "uuid": f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
}


def format_regex(name: str) -> Regex:
    """Texts of a format; every one of `FORMATS` fits the format, though not every fitting text is among them."""
    return parse_regex(FORMATS[name], f"format {name}").whole()


def in_json(regex: Regex) -> Regex:
    """The same texts as they stand between the quotes of JSON.

    Characters that JSON escapes are written with a backslash and one character; control characters without such a form
    are left out.
    """
    if isinstance(regex, Sequenced):
        return Sequenced(tuple(map(in_json, regex.parts)))
    if isinstance(regex, Alternatives):
        return Alternatives(tuple(map(in_json, regex.options)))
    if isinstance(regex, Repeated):
        return Repeated(in_json(regex.part), regex.least, regex.most)
    plain = regex.allowed & PLAIN
    options: list[Regex] = [Characters(plain)] if plain.ranges else []
    for character, written in SHORT_ESCAPES.items():
        if ord(character) in regex.allowed:
            options.append(Sequenced(tuple(Characters(CharacterSet.of_text(letter)) for letter in written)))
    return Alternatives(tuple(options))


def other_names(names: Sequence[str]) -> Regex:
    """Names of plain characters that are none of some names.

    JSON may write one name in several ways, `a` as an escape too: without backslashes, none is one of those given.
    """
    anything = Repeated(Characters(PLAIN), 0, None)
    if not names:
        return anything
    firsts = sorted({name[0] for name in names if name})
    options: list[Regex] = [] if "" in names else [EMPTY]
    rest = PLAIN - CharacterSet.of_text("".join(firsts))
    options.append(Sequenced((Characters(rest), anything)))
    for first in firsts:
        if ord(first) in PLAIN:
            tails = [name[1:] for name in names if name[:1] == first]
            options.append(Sequenced((Characters(CharacterSet.of_text(first)), other_names(tails))))
    return Alternatives(tuple(options))
