"""What is looked up, without an engine around it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aquiline.engine.host_tree import HostTree
from aquiline.engine.lookup import Lookup, LookupLimits
from aquiline.engine.lookup_rates import NUM_CELLS, NUM_LENGTHS, RequestRates, SharedRates, length_class
from aquiline.engine.row_worth import RowCosts, RowWorth, StepBase, generic_step_time
from aquiline.engine.suffix_automaton import SuffixAutomaton
from aquiline.request import Request, SamplingParams


def make_request(prompt: Sequence[int], output: Sequence[int] = (), name: str = "it") -> Request:
    request = Request(name, tuple(prompt), SamplingParams(), seed=0)
    request.token_ids += output
    return request


def decoding(num_requests: int) -> StepBase:
    return StepBase(num_requests, float(num_requests))


def all_there_is() -> RowWorth:
    return RowWorth(decoding(1), RowCosts(), always_pays=True)


def propose(lookup: Lookup, request: Request, limits: LookupLimits, worth: RowWorth | None = None) -> HostTree:
    (tree,) = lookup.propose([request], [limits.max_depth], limits.max_draft_tokens, worth or all_there_is())
    return tree


def looked_up(text: Sequence[int], max_draft_tokens: int = 16, max_depth: int = 16) -> HostTree:
    return propose(Lookup(), make_request(text), LookupLimits(max_draft_tokens, max_depth))


def paths(tree: HostTree) -> set[tuple[int, ...]]:
    """Tokens from below the root down to every node."""
    known: list[tuple[int, ...]] = [()]
    for token_id, parent in zip(tree.tokens, tree.parents, strict=True):
        known.append((*known[parent], token_id))
    assert len(set(known)) == len(known), "two children of a node have the same token"
    return set(known[1:])


def test_what_followed_once_is_proposed_to_its_end_and_beyond() -> None:
    """a b c d a b: c and d followed, then the text itself goes on."""
    tree = looked_up([1, 2, 3, 4, 1, 2], max_draft_tokens=6)
    assert (3, 4, 1, 2, 3, 4) in paths(tree)
    assert tree.depths == (1, 2, 3, 4, 5, 6)


def test_a_repetition_is_continued_beyond_the_end_of_the_text() -> None:
    assert looked_up([7] * 3, max_draft_tokens=8).tokens == (7,) * 8
    assert looked_up([1, 2, 3] * 3, max_draft_tokens=7).tokens == (1, 2, 3, 1, 2, 3, 1)


def test_two_continuations_become_two_branches() -> None:
    found = paths(looked_up([1, 2, 3, 9, 1, 2, 4, 9, 1, 2]))
    assert {(3,), (4,), (4, 9)} <= found


def test_a_text_without_repetition_proposes_nothing() -> None:
    assert looked_up(range(50)).num_draft_tokens == 0


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(0, 9), st.integers(0, 9))
def test_trees_are_well_formed_and_keep_their_limits(text: list[int], max_draft_tokens: int, max_depth: int) -> None:
    tree = looked_up(text, max_draft_tokens, max_depth)
    assert tree.num_draft_tokens <= max_draft_tokens and tree.depth <= max_depth
    assert set(tree.tokens) <= set(text)
    survivals = (1.0, *tree.survivals)
    for node, parent in enumerate(tree.parents, 1):
        assert 0 <= parent < node
        assert 0.0 < survivals[node] <= survivals[parent]
    assert list(tree.survivals) == sorted(tree.survivals, reverse=True)
    paths(tree)
    for count in range(tree.num_draft_tokens + 1):
        part = tree.within(count, max_depth)
        assert part.tokens == tree.tokens[:count] and part.parents == tree.parents[:count]
    for depth in range(tree.depth + 1):
        shallow = tree.within(tree.num_draft_tokens, depth)
        assert paths(shallow) == {path for path in paths(tree) if len(path) <= depth}


@given(st.lists(st.integers(0, 2), min_size=2, max_size=40), st.data())
def test_reading_in_any_pieces_proposes_the_same(text: list[int], data: st.DataObject) -> None:
    """Chunks, steps of several tokens and pauses change nothing: an index depends on the text alone."""
    num_prompt = data.draw(st.integers(1, len(text)))
    limits, trees = LookupLimits(8, 8), []
    for _ in range(2):
        lookup = Lookup()
        request = make_request(text[:num_prompt])
        propose(lookup, request, limits)
        while request.num_tokens < len(text):
            count = data.draw(st.integers(1, len(text) - request.num_tokens))
            request.token_ids += text[request.num_tokens : request.num_tokens + count]
            tree = propose(lookup, request, limits)
        trees.append(tree if num_prompt < len(text) else propose(lookup, request, limits))
    assert trees[0] == trees[1]


def test_guesses_that_fail_are_proposed_no_more() -> None:
    """After 1 something else comes every time, so that after a while no guess from it is worth a row."""
    lookup, request, sizes = Lookup(), make_request([1, 2] * 3), []
    for number in range(80):
        request.token_ids.append(1)
        sizes.append(propose(lookup, request, LookupLimits(8, 8), RowWorth(decoding(1), RowCosts())).num_draft_tokens)
        request.token_ids.append(100 + number)
        propose(lookup, request, LookupLimits(8, 8), RowWorth(decoding(1), RowCosts()))
    assert sizes[0] > 0
    assert sum(sizes[-20:]) == 0


@pytest.mark.parametrize(
    "text",
    [[0] * 3000, [0, 1] * 1500, [*range(100)] * 30, [i * i % 11 for i in range(3000)], [*range(3000)]],
    ids=["one_token", "two_tokens", "period_100", "squares", "all_different"],
)
def test_work_per_token_does_not_grow_with_the_text(text: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed: calls into the automaton, the steps of its own loops being bounded by its size."""
    calls = 0

    def counting(name: str) -> None:
        original = getattr(SuffixAutomaton, name)

        def counted(self: SuffixAutomaton, *args: object) -> object:
            nonlocal calls
            calls += 1
            return original(self, *args)

        monkeypatch.setattr(SuffixAutomaton, name, counted)

    for name in ("append", "continuations", "shortened", "own_match"):
        counting(name)
    lookup, request, per_half = Lookup(), make_request(text[:1]), []
    for start in (1, len(text) // 2):
        calls = 0
        for token_id in text[start : start + len(text) // 2]:
            request.token_ids.append(token_id)
            propose(lookup, request, LookupLimits(4, 4))
        per_half.append(calls / (len(text) // 2))
    assert max(per_half) < 60
    assert per_half[1] < 1.5 * per_half[0] + 5


def test_outputs_of_others_are_found_only_in_the_history() -> None:
    for history, expected in ((0, 0), (100, 3)):
        lookup = Lookup(history)
        lookup.forget(make_request([1], [5, 6, 7, 8]))
        tree = propose(lookup, make_request([2, 5], name="other"), LookupLimits(3, 3))
        assert tree.num_draft_tokens == expected
        if expected:
            assert tree.tokens == (6, 7, 8)


def test_a_history_forgets_what_is_old_and_keeps_to_its_size() -> None:
    lookup = Lookup(history_tokens=20)
    for number in range(30):
        lookup.forget(make_request([1], range(10 * number, 10 * number + 5)))
        history = lookup._history
        assert history is not None
        assert history.newer.automaton.num_tokens + history.older.automaton.num_tokens <= 20 + 8
    limits = LookupLimits(2, 2)
    new = propose(lookup, make_request([1, 290], name="new"), limits)
    old = propose(lookup, make_request([1, 10], name="old"), limits)
    assert (new.tokens, old.tokens) == ((291, 292), ())


def test_texts_of_the_history_do_not_run_into_one_another() -> None:
    lookup = Lookup(100)
    lookup.forget(make_request([1], [5, 6]))
    lookup.forget(make_request([1], [7, 8]))
    tree = propose(lookup, make_request([2, 5], name="other"), LookupLimits(5, 5))
    assert paths(tree) == {(6,)}


def test_a_reader_finds_its_place_when_the_history_is_exchanged() -> None:
    lookup = Lookup(history_tokens=12)
    request = make_request([2, 5], name="reader")
    limits = LookupLimits(8, 2)
    propose(lookup, request, limits)
    for first in (20, 30, 40):
        lookup.forget(make_request([1], [5, first, first + 1, first + 2]))
        request.token_ids += (first + 5, 5)
        assert (first, first + 1) in paths(propose(lookup, request, limits))


def test_nothing_is_kept_of_a_request_that_has_ended() -> None:
    lookup, request = Lookup(), make_request([1, 2, 1])
    propose(lookup, request, LookupLimits(2, 2))
    assert lookup.num_requests == 1
    lookup.forget(request)
    lookup.forget(request)
    assert lookup.num_requests == 0


def test_rates_follow_what_is_seen() -> None:
    shared = SharedRates()
    first, second = RequestRates(shared), RequestRates(shared)
    generic = shared.rate(0)
    for _ in range(400):
        first.observe(0, True)
    assert first.rates[0] > shared.rate(0) > 0.9 > generic
    assert second.rates[0] == generic
    second.observe(0, False)
    assert generic < second.rates[0] < shared.rate(0)
    assert all(shared.rate(cell) <= 1.0 for cell in range(NUM_CELLS))


def test_longer_matches_fall_into_higher_classes() -> None:
    classes = [length_class(length) for length in range(1, 200)]
    assert classes == sorted(classes) and set(classes) == set(range(NUM_LENGTHS))


def test_a_row_has_to_bring_more_the_more_the_step_commits() -> None:
    """In the worked example of RowWorth: one request needs 5 %, eight rows that commit 5 tokens 39 %."""
    worth = RowWorth(decoding(1), RowCosts())
    assert worth.least_survival == pytest.approx(0.05)
    for survival in (0.9, 0.8, 0.7, 0.6, 0.5, 0.3, 0.2):
        worth.take(survival)
    assert RowWorth(decoding(8), RowCosts()).least_survival == pytest.approx(0.125 / 1.6 * 8.0)
    assert RowWorth(decoding(32), RowCosts()).least_survival > 0.7


STEPPED = RowCosts(lambda num_rows: 1.0 + (num_rows - 1) // 4)
JUMPING = RowCosts(lambda num_rows: (1.0, 2.0, 2.1, 2.2, 2.3, 2.4)[min(num_rows, 6) - 1])


@given(
    st.integers(1, 6),
    st.lists(st.lists(st.floats(0.001, 1.0), max_size=12), min_size=1, max_size=3),
    st.sampled_from([RowCosts(), STEPPED, JUMPING]),
)
def test_the_size_kept_is_the_one_that_commits_fastest(
    num_requests: int, trees: list[list[float]], costs: RowCosts
) -> None:
    """Growth that stops where `least_survival` says finds what a search over all sizes finds."""
    worth = RowWorth(decoding(num_requests), costs)
    rows, expected = num_requests, float(num_requests)
    for tree in trees:
        survivals = sorted(tree, reverse=True)
        rates = [(expected + sum(survivals[:size])) / costs.time(rows + size) for size in range(len(survivals) + 1)]
        for survival in survivals:
            if survival < worth.least_survival:
                break
            worth.take(survival)
        kept = worth.settle()
        assert rates[kept] == pytest.approx(max(rates))
        rows, expected = rows + kept, expected + sum(survivals[:kept])


def test_a_tree_grows_over_a_stair_when_what_lies_behind_repays_it() -> None:
    worth = RowWorth(decoding(1), JUMPING)
    for survival in (0.9, 0.9, 0.9, 0.8):
        assert survival >= worth.least_survival
        worth.take(survival)
    assert worth.settle() == 4
    for survival in (0.5, 0.4):
        if survival >= worth.least_survival:
            worth.take(survival)
    assert worth.settle() <= 2


def test_a_row_that_always_pays_is_always_kept() -> None:
    worth = RowWorth(decoding(1), JUMPING, always_pays=True)
    for _ in range(5):
        worth.take(0.01)
    assert worth.settle() == 5


def test_generic_times_rise_evenly_between_and_beyond_their_points() -> None:
    times = [generic_step_time(rows) for rows in range(1, 100)]
    assert times == sorted(times)
    assert times[:4] == pytest.approx([1.0, 1.05, 1.125, 1.2])
    assert times[63] == pytest.approx(4.7 + 32 * 2.1 / 16)
