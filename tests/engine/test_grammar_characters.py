"""Every guide writes whole characters, those that it names, and nothing else: checked byte by byte."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cache

import numpy
import pytest
import xgrammar
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from aquiline.engine.character_sets import ANY, CharacterSet
from aquiline.engine.grammar_text import grammar_text
from aquiline.errors import InvalidParameterError
from aquiline.guided import GuidedParams

BYTES = [bytes([value]) for value in range(256)] + [b""]
# Where UTF-8 grows by a byte, where half characters begin and end, and where all of them end.
EDGES = (0, 9, 0x1F, 0x22, 0x5C, 0x7F, 0x80, 0x7FF, 0x800, 0xFFF, 0x1000, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF)
HALVES = (0xD800, 0xD801, 0xDBFF, 0xDC00, 0xDFFF)
QUIET = settings(
    max_examples=40,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@cache
def byte_compiler() -> xgrammar.GrammarCompiler:
    info = xgrammar.TokenizerInfo(BYTES, xgrammar.VocabType.RAW, stop_token_ids=[256])
    return xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)


class Walker:
    """A guide, byte by byte."""

    def __init__(self, guided: GuidedParams) -> None:
        self._matcher = xgrammar.GrammarMatcher(byte_compiler().compile_grammar(grammar_text(guided).text))

    def following(self, text: bytes) -> set[int] | None:
        """What may come behind `text`; None where it has left the grammar."""
        num_accepted = 0
        while num_accepted < len(text) and self._matcher.accept_token(text[num_accepted]):
            num_accepted += 1
        found = self._legal() if num_accepted == len(text) else None
        self._matcher.rollback(num_accepted)
        return found

    def takes(self, text: bytes) -> bool:
        """Whether `text` is a whole answer."""
        return 256 in (self.following(text) or ())

    def texts(self, before: bytes = b"") -> Iterator[bytes]:
        """All answers, of a guide that has few."""
        for value in sorted(self._legal()):
            if value == 256:
                yield before
                continue
            assert self._matcher.accept_token(value)
            yield from self.texts(before + bytes([value]))
            self._matcher.rollback(1)

    def _legal(self) -> set[int]:
        bits = numpy.zeros((1, 9), dtype=numpy.int32)
        self._matcher.fill_next_token_bitmask(bits)
        # Bits behind the last token mean nothing.
        flags = numpy.unpackbits(bits[0].view(numpy.uint8), bitorder="little")[: len(BYTES)]
        return {*numpy.flatnonzero(flags).tolist()}


def code_points() -> st.SearchStrategy[int]:
    near = st.tuples(st.sampled_from(EDGES), st.integers(-2, 2)).map(sum)
    return st.one_of(near, st.integers(0, 0x10FFFF)).filter(lambda value: value in ANY)


RANGES = st.lists(
    st.tuples(code_points(), code_points()).map(lambda ends: (min(ends), max(ends))), min_size=1, max_size=4
)


def written(code_point: int, form: int) -> str:
    """A character as a class may name it."""
    character = chr(code_point)
    if form == 0 and character not in "\\]^-\n\r":
        return character
    if form == 1 and code_point < 0x100:
        return f"\\x{code_point:02x}"
    return f"\\u{code_point:04X}" if form == 2 and code_point < 0x10000 else f"\\U{code_point:08x}"


def bytes_of(code_point: int) -> bytes:
    """UTF-8, of half characters as well."""
    return chr(code_point).encode("utf-8", "surrogatepass")


# What may be second behind some first bytes of UTF-8; behind all others it is any continuation byte.
SECOND_BYTES = {0xE0: (0xA0, 0xBF), 0xED: (0x80, 0x9F), 0xF0: (0x90, 0xBF), 0xF4: (0x80, 0x8F)}


def span_of(begun: bytes) -> tuple[int, int] | None:
    """The first and the last character that begins so; None: none does."""
    if not begun or begun[0] in range(0x80, 0xC2) or begun[0] > 0xF4:
        return None
    if begun[0] < 0x80:
        return (begun[0], begun[0]) if len(begun) == 1 else None
    least, most = SECOND_BYTES.get(begun[0], (0x80, 0xBF))
    if len(begun) > 1 and not least <= begun[1] <= most:
        return None
    length = 2 + (begun[0] >= 0xE0) + (begun[0] >= 0xF0)
    ends = (begun + (bytes([end]) if len(begun) == 1 else b"") for end in (least, most))
    low, high = (text + bytes([end]) * (length - len(text)) for text, end in zip(ends, (0x80, 0xBF), strict=True))
    return (ord(low.decode()), ord(high.decode())) if len(low) == length else None


def next_bytes(begun: bytes, members: CharacterSet) -> set[int]:
    """Bytes that may follow the beginning of a character of a set."""
    follow = range(0x100) if not begun else range(0x80, 0xC0)
    spans = {value: span_of(begun + bytes([value])) for value in follow}
    return {
        value
        for value, span in spans.items()
        if span is not None and any(first <= span[1] and last >= span[0] for first, last in members.ranges)
    }


def has_only(walker: Walker, members: CharacterSet, probes: Iterable[int]) -> None:
    """Check what may come along the bytes of many characters, and beside them."""
    expected: dict[bytes, set[int]] = {}
    for code_point in {*probes, *EDGES, *HALVES}:
        whole = bytes_of(code_point)
        assert walker.takes(whole) == (code_point in members), hex(code_point)
        for begun in (whole[:length] for length in range(len(whole))):
            if begun not in expected:
                expected[begun] = next_bytes(begun, members)
                assert (walker.following(begun) or set()) == expected[begun], begun


@QUIET
@given(st.booleans(), RANGES, st.integers(0, 3))
def test_a_class_is_the_characters_that_it_names(is_negated: bool, ranges: list[tuple[int, int]], form: int) -> None:
    named = CharacterSet.of(ranges)
    members = ANY - named if is_negated else named
    body = "".join(
        written(first, form) + ("" if first == last else "-" + written(last, form)) for first, last in ranges
    )
    if not members.ranges:
        return
    walker = Walker(GuidedParams(grammar=f"root ::= [{'^' if is_negated else ''}{body}] # [^a]"))
    has_only(
        walker,
        members,
        [end + step for span in ranges for end in span for step in (-1, 0, 1) if 0 <= end + step <= 0x10FFFF],
    )


@pytest.mark.parametrize(
    ("written_class", "members"),
    [
        ("[^\\x02-\\U0010ffff]", "\0\1"),
        ("[\\x41bc-d]", "Abcd"),
        ("[\\U0000D7FE-\\uE001]", "\ud7fe\ud7ff\ue000\ue001"),
        ("[\\^\\-\\][]", "[^-]"),
        ("[+--]", "+,-"),
    ],
)
def test_a_small_class_has_no_other_texts(written_class: str, members: str) -> None:
    found = [text.decode() for text in Walker(GuidedParams(grammar=f"root ::= {written_class}")).texts()]
    assert sorted(found) == sorted(members)


def test_all_characters_but_one_are_those() -> None:
    members = ANY - CharacterSet.of_text("a")
    has_only(Walker(GuidedParams(grammar="root ::= [^a]")), members, (*range(0xD7F0, 0xE010, 7), *map(ord, "`ab")))


@QUIET
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=4), st.sampled_from(["", "a1", "f"]))
def test_a_literal_is_its_text_however_it_is_given(text: str, behind: str) -> None:
    """`\\xe9` has two digits: the `f` behind it is a letter."""
    whole = text + behind
    escaped = "".join(written(ord(character), 1) for character in whole)
    guides = [GuidedParams(grammar=f'root ::= "{escaped}"'), GuidedParams(choice=[whole])]
    for guided in guides:
        assert [*Walker(guided).texts()] == [whole.encode()]
    values = {"enum": [whole]}
    named = {"type": "object", "properties": {whole: {"type": "null"}}, "required": [whole]}
    for schema, expected in ((values, whole), (named, {whole: None})):
        (found,) = Walker(GuidedParams(json_schema=schema)).texts()
        assert json.loads(found) == expected


@pytest.mark.parametrize(
    ("grammar", "place", "reason"),
    [
        (r'root ::= "\ud800"', "line 1, column 11", r"\ud800 is not a whole character"),
        ('root ::= "a" # "\\ud800"\n  | [a-c\\uDFFF]', "line 2, column 9", "not a whole character"),
        (r"root ::= [\uD800-\uDFFF]", "line 1, column 11", "not a whole character"),
        (r"root ::= [^\U00110000]", "line 1, column 12", "not a whole character"),
        (r'root ::= "\\\U7fffffff"', "line 1, column 13", "not a whole character"),
        (r'root ::= "\q"', "line 1, column 11", r"the escape \q is not understood"),
        (r'root ::= "\x4"', "line 1, column 11", "without 2 hexadecimal digits"),
        (r"root ::= [\d]", "line 1, column 11", r"the escape \d is not"),
        (r"root ::= []", "line 1, column 10", "no character"),
        (r'root ::= "a" [^\x00-\U0010FFFF]', "line 1, column 14", "no character"),
        (r"root ::= [z-a]", "line 1, column 10", "a range goes"),
        ('root ::= "\\u00e9" b', "line 1, column 19", 'Rule "b" is not defined'),
        (r'root ::= Regex("[^a]")', "", "uses Regex(...), which GBNF"),
    ],
)
def test_what_is_no_character_is_refused_with_its_place(grammar: str, place: str, reason: str) -> None:
    with pytest.raises(InvalidParameterError) as refused:
        grammar_text(GuidedParams(grammar=grammar))
    assert place in str(refused.value) and reason in str(refused.value)


HALF = "a\ud800"


@pytest.mark.parametrize(
    "guide",
    [
        {"choice": [HALF]},
        {"grammar": f'root ::= "{HALF}"'},
        {"regex": HALF},
        {"regex": r"\ud800"},
        {"regex": r"[\ud800-\udfff]"},
        {"json_schema": {"enum": [HALF]}},
        {"json_schema": '{"const": "\\ud800"}'},
        {"json_schema": {"type": "object", "properties": {HALF: {}}}},
        {"json_schema": {"type": "string", "pattern": r"^[\ud800]$"}},
    ],
)
def test_half_characters_are_refused_in_every_guide(guide: dict[str, object]) -> None:
    with pytest.raises(InvalidParameterError):
        grammar_text(GuidedParams(**guide))  # type: ignore[arg-type]


STRINGS: list[dict[str, object]] = [
    {"type": "string"},
    {"type": "string", "maxLength": 3},
    {"type": "string", "minLength": 1},
    {"type": "string", "pattern": "^[^a]*$"},
    {"type": "string", "pattern": "b"},
    {},
]


@pytest.mark.parametrize("schema", STRINGS, ids=json.dumps)
def test_a_string_of_json_holds_whole_characters_and_no_bare_control(schema: dict[str, object]) -> None:
    walker = Walker(GuidedParams(json_schema=schema))
    opened = walker.following(b'"')
    assert opened is not None and not opened & {*range(0x20), *range(0x80, 0xC2), *range(0xF5, 0x100)}
    assert walker.following(b'"\xed') == {*range(0x80, 0xA0)}
    assert walker.following(b'"\xf4') == {*range(0x80, 0x90)}


def test_a_name_among_others_holds_whole_characters() -> None:
    walker = Walker(GuidedParams(json_schema={"type": "object", "additionalProperties": {"type": "null"}}))
    assert walker.following(b'{"\xed') == {*range(0x80, 0xA0)}


@pytest.mark.parametrize(
    ("text", "is_whole"),
    [
        (r'"\u00e9\uD7ff\ue000\uFFFF"', True),
        (r'"\ud83d\ude00"', True),
        (r'"\uD83D\uDE00x"', True),
        (r'"\ud83d"', False),
        (r'"\ud83dx"', False),
        (r'"\ud83d\n"', False),
        (r'"\ude00"', False),
        (r'"\ud83d\u0041"', False),
    ],
)
@pytest.mark.parametrize("guided", [GuidedParams(json_schema={}), GuidedParams(json_schema={"type": "string"})])
def test_half_characters_that_json_escapes_come_in_pairs(guided: GuidedParams, text: str, is_whole: bool) -> None:
    assert Walker(guided).takes(text.encode()) == is_whole
