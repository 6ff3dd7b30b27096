"""The walk through drawn trees, natively: the paths of the reference."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from aquiline.errors import InvalidParameterError
from aquiline.kernels import cpu
from aquiline.kernels.cpu import Threads
from aquiline.kernels.reference.keyed_step import ReferenceSampling
from aquiline.kernels.reference.sampling import LogitRules
from aquiline.kernels.sampling_kernels import DrawnPaths, LogitRows, SamplingRequests

if cpu.is_available():
    from aquiline.kernels.cpu.sampling import NativeSampling

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason=cpu.why_not())
VOCAB = 3


@dataclass(frozen=True)
class Nodes:
    """`TreeNodes` as a record."""

    tokens: Tensor
    parents: Tensor
    max_depth: int


@dataclass(frozen=True)
class WalkCase:
    """Trees over so few tokens that many nodes match, and siblings share tokens."""

    requests: SamplingRequests
    rows: LogitRows
    tree: Nodes


@st.composite
def walk_cases(draw: st.DrawFn) -> WalkCase:
    num_reqs, num_nodes = draw(st.integers(1, 4)), draw(st.integers(1, 9))
    seed = draw(st.integers(0, 2**32))
    generator = torch.Generator().manual_seed(seed)
    parents = torch.full((num_reqs, num_nodes), -1)
    for request in range(num_reqs):
        for node in range(1, num_nodes):
            parents[request, node] = draw(st.integers(-1, node - 1))
    node_rows = torch.full((num_reqs, num_nodes), -1)
    row_to_request: list[int] = []
    for request in range(num_reqs):
        for node in range(num_nodes):
            if node == 0 or parents[request, node] >= 0:
                node_rows[request, node] = len(row_to_request)
                row_to_request.append(request)
    count = len(row_to_request)
    ids = torch.arange(count)
    rows = LogitRows(
        torch.randn(count, VOCAB, generator=generator), torch.tensor(row_to_request), node_rows, ids + 5, ids
    )
    zeros = torch.zeros(num_reqs, dtype=torch.int64)
    temperatures = torch.tensor(draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=num_reqs, max_size=num_reqs)))
    tokens = torch.randint(0, VOCAB, (num_reqs, num_nodes), generator=generator)
    tree = Nodes(tokens, parents, draw(st.integers(0, 4)))
    return WalkCase(SamplingRequests(LogitRules(temperatures=temperatures), zeros + seed, zeros, zeros), rows, tree)


def assert_equal_paths(own: DrawnPaths, expected: DrawnPaths) -> None:
    for name in ("nodes", "num_accepted", "bonus", "token_ids", "drawn"):
        assert torch.equal(getattr(own, name), getattr(expected, name)), name


@settings(max_examples=150, deadline=None)
@given(case=walk_cases())
def test_paths_are_those_of_the_reference(case: WalkCase) -> None:
    own = NativeSampling(Threads(2)).accept(case.requests, case.rows, case.tree)
    assert_equal_paths(own, ReferenceSampling().accept(case.requests, case.rows, case.tree))


@settings(max_examples=30, deadline=None)
@given(case=walk_cases())
def test_without_trees_every_request_gets_the_token_of_its_row(case: WalkCase) -> None:
    rows = replace(case.rows, node_rows=case.rows.node_rows[:, :1])
    own = NativeSampling(Threads(2)).accept(case.requests, rows, None)
    assert_equal_paths(own, ReferenceSampling().accept(case.requests, rows, None))
    assert own.token_ids.shape == (case.requests.num_reqs, 1)


def test_a_chain_that_agrees_is_accepted_as_a_whole() -> None:
    logits = torch.full((4, 8), -1.0)
    logits[torch.arange(4), torch.tensor([5, 2, 7, 1])] = 1.0
    zeros = torch.zeros(1, dtype=torch.int64)
    ids = torch.arange(4)
    rows = LogitRows(logits, torch.zeros(4, dtype=torch.int64), ids.unsqueeze(0), ids, ids)
    tree = Nodes(torch.tensor([[0, 5, 2, 7]]), torch.tensor([[-1, 0, 1, 2]]), 3)
    paths = NativeSampling(Threads(1)).accept(SamplingRequests(LogitRules(), zeros, zeros, zeros), rows, tree)
    assert paths.token_ids.tolist() == [[5, 2, 7, 1]]
    assert paths.nodes.tolist() == [[1, 2, 3]]
    assert paths.bonus.tolist() == [1] and paths.num_accepted.tolist() == [3]


@pytest.mark.parametrize("name", ["row", "tokens", "parents", "no_nodes", "depth", "requests"])
def test_trees_that_do_not_fit_are_refused(name: str) -> None:
    ids = torch.arange(2)
    zeros = torch.zeros(1, dtype=torch.int64)
    requests = SamplingRequests(LogitRules(), zeros, zeros, zeros)
    rows = LogitRows(torch.zeros(2, VOCAB), torch.zeros(2, dtype=torch.int64), ids.unsqueeze(0), ids, ids)
    tree = Nodes(ids.unsqueeze(0), ids.unsqueeze(0) - 1, 1)
    broken = {
        "row": (replace(rows, node_rows=rows.node_rows + 1), tree),
        "tokens": (rows, replace(tree, tokens=tree.tokens[:, :1])),
        "parents": (rows, replace(tree, parents=tree.parents.int())),
        "no_nodes": (replace(rows, node_rows=rows.node_rows[:, :0]), tree),
        "depth": (rows, replace(tree, max_depth=-1)),
        "requests": (replace(rows, node_rows=rows.node_rows.repeat(2, 1)), tree),
    }[name]
    with pytest.raises((InvalidParameterError, IndexError)):
        NativeSampling(Threads(1)).accept(requests, *broken)
