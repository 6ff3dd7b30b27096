"""One tree of what was grown and what is known: the same set of paths, whichever way they are merged."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aquiline.engine.host_tree import NO_NODES, HostTree
from aquiline.engine.inputs import StepLayout
from aquiline.engine.schedule import ScheduledBatch, ScheduledRequest
from aquiline.engine.tree import DraftTree, joined_trees
from aquiline.engine.tree_merger import TreeMerger
from aquiline.request import Request, SamplingParams
from aquiline.speculation import chain

CPU = torch.device("cpu")
ON_HOST, ON_DEVICE = TreeMerger(CPU, is_host_memory=True), TreeMerger(CPU, is_host_memory=False)
Paths = set[tuple[int, ...]]


@st.composite
def host_trees(draw: st.DrawFn, max_nodes: int = 6) -> HostTree:
    tokens: list[int] = []
    parents: list[int] = []
    for _ in range(draw(st.integers(0, max_nodes))):
        token_id, parent = draw(st.integers(0, 2)), draw(st.integers(0, len(tokens)))
        if (parent, token_id) not in set(zip(parents, tokens, strict=True)):
            tokens.append(token_id)
            parents.append(parent)
    return HostTree(tuple(tokens), tuple(parents), (0.5,) * len(tokens))


def as_draft_tree(trees: list[HostTree], is_ragged: bool) -> DraftTree:
    """Trees of any shape as a draft model would hand them over, roots 50, 51 and so on."""
    width = 1 + max(tree.num_draft_tokens for tree in trees)
    tokens = torch.zeros(len(trees), width, dtype=torch.long)
    parents = torch.full((len(trees), width), -1)
    depths = torch.ones(len(trees), width, dtype=torch.long)
    for index, tree in enumerate(trees):
        count = 1 + tree.num_draft_tokens
        tokens[index, :count] = torch.tensor([50 + index, *tree.tokens])
        parents[index, :count] = torch.tensor([-1, *tree.parents])
        depths[index, :count] = torch.tensor([0, *tree.depths])
    is_valid = parents >= 0
    is_valid[:, 0] = True
    row_counts = tuple(1 + tree.num_draft_tokens for tree in trees)
    deepest = max(tree.depth for tree in trees)
    return DraftTree(tokens, parents, depths, is_valid, deepest, width, row_counts if is_ragged else None)


def step_of(known: list[HostTree], num_growing: int) -> StepLayout:
    scheduled = []
    for index, tree in enumerate(known):
        request = Request(str(index), (1, 50 + index), SamplingParams(), seed=0, row=index)
        request.num_computed_tokens = 1
        scheduled.append(ScheduledRequest(request, 1, True, 9, 9 if index < num_growing else 0, tree))
    return StepLayout.of(ScheduledBatch(tuple(scheduled), chain(1), ()), 1)


def paths_of(tree: DraftTree, index: int, first: int = 1) -> Paths:
    """Tokens down to every node from number `first` on; two nodes never have the same."""
    parents, tokens = tree.parents[index].tolist(), tree.tokens[index].tolist()
    path: dict[int, tuple[int, ...]] = {0: ()}
    found = []
    for node in range(1, tree.num_nodes):
        assert bool(tree.is_valid[index, node]) == (parents[node] >= 0)
        if parents[node] >= 0:
            assert parents[node] < node
            path[node] = (*path[parents[node]], tokens[node])
            assert int(tree.depths[index, node]) == len(path[node]) <= tree.max_depth
            found.append((node, path[node]))
    assert len({own for _, own in found}) == len(found)
    return {own for node, own in found if node >= first}


def host_paths(tree: HostTree) -> Paths:
    known: list[tuple[int, ...]] = [()]
    for token_id, parent in zip(tree.tokens, tree.parents, strict=True):
        known.append((*known[parent], token_id))
    return set(known[1:])


@given(st.lists(host_trees(), min_size=1, max_size=4), st.data())
def test_the_merged_tree_holds_both_and_nothing_twice(known: list[HostTree], data: st.DataObject) -> None:
    num_growing = data.draw(st.integers(0, len(known)))
    grown_trees = [data.draw(host_trees()) for _ in range(num_growing)]
    step = step_of(known, num_growing)
    grown = as_draft_tree(grown_trees, data.draw(st.booleans())) if grown_trees else None
    for merger in (ON_HOST, ON_DEVICE):
        tree = merger.merge(step, grown)
        if not any(own.num_draft_tokens for own in known):
            assert tree is grown
            continue
        assert tree is not None and tree.grown_counts is not None
        laid_out = step.with_tree(tree)
        for index, own in enumerate(known):
            of_draft = host_paths(grown_trees[index]) if index < num_growing else set()
            assert int(tree.tokens[index, 0]) == 50 + index
            assert paths_of(tree, index) == of_draft | host_paths(own)
            assert paths_of(tree, index, tree.grown_counts[index]) == host_paths(own) - of_draft
            last = max(node for node in range(tree.num_nodes) if tree.is_valid[index, node])
            assert last < laid_out.num_rows(step.tree_requests[index])


def test_the_host_asks_for_no_row_that_holds_no_node() -> None:
    step = step_of([HostTree((1, 2), (0, 1), (0.5, 0.4)), NO_NODES], 2)
    grown = as_draft_tree([HostTree((1,), (0,), (1.0,)), HostTree((3,), (0,), (1.0,))], is_ragged=False)
    tree = ON_HOST.merge(step, grown)
    assert tree is not None
    assert tree.row_counts == (3, 2) and tree.grown_counts == (2, 2)
    assert tree.tokens.tolist() == [[50, 1, 2], [51, 3, 0]]


def test_what_the_draft_said_of_its_nodes_outlives_every_change() -> None:
    one = replace(
        as_draft_tree([HostTree((1, 2), (0, 1), (0.5, 0.4)), NO_NODES], is_ragged=True),
        survivals=((1.0, 0.5, 0.2), (1.0,)),
        level_rows=(2, 1),
    )
    other = replace(
        as_draft_tree([HostTree((3,), (0,), (1.0,))], is_ragged=True), survivals=((1.0, 0.7),), level_rows=(1, 1, 1)
    )
    joined = joined_trees([one, other])
    assert joined is not None
    assert joined.survivals == ((1.0, 0.5, 0.2), (1.0,), (1.0, 0.7))
    assert joined.level_rows == (3, 2, 1)
    assert joined.row_counts == tuple(map(len, joined.survivals))
    assert joined.with_bare_roots([7]).survivals == (*joined.survivals, (1.0,))
    silent = replace(other, survivals=None, level_rows=None)
    partly, unknown = joined_trees([one, silent]), joined_trees([silent, silent])
    assert partly is not None and unknown is not None
    assert partly.survivals == ((1.0, 0.5, 0.2), (1.0,), ()) and partly.level_rows is None
    assert unknown.survivals is None and unknown.level_rows is None

    step = step_of([HostTree((1, 4), (0, 1), (0.5, 0.4)), NO_NODES, NO_NODES, HostTree((5,), (0,), (0.5,))], 3)
    merged = ON_HOST.merge(step, joined)
    assert merged is not None
    assert merged.survivals == (*joined.survivals, (1.0,))
    assert merged.level_rows == (3, 2, 1)
    assert merged.grown_counts == (3, 1, 2, 1) and merged.row_counts == (4, 1, 2, 2)


@pytest.mark.parametrize("merger", [ON_HOST, ON_DEVICE], ids=["host", "device"])
def test_trees_that_a_request_may_not_have_whole_keep_their_gaps(merger: TreeMerger) -> None:
    """A node that was cut from the draft's tree is not there: the known one with its token is new."""
    grown = as_draft_tree([HostTree((1, 2), (0, 1), (1.0, 1.0))], is_ragged=False)
    cut = replace(grown, parents=torch.tensor([[-1, 0, -1]]), is_valid=torch.tensor([[True, True, False]]))
    tree = merger.merge(step_of([HostTree((1, 2), (0, 1), (0.5, 0.4))], 1), cut)
    assert tree is not None
    assert paths_of(tree, 0) == {(1,), (1, 2)}
