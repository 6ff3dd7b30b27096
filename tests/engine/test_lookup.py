"""What is looked up, without an engine around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aquiline.config import LookupMode, SpeculativeConfig
from aquiline.engine.cost_curve import Curve
from aquiline.engine.cost_model import GENERIC_PROFILE, CostModel, StepSeconds, StepSize
from aquiline.engine.host_tree import HostTree
from aquiline.engine.lookup import Lookup, LookupLimits
from aquiline.engine.lookup_policy import LookupPolicy
from aquiline.engine.lookup_rates import NUM_CELLS, NUM_LENGTHS, RequestRates, SharedRates, length_class
from aquiline.engine.row_worth import RowCosts, RowWorth, generic_step_time
from aquiline.engine.suffix_automaton import SuffixAutomaton
from aquiline.request import Request, SamplingParams
from aquiline.speculation import parse_speculation


def make_request(prompt: Sequence[int], output: Sequence[int] = (), name: str = "it") -> Request:
    request = Request(name, tuple(prompt), SamplingParams(), seed=0)
    request.token_ids += output
    return request


def all_there_is() -> RowWorth:
    return RowWorth(1, RowCosts(), always_pays=True)


def looked_up(text: Sequence[int], max_draft_tokens: int = 16, max_depth: int = 16) -> HostTree:
    return Lookup().propose(make_request(text), LookupLimits(max_draft_tokens, max_depth), all_there_is())


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
        lookup.propose(request, limits, all_there_is())
        while request.num_tokens < len(text):
            count = data.draw(st.integers(1, len(text) - request.num_tokens))
            request.token_ids += text[request.num_tokens : request.num_tokens + count]
            tree = lookup.propose(request, limits, all_there_is())
        trees.append(tree if num_prompt < len(text) else lookup.propose(request, limits, all_there_is()))
    assert trees[0] == trees[1]


def test_guesses_that_fail_are_proposed_no_more() -> None:
    """After 1 something else comes every time, so that after a while no guess from it is worth a row."""
    lookup, request, sizes = Lookup(), make_request([1, 2] * 3), []
    for number in range(80):
        request.token_ids.append(1)
        sizes.append(lookup.propose(request, LookupLimits(8, 8), RowWorth(1, RowCosts())).num_draft_tokens)
        request.token_ids.append(100 + number)
        lookup.propose(request, LookupLimits(8, 8), RowWorth(1, RowCosts()))
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
            lookup.propose(request, LookupLimits(4, 4), all_there_is())
        per_half.append(calls / (len(text) // 2))
    assert max(per_half) < 60
    assert per_half[1] < 1.5 * per_half[0] + 5


def test_outputs_of_others_are_found_only_in_the_history() -> None:
    for history, expected in ((0, 0), (100, 3)):
        lookup = Lookup(history)
        lookup.forget(make_request([1], [5, 6, 7, 8]))
        tree = lookup.propose(make_request([2, 5], name="other"), LookupLimits(3, 3), all_there_is())
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
    new = lookup.propose(make_request([1, 290], name="new"), limits, all_there_is())
    old = lookup.propose(make_request([1, 10], name="old"), limits, all_there_is())
    assert (new.tokens, old.tokens) == ((291, 292), ())


def test_texts_of_the_history_do_not_run_into_one_another() -> None:
    lookup = Lookup(100)
    lookup.forget(make_request([1], [5, 6]))
    lookup.forget(make_request([1], [7, 8]))
    tree = lookup.propose(make_request([2, 5], name="other"), LookupLimits(5, 5), all_there_is())
    assert paths(tree) == {(6,)}


def test_a_reader_finds_its_place_when_the_history_is_exchanged() -> None:
    lookup = Lookup(history_tokens=12)
    request = make_request([2, 5], name="reader")
    limits = LookupLimits(8, 2)
    lookup.propose(request, limits, all_there_is())
    for first in (20, 30, 40):
        lookup.forget(make_request([1], [5, first, first + 1, first + 2]))
        request.token_ids += (first + 5, 5)
        assert (first, first + 1) in paths(lookup.propose(request, limits, all_there_is()))


def test_nothing_is_kept_of_a_request_that_has_ended() -> None:
    lookup, request = Lookup(), make_request([1, 2, 1])
    lookup.propose(request, LookupLimits(2, 2), all_there_is())
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
    worth = RowWorth(1, RowCosts())
    assert worth.least_survival == pytest.approx(0.05)
    for survival in (0.9, 0.8, 0.7, 0.6, 0.5, 0.3, 0.2):
        worth.take(survival)
    assert RowWorth(8, RowCosts()).least_survival == pytest.approx(0.125 / 1.6 * 8.0)
    assert RowWorth(32, RowCosts()).least_survival > 0.7


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
    worth = RowWorth(num_requests, costs)
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
    worth = RowWorth(1, JUMPING)
    for survival in (0.9, 0.9, 0.9, 0.8):
        assert survival >= worth.least_survival
        worth.take(survival)
    assert worth.settle() == 4
    for survival in (0.5, 0.4):
        if survival >= worth.least_survival:
            worth.take(survival)
    assert worth.settle() <= 2


def test_a_row_that_always_pays_is_always_kept() -> None:
    worth = RowWorth(1, JUMPING, always_pays=True)
    for _ in range(5):
        worth.take(0.01)
    assert worth.settle() == 5


def test_generic_times_rise_evenly_between_and_beyond_their_points() -> None:
    times = [generic_step_time(rows) for rows in range(1, 100)]
    assert times == sorted(times)
    assert times[:4] == pytest.approx([1.0, 1.05, 1.125, 1.2])
    assert times[63] == pytest.approx(4.7 + 32 * 2.1 / 16)


# A step with one row takes 1.0 + 0.3 + 0.2 and one with two rows 2.5 + 0.5 + 0.2.
SIMPLE_PROFILE = replace(
    GENERIC_PROFILE,
    verify=Curve((1, 2), (1.0, 2.5)),
    seconds_per_context_token=0.0,
    seconds_per_row_context=0.0,
    sample_base=0.1,
    sample_per_row=0.2,
    host_base=0.1,
    host_per_request=0.1,
)


def test_rows_cost_what_was_measured_and_follow_what_is_learnt() -> None:
    model = CostModel(SIMPLE_PROFILE)
    costs = RowCosts.of(model)
    assert (costs.time(1), costs.time(2)) == pytest.approx((1.5, 3.2))
    for _ in range(200):
        for rows, verify in ((1, 1.0), (2, 1.1)):
            model.observe(StepSize(rows, rows, 1), StepSeconds(verify, 0.0, 0.1 + 0.2 * rows, 0.2))
    assert costs.time(2) == pytest.approx(3.2)
    costs.refresh()
    assert costs.time(2) / costs.time(1) < 1.6


def policy(mode: str, has_draft: bool = False, lookup: LookupMode = "auto") -> LookupPolicy:
    return LookupPolicy(SpeculativeConfig(parse_speculation(mode), lookup=lookup), has_draft)


@pytest.mark.parametrize(
    ("mode", "lookup", "has_draft", "num_nodes", "depth"),
    [
        ("auto", "on", False, 16, 16),
        ("auto", "on", True, 16, 16),
        ("chain:3", "auto", False, 3, 3),
        ("chain:3", "on", True, 3, 3),
        ("tree:3x2", "on", False, 9, 2),
        ("chain:3", "auto", True, 0, 0),
        ("off", "auto", False, 0, 0),
        ("auto", "off", False, 0, 0),
    ],
)
def test_a_shape_bounds_what_is_looked_up(
    mode: str, lookup: LookupMode, has_draft: bool, num_nodes: int, depth: int
) -> None:
    looks_up = policy(mode, has_draft, lookup)
    assert looks_up.max_draft_tokens == num_nodes
    request = make_request([1, 2, 3, 4, 5, 6, 7] * 9)
    trees = looks_up.look_up({"it": 100}, {"it": request}, 100)
    if num_nodes:
        assert trees["it"].num_draft_tokens <= num_nodes and trees["it"].depth == depth
    else:
        assert not trees


def test_requests_share_the_rows_of_a_step() -> None:
    requests = {name: make_request([1, 2, 3, 4, 5, 6, 7] * 9, name=name) for name in "abc"}
    trees = policy("auto").look_up(dict.fromkeys(requests, 100), requests, 10)
    assert [tree.num_draft_tokens for tree in trees.values()] == [3, 3, 3]


def test_a_sure_continuation_needs_no_draft_model() -> None:
    looks_up = policy("auto", has_draft=True)
    assert looks_up.suffices(HostTree((1, 2), (0, 0), (0.4, 0.2)))
    assert not looks_up.suffices(HostTree((1, 2), (0, 1), (0.4, 0.3)))
