"""Native lookup proposes what the Python definition does, node for node and bit for bit."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aquiline.engine.host_tree import HostTree
from aquiline.engine.lookup import Lookup, LookupIndex
from aquiline.engine.lookup_native import NativeLookup, new_lookup
from aquiline.engine.row_worth import RowCosts, RowWorth, StepBase
from aquiline.kernels import cpu
from aquiline.request import Request, SamplingParams

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason=cpu.why_not())

COSTS = (
    RowCosts(),
    RowCosts(lambda num_rows: 1.0 + (num_rows - 1) // 4),
    RowCosts(lambda num_rows: 5.0 + 0.01 * num_rows),
)
TREE_TIMES = st.sampled_from((0.0, 0.5))


@dataclass
class Player:
    """Plays the same requests to one index."""

    index: LookupIndex
    requests: dict[str, Request] = field(default_factory=dict)

    def step(
        self, grown: dict[str, list[int]], max_draft_tokens: int, worth: RowWorth
    ) -> tuple[list[HostTree], float, bool]:
        requests, depths = [], []
        for name, tokens in grown.items():
            request = self.requests.setdefault(
                name, Request(name, tuple(tokens), SamplingParams(temperature=float(name == "b")), seed=0)
            )
            if request.num_tokens > len(tokens) or request.token_ids != tokens:
                request.token_ids += tokens
            requests.append(request)
            depths.append(request.num_tokens % 5)
        least = worth.least_survival
        may_find = self.index.read(requests, least)
        trees = self.index.propose(requests, depths, max_draft_tokens, worth)
        assert may_find or not any(tree.num_draft_tokens for tree in trees)
        return trees, worth.base.expected_tokens, may_find

    def end(self, name: str) -> None:
        self.index.forget(self.requests.pop(name))


@st.composite
def steps(draw: st.DrawFn) -> list[dict[str, list[int]]]:
    """New tokens by request; a name that is missing after it was there has ended."""
    tokens = st.lists(st.integers(0, draw(st.integers(0, 4))), min_size=1, max_size=draw(st.sampled_from((1, 3, 12))))
    names = st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True)
    return [{name: draw(tokens) for name in draw(names)} for _ in range(draw(st.integers(1, 14)))]


@settings(max_examples=300, deadline=None)
@given(
    steps(),
    st.sampled_from((0, 0, 8, 40)),
    st.integers(1, 6),
    st.sampled_from(range(len(COSTS) + 1)),
    st.sampled_from((0.0, 0.5)),
)
def test_native_lookup_proposes_the_same(
    work: list[dict[str, list[int]]], history_tokens: int, max_draft_tokens: int, costs: int, tree_time: float
) -> None:
    players = [Player(Lookup(history_tokens)), Player(NativeLookup(history_tokens))]
    for grown in work:
        found = []
        for player in players:
            for name in sorted(set(player.requests) - set(grown)):
                player.end(name)
            base = StepBase(len(grown), float(len(grown)), 0.25)
            worth = RowWorth(base, COSTS[min(costs, len(COSTS) - 1)], costs == len(COSTS), tree_time)
            found.append(player.step(grown, max_draft_tokens, worth))
        assert found[0] == found[1]
        assert players[0].index.num_requests == players[1].index.num_requests == len(grown)


@pytest.mark.parametrize("vocabulary", [1, 2, 9, 500])
def test_long_texts_agree_too(vocabulary: int) -> None:
    """States with many followers, splits of them, and classes of rates that have seen much."""
    rng = random.Random(vocabulary)
    players = [Player(Lookup(600)), Player(NativeLookup(600))]
    source = [rng.randrange(vocabulary) for _ in range(300)]
    num_nodes = 0
    for turn in range(3):
        for _ in range(150):
            start = rng.randrange(len(source))
            tokens = [*source[start : start + rng.randrange(1, 9)], rng.randrange(vocabulary)]
            worths = [RowWorth(StepBase(1, 1.0), COSTS[turn]) for _ in players]
            found = [p.step({"it": list(tokens)}, 8, worth) for p, worth in zip(players, worths, strict=True)]
            assert found[0] == found[1]
            num_nodes += found[0][0][0].num_draft_tokens
        for player in players:
            player.end("it")
    assert num_nodes > 300


def test_memory_is_bounded_by_the_text() -> None:
    """The bounds that the class states: 2 states of 24 bytes and 3 transitions of 24, and as much again in reserve."""
    rng = random.Random(1)
    texts = [[rng.randrange(size) for _ in range(4000)] for size in (1, 2, 3, 300, 10**6)] + [list(range(4000))]
    for text in texts:
        lookup = NativeLookup()
        request = Request("it", tuple(text), SamplingParams(), seed=0)
        lookup.propose([request], [4], 4, RowWorth(StepBase(1, 1.0), RowCosts()))
        assert 0 < lookup.num_bytes <= 2 * (2 * 24 + 3 * 24) * len(text)
        lookup.forget(request)
        assert lookup.num_bytes == 0 and lookup.num_requests == 0


def test_an_engine_gets_the_native_index_where_there_is_one() -> None:
    assert isinstance(new_lookup(0), NativeLookup)
