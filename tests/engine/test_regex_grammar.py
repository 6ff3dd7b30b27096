"""Regular expressions as grammars: the texts that Python's own matcher accepts, or a refusal that says where."""

from __future__ import annotations

import re
from functools import cache

import pytest
import xgrammar
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aquiline.engine.grammar import GrammarCompiler
from aquiline.engine.grammar_text import grammar_text
from aquiline.engine.regex_automaton import regex_rules
from aquiline.engine.regex_parser import Characters, parse_regex
from aquiline.engine.schema_strings import FORMATS, in_json
from aquiline.errors import InvalidParameterError
from aquiline.guided import GuidedParams

BYTES = [bytes([value]) for value in range(256)] + [b""]


@cache
def byte_compiler() -> xgrammar.GrammarCompiler:
    """Over single bytes."""
    info = xgrammar.TokenizerInfo(BYTES, xgrammar.VocabType.RAW, stop_token_ids=[256])
    return xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)


def matches(grammar: xgrammar.CompiledGrammar, text: str) -> bool:
    matcher = xgrammar.GrammarMatcher(grammar)
    return matcher.accept_string(text) and matcher.is_completed() if text else matcher.is_completed()


def atoms() -> st.SearchStrategy[str]:
    return st.sampled_from(
        ["a", "b", "\\.", "[ab]", "[^a]", "[a-c-]", "\\d", ".", "é", "\\x62", "[\\]\\\\^b]", "(?:b|)"]
    )


PATTERNS = st.recursive(
    atoms(),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{2,}", "*?"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=6,
)
TEXTS = st.lists(st.text("ab.cé0]\\^-", max_size=7), min_size=6, max_size=6)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(PATTERNS, TEXTS)
def test_a_grammar_accepts_what_the_expression_matches(pattern: str, texts: list[str]) -> None:
    grammar = byte_compiler().compile_grammar(grammar_text(GuidedParams(regex=pattern)).text)
    for text in texts:
        assert matches(grammar, text) == (re.fullmatch(pattern, text) is not None), text


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(["", "^"]), PATTERNS, st.sampled_from(["", "$"]), TEXTS)
def test_a_pattern_is_found_in_the_texts_that_it_lets_through(
    before: str, core: str, behind: str, texts: list[str]
) -> None:
    pattern = before + core + behind
    rules = regex_rules(parse_regex(pattern, "pattern").found(), "pattern", "text")
    grammar = byte_compiler().compile_grammar("\n".join(("root ::= text0", *rules)))
    for text in texts:
        assert matches(grammar, text) == (re.search(pattern, text) is not None), text


@pytest.mark.parametrize("members", ["\\s", "\\S", "\\w", "\\W", "\\d", "\\D", "\\s@", "\\d\\s", "é\\D", "\\W0-3"])
def test_a_negated_class_has_what_it_has_in_every_dialect(members: str) -> None:
    pattern = f"[^{members}]"
    allowed = parse_regex(pattern, "the regex").whole()
    assert isinstance(allowed, Characters)
    texts = [chr(code_point) for code_point in range(0x3100) if code_point in allowed.allowed]
    assert texts
    for text in texts:
        assert re.fullmatch(pattern, text), text
        assert re.fullmatch(pattern, text, re.ASCII), text


def test_what_a_negated_escape_shuts_out_is_what_its_opposite_lets_in() -> None:
    for letter, opposite in ("sS", "dD", "wW", "Ss", "Dd", "Ww"):
        assert parse_regex(f"[^\\{letter}]", "the regex") == parse_regex(f"\\{opposite}", "the regex")


def test_inside_json_quotes_and_backslashes_are_escaped() -> None:
    rules = regex_rules(in_json(parse_regex('["\\\\\n\x01a]{2}', "pattern").whole()), "pattern", "text")
    grammar = byte_compiler().compile_grammar("\n".join(("root ::= text0", *rules)))
    assert all(matches(grammar, text) for text in ("aa", '\\"a', "\\n\\\\", "a\\n"))
    assert not any(matches(grammar, text) for text in ('"a', "\na", "\x01a", "\\a", "\\u0061a"))


@pytest.mark.parametrize("name", FORMATS)
def test_formats_have_automata_of_moderate_size(name: str) -> None:
    assert len(regex_rules(parse_regex(FORMATS[name], name).whole(), name, "text")) < 400


@pytest.mark.parametrize(
    ("pattern", "place", "reason"),
    [
        ("a(?=b)", 3, "lookaround"),
        ("(?i)a", 2, "flags"),
        ("(?P=n)", 2, "special groups"),
        ("a\\bc", 2, "word boundaries"),
        ("(a)\\1", 4, "references"),
        ("a**", 2, "quantifier behind"),
        ("*a", 0, "nothing to repeat"),
        ("a|+", 2, "nothing to repeat"),
        ("a{x}", 2, "braces need counts"),
        ("a{3,2}", 2, "less than the least"),
        ("a{99999}", 2, "more than"),
        ("a^b", 1, "beginning of the text"),
        ("a$b", 2, "nothing may follow"),
        ("(a$)", 2, "end of an alternative"),
        ("(a", 2, "not closed"),
        ("a)", 1, "closes nothing"),
        ("[a", 2, "not closed"),
        ("[]a]", 1, "first bracket"),
        ("[b-a]", 4, "a range goes"),
        ("[a-\\d]", 5, "a range goes"),
        ("[[:alpha:]]", 1, "POSIX"),
        ("\\p{L}", 1, "the escape"),
        ("\\ud800", 1, "the escape"),
        ("\\", 1, "the escape"),
        ("[^\\x00-\\U0010FFFF]", 18, "no character"),
        ("[^\\s\\S]", 7, "no character"),
        ("[^\\d-z]", 6, "a range goes"),
        ("(" * 100 + "a" + ")" * 100, 65, "deeper"),
    ],
)
def test_what_no_grammar_can_follow_is_refused_where_it_stands(pattern: str, place: int, reason: str) -> None:
    with pytest.raises(InvalidParameterError, match=reason) as refused:
        parse_regex(pattern, "the regex")
    assert f"at character {place}:" in str(refused.value)


@pytest.mark.parametrize(
    "pattern", ["(a|b)*a(a|b){30}", "(a{1,999}){1,999}", "((a{1,99}){1,99}){1,99}", "(a?){999}a{999}"]
)
def test_an_expression_that_would_explode_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidParameterError, match="too large"):
        grammar_text(GuidedParams(regex=pattern))


def test_a_character_that_no_token_writes_ends_the_output() -> None:
    vocabulary = [b"a", b"b", b"", b""]
    matcher = GrammarCompiler(lambda: vocabulary, 4, frozenset((3,))).compile(GuidedParams(regex="ax|b")).matcher()
    assert not matcher.accept(3)
    assert matcher.accept(0)
    assert not matcher.accept(0)
    assert matcher.accept(3)
    assert matcher.is_terminated
    matcher.rollback(2)
    assert matcher.accept(1)
    assert matcher.accept(3)
