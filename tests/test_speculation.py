from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aquiline.errors import InvalidParameterError
from aquiline.speculation import (
    FORMS,
    MAX_DEPTH,
    MAX_DRAFT_TOKENS,
    NO_TREE,
    DynamicTree,
    StaticTree,
    chain,
    parse_speculation,
    spelt,
    tree_from_branching,
    tree_from_paths,
)

# Closed under parents and elder siblings: each new node is the next child of a node already there.
GROWING = st.lists(st.integers(0, 10**6), max_size=24)


def grown_paths(choices: list[int]) -> list[tuple[int, ...]]:
    """A valid set of paths: choice i picks the node that gets its next child."""
    nodes: list[tuple[int, ...]] = [()]
    num_children: dict[tuple[int, ...], int] = {(): 0}
    for choice in choices:
        parent = nodes[choice % len(nodes)]
        child = (*parent, num_children[parent])
        num_children[parent] += 1
        num_children[child] = 0
        nodes.append(child)
    return nodes[1:]


def paths_of(tree: StaticTree) -> list[tuple[int, ...]]:
    """Every node below the root as its child ranks from the root."""
    paths: list[tuple[int, ...]] = [()]
    for parent, rank in zip(tree.parents[1:], tree.ranks[1:], strict=True):
        paths.append((*paths[parent], rank))
    return paths[1:]


def test_the_worked_example() -> None:
    tree = parse_speculation("tree:2x1").shape
    assert isinstance(tree, StaticTree)
    assert tree.parents == (-1, 0, 0, 1, 2)
    assert tree.depths == (0, 1, 1, 2, 2)
    assert tree.ranks == (0, 0, 1, 0, 0)
    assert tree.levels == ((0,), (1, 2), (3, 4))
    assert (tree.depth, tree.num_draft_tokens) == (2, 4)


@given(GROWING.map(grown_paths).flatmap(st.permutations))
def test_a_tree_is_its_paths_in_any_order(paths: list[tuple[int, ...]]) -> None:
    assert paths_of(tree_from_paths(paths)) == sorted(paths, key=lambda path: (len(path), path))


@given(GROWING)
def test_parents_come_before_children_and_levels_partition_the_nodes(choices: list[int]) -> None:
    tree = tree_from_paths(grown_paths(choices))
    assert all(parent < node for node, parent in enumerate(tree.parents))
    assert list(tree.depths) == sorted(tree.depths)
    assert [node for level in tree.levels for node in level] == list(range(len(choices) + 1))


@given(GROWING, st.integers(0, 30))
def test_a_truncated_tree_is_a_tree_within_the_budget(choices: list[int], budget: int) -> None:
    tree = tree_from_paths(grown_paths(choices))
    small = tree.truncated(budget)
    assert small.num_draft_tokens == min(budget, tree.num_draft_tokens)
    assert paths_of(small) == paths_of(tree)[:budget]
    assert tree_from_paths(paths_of(small)) == small


@given(st.lists(st.integers(1, 3), max_size=4))
def test_a_full_tree_is_the_paths_of_its_branching(branching: list[int]) -> None:
    tree = tree_from_branching(branching)
    level: list[tuple[int, ...]] = [()]
    expected = []
    for width in branching:
        level = [(*path, rank) for path in level for rank in range(width)]
        expected += level
    assert paths_of(tree) == expected


def test_a_chain_is_a_tree_of_width_one() -> None:
    assert chain(3) == tree_from_branching([1, 1, 1]) == parse_speculation("chain:3").shape
    assert chain(0) == NO_TREE == tree_from_paths([])


def test_off_and_auto_have_no_shape() -> None:
    off, auto = parse_speculation("off"), parse_speculation("auto")
    assert (off.is_off, off.is_auto, off.shape) == (True, False, None)
    assert (auto.is_off, auto.is_auto, auto.shape) == (False, True, None)


def test_dynamic_fills_in_what_is_not_given() -> None:
    assert parse_speculation("dynamic:steps=3,topk=2,nodes=9").shape == DynamicTree(3, 2, 9)
    assert parse_speculation("dynamic:nodes=9").shape == DynamicTree(5, 4, 9)
    sparse = parse_speculation("dynamic:survival=0.1,steps=3,topk=2,nodes=9").shape
    assert isinstance(sparse, DynamicTree) and sparse == DynamicTree(3, 2, 9, 0.1)
    assert sparse.truncated(2) == DynamicTree(2, 2, 2, 0.1)
    assert parse_speculation("dynamic:nodes=9,survival=0").shape == DynamicTree(5, 4, 9)


@given(st.integers(1, 8), st.integers(1, 6), st.integers(1, 40), st.integers(1, 40))
def test_a_truncated_dynamic_tree_can_still_be_grown(steps: int, topk: int, nodes: int, budget: int) -> None:
    most = topk + (steps - 1) * topk**2
    tree = DynamicTree(steps, topk, min(nodes, most))
    small = tree.truncated(budget)
    assert small.num_draft_tokens == min(budget, tree.num_draft_tokens)
    assert 1 <= small.depth <= tree.depth
    assert small.num_draft_tokens <= small.topk + (small.steps - 1) * small.topk**2


@pytest.mark.parametrize("form", re.split(r", (?=\D)| or ", FORMS))
def test_every_form_in_the_message_is_accepted(form: str) -> None:
    assert parse_speculation(form).text == form


def test_the_largest_shapes_are_accepted() -> None:
    assert parse_speculation(f"chain:{MAX_DEPTH}").shape == chain(MAX_DEPTH)
    assert parse_speculation(f"tree:{MAX_DRAFT_TOKENS}").shape == tree_from_branching([MAX_DRAFT_TOKENS])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "on",
        "OFF",
        "chain",
        "chain:",
        "chain:0",
        "chain:-1",
        "chain:1.5",
        "chain: 4",
        "chain:\u0664",
        f"chain:{MAX_DEPTH + 1}",
        "chain:99999999999999999999",
        "tree:",
        "tree:4x",
        "tree:4x0",
        "tree:16x16",
        f"tree:{MAX_DRAFT_TOKENS + 1}",
        "tree:" + "x".join("1" * (MAX_DEPTH + 1)),
        "paths:",
        "paths:0,0",
        "paths:00",
        "paths:1",
        "paths:0,02",
        "paths:0,a",
        "paths:0,,1",
        "paths:" + ",".join("0" * length for length in range(1, MAX_DEPTH + 2)),
        "dynamic:",
        "dynamic:steps",
        "dynamic:steps=0",
        "dynamic:steps=2,steps=3",
        "dynamic:depth=2",
        "dynamic:steps=1,topk=2,nodes=3",
        "dynamic:topk=33",
        "dynamic:survival=",
        "dynamic:survival=1",
        "dynamic:survival=1.5",
        "dynamic:survival=-0.1",
        "dynamic:survival=nan",
        "dynamic:survival=0.1,survival=0.2",
        "eagle:4",
    ],
)
def test_anything_else_is_refused_with_what_was_given(text: str) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        parse_speculation(text)
    assert str(caught.value).startswith(f"--speculate is {text!r}")
    assert "\n" not in str(caught.value)


@given(st.text(max_size=20) | st.from_regex(r"(chain|tree|paths|dynamic):[0-9x,=a-z]{0,12}", fullmatch=True))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        mode = parse_speculation(text)
    except InvalidParameterError:
        return
    if mode.shape is not None:
        assert 1 <= mode.shape.num_draft_tokens <= MAX_DRAFT_TOKENS
        assert 1 <= mode.shape.depth <= MAX_DEPTH


@pytest.mark.parametrize("survival", ["0.1", "0.03", "0.00001", "0.123456789", "0.000000000001", "0.999999999999"])
def test_dynamic_shapes_are_spelt_as_they_are_typed(survival: str) -> None:
    text = f"dynamic:steps=4,topk=3,nodes=8,survival={survival}"
    shape = parse_speculation(text).shape
    assert isinstance(shape, DynamicTree)
    assert spelt(shape) == text
    assert parse_speculation(spelt(shape)).shape == shape
