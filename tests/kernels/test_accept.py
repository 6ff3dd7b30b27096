from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from aquiline.kernels.reference import accept
from aquiline.kernels.reference.accept import MultiRoundPaths, accept_keyed, accept_multi_round, draw_children
from aquiline.kernels.reference.noise import gumbel, mix_key
from tests.kernels.chi_square import REJECTION_LEVEL, histogram, p_value

REJECT = 2.0
FIRST_PAIR = ([0.5, 0.3, 0.15, 0.05], [0.2, 0.5, 0.2, 0.1])
SECOND_PAIR = ([0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4])


# Node numbers of the tree below: root 0 with children 1 and 2, then 3 and 4 under 1, and 5 under 2.
PARENTS = [-1, 0, 0, 1, 1, 2]
TOKENS = [9, 4, 7, 7, 8, 4]

WALKS = {
    "nothing_accepted": ([3, 0, 0, 0, 0, 0], [-1, -1], 3),
    "one_accepted": ([4, 6, 0, 0, 0, 0], [1, -1], 6),
    "to_a_leaf": ([4, 8, 0, 0, 5, 0], [1, 4], 5),
    "second_branch": ([7, 0, 4, 0, 0, 2], [2, 5], 2),
    "a_match_under_another_parent_does_not_count": ([8, 0, 0, 0, 0, 0], [-1, -1], 8),
}


@pytest.mark.parametrize("case", WALKS)
def test_keyed_walk(case: str) -> None:
    drawn, nodes, bonus = WALKS[case]
    paths = accept_keyed(torch.tensor([TOKENS]), torch.tensor([PARENTS]), torch.tensor([drawn]), 2)
    assert paths.nodes.tolist() == [nodes]
    assert paths.num_accepted.tolist() == [sum(node >= 0 for node in nodes)]
    assert paths.bonus.tolist() == [bonus]


def test_keyed_walk_takes_the_lowest_of_equal_siblings() -> None:
    tokens, parents = torch.tensor([[0, 5, 5, 1, 2]]), torch.tensor([[-1, 0, 0, 1, 2]])
    paths = accept_keyed(tokens, parents, torch.tensor([[5, 2, 2, 0, 0]]), 2)
    assert paths.nodes.tolist() == [[1, -1]]


def test_keyed_walk_never_enters_an_unused_node() -> None:
    tokens, parents = torch.tensor([[1, 1, 1]]), torch.tensor([[-1, -1, -1]])
    paths = accept_keyed(tokens, parents, torch.tensor([[1, 1, 1]]), 2)
    assert paths.nodes.tolist() == [[-1, -1]] and paths.bonus.tolist() == [1]


def test_keyed_walk_without_levels() -> None:
    paths = accept_keyed(torch.tensor([[3], [4]]), torch.tensor([[-1], [-1]]), torch.tensor([[6], [8]]), 0)
    assert paths.nodes.shape == (2, 0) and paths.num_accepted.tolist() == [0, 0] and paths.bonus.tolist() == [6, 8]


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    num_nodes = draw(st.integers(1, 9))
    parents = [-1] + [draw(st.integers(-1, node - 1)) for node in range(1, num_nodes)]
    token = st.lists(st.integers(0, 2), min_size=num_nodes, max_size=num_nodes)
    return parents, draw(token), draw(token)


@given(batch=st.lists(trees(), min_size=1, max_size=4))
def test_keyed_walk_equals_a_plain_walk(batch: list[tuple[list[int], list[int], list[int]]]) -> None:
    num_nodes = max(len(parents) for parents, _, _ in batch)
    columns = [
        torch.tensor([row[part] + [-1 if part == 0 else 1] * (num_nodes - len(row[part])) for row in batch])
        for part in range(3)
    ]
    paths = accept_keyed(columns[1], columns[0], columns[2], num_nodes - 1)
    for i, (parents, tokens, drawn) in enumerate(batch):
        node, expected = 0, []
        while True:
            children = [c for c, parent in enumerate(parents) if parent == node and tokens[c] == drawn[node]]
            if not children:
                break
            node = children[0]
            expected.append(node)
        assert paths.nodes[i].tolist() == expected + [-1] * (num_nodes - 1 - len(expected))
        assert paths.num_accepted[i] == len(expected)
        assert paths.bonus[i] == drawn[node]


@dataclass(frozen=True)
class OneNode:
    """The outcome of one node with children, over everything the draft may draw."""

    acceptance: float
    law: list[float]


def draw_orders(draft: list[float], num_children: int) -> tuple[list[tuple[int, ...]], list[float]]:
    """Every sequence of draws without replacement, and its probability; exhausted drafts are filled with other ids."""
    orders, chances = [], []
    for order in itertools.permutations(range(len(draft)), num_children):
        chance, left = 1.0, sum(draft)
        for token in order:
            if left > 1e-12:
                chance *= draft[token] / left
            left -= draft[token]
        if chance > 0:
            orders.append(order)
            chances.append(chance)
    # Fillers after the support is used up may come in any order; count each such draw once.
    seen: dict[tuple[int, ...], int] = {}
    for i, order in enumerate(orders):
        seen.setdefault(tuple(token for token in order if draft[token] > 0), i)
    return [orders[i] for i in seen.values()], [chances[i] for i in seen.values()]


def verify_one_node(target: list[float], draft: list[float], orders: list[tuple[int, ...]]) -> MultiRoundPaths:
    """Run the rule on one tree per order, with every child rejected, so that all rounds take place."""
    num_reqs, num_children = len(orders), len(orders[0])
    tokens = torch.tensor([[0, *order] for order in orders])
    parents = torch.tensor([[-1] + [0] * num_children] * num_reqs)
    node_rows = torch.zeros(num_reqs, num_children + 1, dtype=torch.int64)
    draft_log_probs = torch.tensor(draft).log().expand(num_reqs, num_children + 1, -1)
    uniforms = torch.full((num_reqs, 1, num_children), REJECT)
    return accept_multi_round(tokens, parents, node_rows, torch.tensor([target]), draft_log_probs, uniforms)


def enumerate_node(target: list[float], draft: list[float], num_children: int) -> OneNode:
    orders, chances = draw_orders(draft, num_children)
    paths = verify_one_node(target, draft, orders)
    law = torch.zeros(len(target), dtype=torch.float64)
    total = 0.0
    for i, (order, chance) in enumerate(zip(orders, chances, strict=True)):
        for rank, token in enumerate(order):
            accepted = chance * float(paths.acceptance[i, 0, rank])
            law[token] += accepted
            total += accepted
            chance -= accepted
        law += chance * paths.last_probs[i].double()
    return OneNode(total, law.tolist())


@pytest.mark.parametrize(
    ("pair", "num_children", "acceptance"),
    [
        (FIRST_PAIR, 1, 0.7),
        (FIRST_PAIR, 2, 2893 / 3600),
        (FIRST_PAIR, 3, 23099 / 25200),
        (SECOND_PAIR, 1, 0.6),
        (SECOND_PAIR, 2, 107 / 140),
        (SECOND_PAIR, 3, 14117 / 16800),
    ],
    ids=["first1", "first2", "first3", "second1", "second2", "second3"],
)
def test_multi_round_acceptance_and_law(
    pair: tuple[list[float], list[float]], num_children: int, acceptance: float
) -> None:
    outcome = enumerate_node(*pair, num_children)
    assert outcome.acceptance == pytest.approx(acceptance, abs=1e-5)
    assert outcome.law == pytest.approx(pair[0], abs=1e-5)


def zero_the_rejected_token_only(target: Tensor, draft: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    residual = target.scatter(1, token, 0.0)
    remaining = draft.scatter(1, token, 0.0)
    return residual / residual.sum(dim=1, keepdim=True), remaining / remaining.sum(dim=1, keepdim=True)


def keep_the_original_draft(target: Tensor, draft: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    residual = (target - draft).clamp(min=0.0)
    return residual / residual.sum(dim=1, keepdim=True).clamp(min=1e-9), draft


WRONG_RULES: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]], list[float]]] = {
    "zero_the_rejected_token_only": (zero_the_rejected_token_only, [0.23741, 0.38342, 0.26667, 0.1125]),
    "keep_the_original_draft": (keep_the_original_draft, [0.35663, 0.34337, 0.2, 0.1]),
}


@pytest.mark.parametrize("name", WRONG_RULES)
def test_negative_controls_have_the_wrong_law(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rule, law = WRONG_RULES[name]
    monkeypatch.setattr(accept, "after_rejection", rule)
    assert enumerate_node(*SECOND_PAIR, 2).law == pytest.approx(law, abs=1e-5)


@st.composite
def laws(draw: st.DrawFn) -> list[float]:
    weights = draw(st.lists(st.integers(0, 6), min_size=4, max_size=4).filter(any))
    return [weight / sum(weights) for weight in weights]


@settings(deadline=None, max_examples=150)
@given(target=laws(), draft=laws(), num_children=st.integers(1, 4))
def test_multi_round_law_is_the_target_for_any_pair(target: list[float], draft: list[float], num_children: int) -> None:
    """Zeros included: the draft may miss tokens of the target and propose impossible ones."""
    assert enumerate_node(target, draft, num_children).law == pytest.approx(target, abs=2e-5)


def test_multi_round_law_with_a_reduced_draft_vocabulary() -> None:
    """Draft ids 0 and 1 are the target's ids 3 and 1; the rest comes from the residual."""
    target, ids = [0.4, 0.3, 0.2, 0.1], torch.tensor([3, 1])
    draft = torch.tensor([0.75, 0.25])
    law = torch.zeros(4)
    for order, chance in (((0, 1), 0.75), ((1, 0), 0.25)):
        tokens = torch.tensor([[0, *ids[list(order)].tolist()]])
        paths = accept_multi_round(
            tokens,
            torch.tensor([[-1, 0, 0]]),
            torch.zeros(1, 3, dtype=torch.int64),
            torch.tensor([target]),
            draft.log().expand(1, 3, 2),
            torch.full((1, 1, 2), REJECT),
            ids,
        )
        left = chance
        for rank in range(2):
            accepted = left * paths.acceptance[0, 0, rank]
            law[tokens[0, rank + 1]] += accepted
            left = left - float(accepted)
        law += left * paths.last_probs[0]
    assert law.tolist() == pytest.approx(target, abs=1e-6)


def random_step(num_reqs: int, vocab: int, seed: int) -> tuple[Tensor, ...]:
    """Trees of two children and two grandchildren each, with random laws: the arguments of `accept_multi_round`."""
    generator = torch.Generator().manual_seed(seed)
    parents = torch.tensor([-1, 0, 0, 1, 1, 2, 2]).expand(num_reqs, -1)
    log_probs = torch.randn(num_reqs, 7, vocab, generator=generator).log_softmax(dim=2)
    tokens = torch.randint(0, vocab, (num_reqs, 7), generator=generator)
    target = torch.randn(num_reqs * 7, vocab, generator=generator).softmax(dim=1)
    uniforms = torch.rand(num_reqs, 2, 2, generator=generator)
    return tokens, parents, torch.arange(num_reqs * 7).view(num_reqs, 7), target, log_probs, uniforms


@pytest.mark.parametrize("vocab", [37, 50, 40_000])
def test_multi_round_does_not_depend_on_the_requests_beside_it(vocab: int) -> None:
    tokens, parents, node_rows, target, log_probs, uniforms = random_step(5, vocab, seed=vocab)
    together = accept_multi_round(tokens, parents, node_rows, target, log_probs, uniforms)
    for i in range(5):
        one = slice(i, i + 1)
        alone = accept_multi_round(
            tokens[one], parents[one], node_rows[:1], target[7 * i : 7 * i + 7], log_probs[one], uniforms[one]
        )
        assert torch.equal(alone.nodes[0], together.nodes[i])
        assert torch.equal(alone.last_probs[0], together.last_probs[i])
        assert torch.equal(alone.acceptance[0], together.acceptance[i])


def plain_multi_round(target: Tensor, draft: Tensor, tokens: list[int], uniforms: Tensor) -> tuple[list[int], Tensor]:
    """The rule as written in the papers, on `random_step`'s tree; distributions in float64."""
    children = {0: [1, 2], 1: [3, 4], 2: [5, 6]}
    node = 0
    path: list[int] = []
    while True:
        p, q = target[node].double(), draft[node].double()
        for rank, child in enumerate(children.get(node, [])):
            x = tokens[child]
            if uniforms[len(path), rank] * q[x] < p[x]:
                path.append(child)
                break
            p = (p - q).clamp(min=0)
            p = p / p.sum()
            q[x] = 0
            q = q / q.sum()
        else:
            return path, p
        node = path[-1]


def test_multi_round_equals_a_plain_walk_on_two_levels() -> None:
    tokens, parents, node_rows, target, log_probs, uniforms = random_step(300, 6, seed=4)
    # Without replacement siblings differ.
    tokens[:, [2, 4, 6]] = (tokens[:, [1, 3, 5]] + 1) % 6
    paths = accept_multi_round(tokens, parents, node_rows, target, log_probs, uniforms)
    assert set(paths.num_accepted.tolist()) == {0, 1, 2}
    for i in range(300):
        path, last = plain_multi_round(target[node_rows[i]], log_probs[i].exp(), tokens[i].tolist(), uniforms[i])
        assert paths.nodes[i].tolist() == path + [-1] * (2 - len(path))
        assert torch.allclose(paths.last_probs[i].double(), last, atol=1e-5)


def test_garbage_at_nodes_without_children_does_not_leak() -> None:
    tokens, parents, node_rows, target, log_probs, uniforms = random_step(20, 6, seed=5)
    clean = accept_multi_round(tokens, parents, node_rows, target, log_probs, uniforms)
    log_probs[:, 3:] = torch.nan
    poisoned = accept_multi_round(tokens, parents, node_rows, target, log_probs, uniforms)
    assert torch.equal(clean.nodes, poisoned.nodes) and torch.equal(clean.last_probs, poisoned.last_probs)


def test_equal_laws_accept_the_first_child_always() -> None:
    law = [0.1, 0.2, 0.3, 0.4]
    assert verify_one_node(law, law, [(0, 1), (3, 2)]).acceptance[:, 0, 0].tolist() == [1.0, 1.0]


def test_children_come_in_draw_order() -> None:
    """Sequences of two children follow the law of drawing without replacement."""
    num_draws = 100_000
    draft = [0.5, 0.3, 0.15, 0.05]
    zeros = torch.zeros(num_draws, dtype=torch.int64)
    noise = gumbel(mix_key(torch.arange(num_draws), zeros, zeros, 1), torch.arange(4))
    children = draw_children(torch.tensor(draft).log().expand(num_draws, -1), noise, 2)
    orders, chances = draw_orders(draft, 2)
    probs = torch.zeros(4, 4)
    for (first, second), chance in zip(orders, chances, strict=True):
        probs[first, second] = chance
    assert p_value(histogram(children[:, 0] * 4 + children[:, 1], 16), probs) > REJECTION_LEVEL
    assert p_value(histogram(children[:, 1] * 4 + children[:, 0], 16), probs) < REJECTION_LEVEL
