"""Growing trees with a draft that is a table, against a plain search over the same table."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from aquiline.engine.draft_inputs import DraftInputBuilder
from aquiline.engine.grow import GrowthContext, grow_dynamic_tree, grow_static_tree
from aquiline.engine.inputs import InputBuilder
from aquiline.engine.sample import Sampler
from aquiline.engine.sampling_inputs import SamplingInputs
from aquiline.engine.slots import SlotLayout
from aquiline.engine.tree import DraftTree
from aquiline.kernels.reference.sampling import LogitRules
from aquiline.models.eagle import DraftStates, EagleModel
from aquiline.models.kv_layer import KVLayer
from aquiline.models.llama import ForwardRows
from aquiline.request import Request, SamplingParams
from aquiline.speculation import DynamicTree, StaticTree, tree_from_paths
from tests.engine.strategies import Path, tree_paths

VOCAB = 13
DRAFT_VOCAB = 11
ROOT = 4  # position of every root
TO_TARGET = torch.tensor([0, 1, 3, 4, 5, 6, 7, 8, 9, 11, 12])


@dataclass
class TableDraft:
    """Logits depend on the newest token and on how deep it is; a hidden state carries both.

    Attributes:
        table: # [max_depth, vocab, draft_vocab]
        forwards: every forward it was asked for.
    """

    table: Tensor
    draft_to_target_ids: Tensor = field(default_factory=lambda: TO_TARGET)
    forwards: list[ForwardRows] = field(default_factory=list)

    def forward(self, rows: ForwardRows, hidden_states: Tensor, memory: list[KVLayer]) -> DraftStates:
        self.forwards.append(rows)
        depth = hidden_states[:, 0] + 1
        states = torch.stack((depth, rows.token_ids.float()), dim=1)
        return DraftStates(states, states)

    def logits(self, head_inputs: Tensor) -> Tensor:
        return self.table[head_inputs[:, 0].long(), head_inputs[:, 1].long()]


def table_draft(seed: int, max_depth: int = 6) -> TableDraft:
    generator = torch.Generator().manual_seed(seed)
    return TableDraft(torch.randn(max_depth, VOCAB, DRAFT_VOCAB, generator=generator))


LAYOUT = SlotLayout(num_blocks=4, block_size=8, max_num_seqs=4, scratch_per_row=40)


def growth_context(draft: TableDraft, roots: list[int], max_depths: list[int]) -> tuple[GrowthContext, DraftStates]:
    """Greedy requests with their roots at position ROOT."""
    num_reqs = len(roots)
    requests = []
    for index, root in enumerate(roots):
        request = Request(str(index), (0,) * ROOT, SamplingParams(), seed=0, row=index, block_ids=[index])
        request.token_ids.append(root)
        request.num_computed_tokens = ROOT
        requests.append(request)
    builder = DraftInputBuilder(LAYOUT, InputBuilder(LAYOUT, torch.device("cpu")))
    zeros = torch.zeros(num_reqs, dtype=torch.long)
    context = GrowthContext(
        model=cast(EagleModel, draft),
        memory=[],
        sampler=Sampler(VOCAB),
        sampling=SamplingInputs(LogitRules(), zeros, zeros, zeros + ROOT, any_greedy=True, max_logprobs=None),
        builder=builder,
        view=builder.prefix_view(requests, LAYOUT.scratch_per_row),
        root_tokens=torch.tensor(roots),
        max_depths=torch.tensor(max_depths),
    )
    states = torch.stack((torch.zeros(num_reqs), torch.tensor(roots).float()), dim=1)
    return context, DraftStates(states, states)


def best_children(draft: TableDraft, depth: int, token: int, count: int) -> list[tuple[int, float]]:
    """(target token, log-confidence) of the best children of a node."""
    log_probs = draft.table[depth, token].log_softmax(dim=-1)
    chosen = sorted(range(DRAFT_VOCAB), key=lambda column: -float(draft.table[depth, token, column]))[:count]
    return [(int(TO_TARGET[column]), float(log_probs[column])) for column in chosen]


def tokens_on_paths(tree: DraftTree, request: int) -> set[tuple[int, ...]]:
    """Token paths of all valid nodes below the root."""
    paths: list[tuple[int, ...]] = [()]
    for node in range(1, tree.num_nodes):
        parent = int(tree.parents[request, node])
        paths.append((*paths[parent], int(tree.tokens[request, node])) if tree.is_valid[request, node] else ())
    return set(paths) - {()}


@settings(max_examples=40, deadline=None)
@given(paths=tree_paths(max_nodes=10), seed=st.integers(0, 100))
def test_a_static_tree_holds_the_best_children_of_every_node(paths: list[Path], seed: int) -> None:
    shape, draft, roots = tree_from_paths(paths), table_draft(seed), [2, 8]
    tree = grow_static_tree(*_static(draft, roots, shape))
    assert tree.parents.tolist() == [list(shape.parents)] * 2
    assert tree.depths.tolist() == [list(shape.depths)] * 2
    assert tree.is_valid.all()
    assert (tree.max_depth, tree.max_children) == (shape.depth, max(shape.ranks) + 1)
    for request, root in enumerate(roots):
        assert tree.tokens[request, 0] == root
        for node in range(1, tree.num_nodes):
            parent = shape.parents[node]
            parent_token = int(tree.tokens[request, parent])
            best = best_children(draft, shape.depths[parent], parent_token, shape.ranks[node] + 1)
            assert int(tree.tokens[request, node]) == best[-1][0]
    assert len(draft.forwards) == shape.depth - 1


def _static(
    draft: TableDraft, roots: list[int], shape: StaticTree, max_depths: list[int] | None = None
) -> tuple[GrowthContext, StaticTree, DraftStates]:
    context, states = growth_context(draft, roots, max_depths or [shape.depth] * len(roots))
    return context, shape, states


@settings(max_examples=40, deadline=None)
@given(paths=tree_paths(max_nodes=10), seed=st.integers(0, 100))
def test_draft_nodes_have_places_of_their_own_and_know_their_ancestors(paths: list[Path], seed: int) -> None:
    shape, draft = tree_from_paths(paths), table_draft(seed)
    grow_static_tree(*_static(draft, [2, 8], shape))
    first = [LAYOUT.scratch_slot(row, 0) for row in range(2)]
    for level, rows in enumerate(draft.forwards, start=1):
        expanded = [node for node in shape.levels[level] if node in shape.parents]
        (group,) = rows.attention.groups
        assert group.path_slots is not None
        for request, (place, node) in itertools.product(range(2), enumerate(expanded)):
            path: list[int] = []
            while node > 0:
                path.insert(0, first[request] + node - 1)
                node = shape.parents[node]
            assert group.path_slots[request, place].tolist() == path
            assert rows.slots[request * len(expanded) + place] == path[-1]
        assert rows.positions.tolist() == [ROOT + level - 1] * (2 * len(expanded))


def test_nodes_below_a_requests_limit_are_cut_off() -> None:
    shape = tree_from_paths([(0,), (1,), (0, 0), (0, 0, 0)])
    tree = grow_static_tree(*_static(table_draft(3), [2, 8, 5], shape, [1, 3, 2]))
    assert tree.is_valid.tolist() == [
        [True, True, True, False, False],
        [True, True, True, True, True],
        [True, True, True, True, False],
    ]
    assert tree.parents.tolist() == [[-1, 0, 0, -1, -1], [-1, 0, 0, 1, 3], [-1, 0, 0, 1, -1]]


def expected_dynamic_tree(draft: TableDraft, root: int, shape: DynamicTree) -> set[tuple[int, ...]]:
    """EAGLE-2 by its definition: expand the topk most valuable nodes of a level, keep the most valuable of all."""
    values: dict[tuple[int, ...], float] = {}
    frontier: list[tuple[int, ...]] = [()]
    for depth in range(shape.steps):
        level = {}
        for path in frontier:
            token = path[-1] if path else root
            for child, log_confidence in best_children(draft, depth, token, shape.topk):
                level[(*path, child)] = values.get(path, 0.0) + log_confidence
        values |= level
        frontier = sorted(level, key=lambda path: -level[path])[: shape.topk]
    return set(sorted(values, key=lambda path: -values[path])[: shape.num_draft_tokens])


@settings(max_examples=60, deadline=None)
@given(steps=st.integers(1, 4), topk=st.integers(1, 4), seed=st.integers(0, 1000), data=st.data())
def test_a_dynamic_tree_keeps_the_most_valuable_nodes(steps: int, topk: int, seed: int, data: st.DataObject) -> None:
    most = topk + (steps - 1) * topk**2
    shape = DynamicTree(steps, topk, data.draw(st.integers(1, most)))
    draft, roots = table_draft(seed), [2, 8]
    context, states = growth_context(draft, roots, [steps] * 2)
    tree = grow_dynamic_tree(context, shape, states)
    assert tree.tokens[:, 0].tolist() == roots
    assert tree.num_nodes == shape.num_draft_tokens + 1
    assert (tree.max_depth, tree.max_children) == (min(steps, shape.num_draft_tokens), topk)
    for request, root in enumerate(roots):
        assert tokens_on_paths(tree, request) == expected_dynamic_tree(draft, root, shape)
        parents, depths = tree.parents[request].tolist(), tree.depths[request].tolist()
        assert parents[0] == -1
        assert all(parents[node] < node for node in range(1, tree.num_nodes))
        assert all(depths[node] == depths[parents[node]] + 1 for node in range(1, tree.num_nodes))
    assert len(draft.forwards) == steps - 1


@settings(max_examples=60, deadline=None)
@given(
    steps=st.integers(1, 4),
    least_survival=st.floats(1e-6, 0.9),
    limits=st.lists(st.integers(1, 5), min_size=2, max_size=2),
    num_nodes=st.integers(1, 30),
    seed=st.integers(0, 1000),
)
def test_what_is_kept_of_a_full_tree_is_likely(
    steps: int, least_survival: float, limits: list[int], num_nodes: int, seed: int
) -> None:
    topk, draft, roots = 3, table_draft(seed), [2, 8]
    full = DynamicTree(steps, topk, topk + (steps - 1) * topk**2)
    whole = grow_dynamic_tree(*_dynamic(draft, roots, [steps] * 2, full))
    shape = DynamicTree(steps, topk, min(num_nodes, full.num_draft_tokens), least_survival)
    tree = grow_dynamic_tree(*_dynamic(draft, roots, limits, shape))
    assert whole.survivals is not None and tree.survivals is not None and tree.row_counts is not None
    assert tree.num_nodes == max(tree.row_counts)
    for request, limit in enumerate(limits):
        survivals = list(zip(whole.survivals[request], whole.depths[request].tolist(), strict=True))
        likely = [survival for survival, depth in survivals[1:] if survival >= least_survival and depth <= limit]
        kept = tree.survivals[request]
        assert kept[0] == 1.0 and len(kept) == tree.row_counts[request]
        assert sorted(kept[1:], reverse=True) == sorted(likely, reverse=True)[: shape.num_draft_tokens]
        paths = tokens_on_paths(tree, request)
        assert len(paths) == len(kept) - 1
        assert paths <= tokens_on_paths(whole, request)


def _dynamic(
    draft: TableDraft, roots: list[int], max_depths: list[int], shape: DynamicTree
) -> tuple[GrowthContext, DynamicTree, DraftStates]:
    context, states = growth_context(draft, roots, max_depths)
    return context, shape, states


@pytest.mark.parametrize("num_nodes", [1, 4, 11])
def test_a_smaller_dynamic_tree_is_part_of_a_larger_one(num_nodes: int) -> None:
    grown = []
    for count in (num_nodes, num_nodes + 1):
        context, states = growth_context(table_draft(7), [2], [3])
        grown.append(tokens_on_paths(grow_dynamic_tree(context, DynamicTree(3, 3, count), states), 0))
    assert grown[0] < grown[1]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_logits_that_are_no_numbers_leave_no_node_without_its_parent(bad: float) -> None:
    draft = table_draft(3)
    draft.table[1:, ::2, 0] = bad
    context, states = growth_context(draft, [1, 2], [3, 3])
    tree = grow_dynamic_tree(context, DynamicTree(3, 3, 7), states)
    for parents, depths in zip(tree.parents.tolist(), tree.depths.tolist(), strict=True):
        assert all(depths[node] == depths[parents[node]] + 1 for node in range(1, tree.num_nodes))


def test_siblings_are_numbered_best_first() -> None:
    draft = table_draft(5)
    context, states = growth_context(draft, [2], [2])
    tree = grow_dynamic_tree(context, DynamicTree(2, 4, 12), states)
    for parent in range(tree.num_nodes):
        children = [int(tree.tokens[0, node]) for node in range(tree.num_nodes) if tree.parents[0, node] == parent]
        token = int(tree.tokens[0, parent])
        best = [child for child, _ in best_children(draft, int(tree.depths[0, parent]), token, 4)]
        assert children == best[: len(children)]


def test_frontier_nodes_use_places_of_their_own() -> None:
    draft = table_draft(11)
    context, states = growth_context(draft, [2, 8], [4, 4])
    grow_dynamic_tree(context, DynamicTree(4, 3, 20), states)
    for request in range(2):
        first = LAYOUT.scratch_slot(request, 0)
        used: list[int] = []
        for level, rows in enumerate(draft.forwards):
            (group,) = rows.attention.groups
            assert group.path_slots is not None
            own = rows.slots.view(2, 3)[request].tolist()
            assert own == [first + level * 3 + place for place in range(3)]
            for path in group.path_slots[request].tolist():
                assert path[-1] in own
                assert set(path[:-1]) <= set(used)
            used += own
