"""The automaton against a search through the whole text."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from aquiline.engine.suffix_automaton import NO_MATCH, Match, SuffixAutomaton

TEXTS = st.integers(1, 4).flatmap(lambda size: st.lists(st.integers(0, size), max_size=40))


def built(text: Sequence[int]) -> SuffixAutomaton:
    automaton = SuffixAutomaton()
    for token_id in text:
        automaton.append(token_id)
    return automaton


def occurs_at(text: Sequence[int], part: Sequence[int]) -> list[int]:
    """Where occurrences of `part` end in `text`, the place behind the last token."""
    size = len(part)
    return [end for end in range(size, len(text) + 1) if list(text[end - size : end]) == list(part)]


def longest_repeated_suffix(text: Sequence[int]) -> int:
    """Length of the longest suffix of `text` that also ends somewhere before."""
    return max(size for size in range(len(text) + 1) if not size or len(occurs_at(text, text[-size:])) > 1)


def following(text: Sequence[int], part: Sequence[int]) -> set[int]:
    return {text[end] for end in occurs_at(text, part) if end < len(text)}


@given(TEXTS)
def test_the_longest_repeated_suffix_and_what_followed_it(text: list[int]) -> None:
    automaton = SuffixAutomaton()
    for end, token_id in enumerate(text, 1):
        automaton.append(token_id)
        known = text[:end]
        match = automaton.own_match()
        assert match.length == longest_repeated_suffix(known)
        part = known[len(known) - match.length :]
        assert set(automaton.continuations(match)) == following(known, part)


@given(TEXTS, TEXTS)
def test_another_text_is_matched_as_far_back_as_it_occurs(text: list[int], other: list[int]) -> None:
    automaton, match = built(text), NO_MATCH
    for end, token_id in enumerate(other, 1):
        match = automaton.read(match, token_id)
        sizes = [size for size in range(end + 1) if occurs_at(text, other[end - size : end])]
        assert match.length == max(sizes)
        assert set(automaton.continuations(match)) == following(text, other[end - match.length : end])


@given(TEXTS, st.lists(st.tuples(st.booleans(), st.integers(0, 2)), max_size=40))
def test_a_match_stays_true_while_the_text_grows(text: list[int], events: list[tuple[bool, int]]) -> None:
    """Growing splits states; a match that was found before has to find the half it belongs to."""
    automaton, match = built(text), NO_MATCH
    grown = list(text)
    other: list[int] = []
    for grows, token_id in events:
        if grows:
            automaton.append(token_id)
            grown.append(token_id)
        else:
            match = automaton.read(match, token_id)
            other.append(token_id)
        part = other[len(other) - match.length :]
        assert set(automaton.continuations(automaton.settled(match))) == following(grown, part)


@given(TEXTS, st.data())
def test_a_continuation_leads_to_what_follows_both(text: list[int], data: st.DataObject) -> None:
    """Worked example, text `a b c d a b`: `a b` is repeated, `c` follows it, and `d` follows `a b c`."""
    automaton = built(text)
    match = automaton.own_match()
    part = text[len(text) - match.length :]
    while followers := automaton.continuations(match):
        token_id = data.draw(st.sampled_from(list(followers)))
        match = Match(followers[token_id], match.length + 1)
        part = [*part, token_id]
        assert match.length == len(part)
        assert set(automaton.continuations(match)) == following(text, part)


@given(TEXTS)
def test_every_shorter_match_is_a_suffix_that_more_follows(text: list[int]) -> None:
    automaton = built(text)
    match = automaton.own_match()
    while match.length:
        shorter = automaton.shortened(match)
        assert shorter.length < match.length
        assert set(automaton.continuations(match)) <= set(automaton.continuations(shorter))
        part = text[len(text) - shorter.length :]
        assert set(automaton.continuations(shorter)) == following(text, part)
        match = shorter


def test_what_followed_last_comes_last() -> None:
    automaton = built([1, 2, 3, 1, 2, 4, 1, 2])
    assert list(automaton.continuations(automaton.own_match())) == [3, 4]
    for token_id in (3, 1, 2):
        automaton.append(token_id)
    match = automaton.shortened(automaton.own_match())
    assert match.length == 2
    assert list(automaton.continuations(match)) == [4, 3]


def test_any_text_keeps_at_most_two_states_and_three_transitions_per_token() -> None:
    """What bounds memory and the copying of transitions (Blumer et al., 1985)."""
    hard_texts = ([0] * 3000, [0, 1] * 1500, [0] + [1] * 2999, [i * i % 7 for i in range(3000)], list(range(3000)))
    for text in hard_texts:
        automaton = built(text)
        assert automaton.num_states <= 2 * len(text)
        assert automaton.num_transitions <= 3 * len(text)
