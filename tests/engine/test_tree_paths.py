"""Paths from the root to every node, against a walk up the parents."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aquiline.engine.tree_paths import path_nodes
from aquiline.speculation import StaticTree, tree_from_paths
from tests.engine.strategies import tree_paths


def walked(tree: StaticTree, node: int) -> list[int]:
    """Nodes from the root's child down to `node`."""
    path: list[int] = []
    while node > 0:
        path.insert(0, node)
        node = tree.parents[node]
    return path


def test_the_worked_example() -> None:
    parents, depths = torch.tensor([[-1, 0, 0, 1]]), torch.tensor([[0, 1, 1, 2]])
    expected = [[[-1, -1, -1], [1, -1, -1], [2, -1, -1], [1, 3, -1]]]
    assert path_nodes(parents, depths, 3).tolist() == expected


@settings(max_examples=50, deadline=None)
@given(trees=st.lists(tree_paths(max_nodes=8), min_size=1, max_size=3), spare_depth=st.integers(0, 2), data=st.data())
def test_every_node_has_the_path_that_its_parents_tell(
    trees: list[list[tuple[int, ...]]], spare_depth: int, data: st.DataObject
) -> None:
    shapes = [tree_from_paths(paths) for paths in trees]
    limits = [data.draw(st.integers(0, shape.depth), label="max_depth of a request") for shape in shapes]
    width = max(len(shape.parents) for shape in shapes)
    max_depth = max(limits) + spare_depth
    parents = torch.full((len(shapes), width), -1)
    depths = torch.zeros(len(shapes), width, dtype=torch.long)
    for index, (shape, limit) in enumerate(zip(shapes, limits, strict=True)):
        for node, depth in enumerate(shape.depths):
            depths[index, node] = depth
            if depth <= limit:
                parents[index, node] = shape.parents[node]
    paths = path_nodes(parents, depths, max_depth).tolist()
    for index, (shape, limit) in enumerate(zip(shapes, limits, strict=True)):
        for node in range(width):
            is_valid = node < len(shape.parents) and shape.depths[node] <= limit
            path = walked(shape, node) if is_valid else []
            assert paths[index][node] == path + [-1] * (max_depth - len(path))


def test_roots_alone_have_no_paths() -> None:
    assert path_nodes(torch.tensor([[-1], [-1]]), torch.zeros(2, 1, dtype=torch.long), 0).shape == (2, 1, 0)
