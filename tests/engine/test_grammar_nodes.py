"""Nodes that grammars foretell: legal, on one path, cut to the limits, and merged with what was looked up."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aquiline.engine.grammar import Matcher
from aquiline.engine.grammar_nodes import ForetoldRate, foretold_tokens, guided_tree
from aquiline.engine.host_tree import NO_NODES, HostTree
from aquiline.engine.lookup import LookupLimits
from aquiline.engine.row_worth import RowCosts, RowWorth, StepBase
from aquiline.guided import GuidedParams
from tests.engine.guided_work import EOS, GUIDES, JOBS, VOCAB, VOCABULARY, guided_engine, shared_compiler
from tests.engine.workloads import run_jobs
from tests.tiny import TinySettings

LIMITS = LookupLimits(16, 16)


def matcher_of(guided: GuidedParams) -> Matcher:
    return shared_compiler().compile(guided).matcher()


def foretell(matcher: Matcher, rate: float, limits: LookupLimits, always_pays: bool = True) -> list[tuple[int, float]]:
    return foretold_tokens(matcher, rate, limits, RowWorth(StepBase(1, 1.0), RowCosts(), always_pays))


def texts(tokens: list[tuple[int, float]]) -> list[bytes]:
    return [VOCABULARY[token_id] for token_id, _ in tokens]


def test_the_only_text_comes_in_its_longest_tokens_and_then_the_end() -> None:
    found = foretell(matcher_of(GuidedParams(choice=["name: true"])), 0.5, LIMITS)
    assert texts(found) == [b"na", b"me", b":", b" ", b"true", b""]
    assert found[-1] == (EOS, 1.0)
    assert all(likely in (0.5, 1.0) for _, likely in found)


def test_a_token_without_an_alternative_is_certain() -> None:
    found = foretell(matcher_of(GuidedParams(regex="Z[01]")), 0.5, LIMITS)
    assert found == [(VOCABULARY.index(b"Z"), 1.0)]


def test_no_more_is_foretold_than_is_wanted_of_a_text_longer_than_memory() -> None:
    doubled = "\n".join(('root ::= n40\nn0 ::= "ab"', *(f"n{i + 1} ::= n{i} n{i}" for i in range(40))))
    matcher = matcher_of(GuidedParams(grammar=doubled))
    assert b"".join(texts(foretell(matcher, 1.0, LIMITS))).startswith(b"abab")


@pytest.mark.parametrize("limits", [LookupLimits(2, 9), LookupLimits(9, 2)])
def test_limits_cut_what_is_foretold(limits: LookupLimits) -> None:
    assert len(foretell(matcher_of(GuidedParams(choice=["abcdefgh"])), 0.4, limits)) <= 2


def test_a_token_that_is_not_worth_a_row_is_not_taken() -> None:
    matcher = matcher_of(GuidedParams(choice=["nameabname"]))
    assert 0 < len(foretell(matcher, 0.4, LIMITS, always_pays=False)) < len(foretell(matcher, 0.4, LIMITS))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(GUIDES), st.integers(1, 8))
def test_every_node_is_legal_and_the_matcher_stays(seed: int, guided: GuidedParams, most: int) -> None:
    choose = random.Random(seed)
    matcher = matcher_of(guided)
    path = []
    for _ in range(choose.randrange(12)):
        legal = [token_id for token_id in range(EOS) if matcher.allows(token_id)]
        if not legal:
            break
        path.append(choose.choice(legal))
        assert matcher.accept(path[-1])
    parents = tuple(choose.randrange(node + 1) for node in range(10))
    tokens = tuple(choose.randrange(VOCAB) if choose.random() < 0.3 else choose.randrange(100) for _ in parents)
    found = HostTree(tokens, parents, (0.5,) * len(parents))
    limits = LookupLimits(most, most)
    tree = guided_tree(matcher, foretell(matcher, 0.8, limits), found, limits)
    assert tree.num_draft_tokens <= most
    assert len(set(zip(tree.parents, tree.tokens, strict=True))) == tree.num_draft_tokens
    for node in range(1, tree.num_draft_tokens + 1):
        down = []
        while node:
            down.append(tree.tokens[node - 1])
            assert tree.parents[node - 1] < node
            node = tree.parents[node - 1]
        fresh = matcher_of(guided)
        assert all(fresh.accept(token_id) for token_id in (*path, *reversed(down)))
    assert matcher.legal_chain() == _after(guided, path).legal_chain()


def _after(guided: GuidedParams, path: list[int]) -> Matcher:
    matcher = matcher_of(guided)
    assert all(matcher.accept(token_id) for token_id in path)
    return matcher


def test_illegal_looked_up_nodes_go_with_what_is_below_them() -> None:
    ids = {text: token_id for token_id, text in reversed(list(enumerate(VOCABULARY)))}
    found = HostTree((ids[b"Z"], ids[b"a"], ids[b"b"], ids[b"b"]), (0, 1, 0, 3), (0.5, 0.4, 0.3, 0.2))
    matcher = matcher_of(GuidedParams(regex="[ab]{2}x"))
    tree = guided_tree(matcher, [], found, LIMITS)
    assert (tree.tokens, tree.parents) == ((ids[b"b"], ids[b"b"]), (0, 1))
    assert guided_tree(matcher, [], NO_NODES, LIMITS) is NO_NODES


def test_the_rate_follows_what_is_seen() -> None:
    rate = ForetoldRate()
    first = rate.rate
    for _ in range(200):
        rate.observe(False)
    assert rate.rate < 0.1 < first
    for _ in range(200):
        rate.observe(True)
    assert rate.rate > 0.9


def test_foretold_tokens_are_accepted_and_off_has_none() -> None:
    for mode, some in (("off", False), ("chain:3", True)):
        engine = guided_engine(TinySettings(mode, num_blocks=400))
        outputs = run_jobs(engine, JOBS[:1])
        figures = outputs["0"].outputs[0].speculation
        assert (figures.num_lookup_tokens > 0) == some
        assert (figures.num_accepted_lookup_tokens > 0) == some
        assert engine.clock.seconds["grammar"] > 0
