"""One tree of what the draft model grew and of what the host knows."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from aquiline.engine.host_tree import HostTree
from aquiline.engine.inputs import StepLayout
from aquiline.engine.tree import DraftTree


class TreeMerger:
    """Adds known nodes to draft trees.

    A node that has the token and the parent of one in the tree is that node. The others stand behind the nodes that the
    draft model grew, in their own order.

    Worked example, `x` and `y` may follow the root; the draft model grew `x`, the host knows `x z` and `y`:

        node       0    1    2    3
        token      r    x    z    y
        parents   -1    0    1    0
                       draft  known

    Args:
        is_host_memory: tokens of the draft model can be read where they are, without waiting for a device.
    """

    def __init__(self, device: torch.device, is_host_memory: bool) -> None:
        self._device = device
        self._is_host_memory = is_host_memory

    def merge(self, step: StepLayout, grown: DraftTree | None) -> DraftTree | None:
        """Trees for each of `step.tree_requests`; `grown` itself when there are no known nodes.

        Args:
            grown: of `step.growing_requests`; None when there are none.
        """
        known = [scheduled.known for scheduled in step.tree_requests]
        if not any(tree.num_draft_tokens for tree in known):
            return grown
        roots = [scheduled.request.token_ids[-1] for scheduled in step.tree_requests]
        if grown is None or self._is_host_memory:
            return self._merged_on_host(roots, known, grown)
        return _merged_on_device(grown.with_bare_roots(roots[len(grown.tokens) :]), known)

    def _merged_on_host(self, roots: Sequence[int], known: Sequence[HostTree], grown: DraftTree | None) -> DraftTree:
        trees = [_HostNodes(root) for root in roots]
        if grown is not None:
            counts = grown.row_counts or [grown.num_nodes] * len(grown.tokens)
            columns = (grown.tokens.tolist(), grown.parents.tolist(), grown.depths.tolist())
            for nodes, count, tokens, parents, depths in zip(trees, counts, *columns, strict=False):
                nodes.tokens, nodes.parents, nodes.depths = tokens[:count], parents[:count], depths[:count]
        grown_counts = tuple(len(nodes.tokens) for nodes in trees)
        for nodes, tree in zip(trees, known, strict=True):
            nodes.add(tree)
        width = max(len(nodes.tokens) for nodes in trees)
        # One tensor from one list: small tensors take longer to make than to fill.
        flat: list[int] = []
        for rows, padding in (
            ([nodes.tokens for nodes in trees], 0),
            ([nodes.parents for nodes in trees], -1),
            ([nodes.depths for nodes in trees], 1),
        ):
            for row in rows:
                flat += row
                flat += [padding] * (width - len(row))
        tokens, parents, depths = torch.tensor(flat, device=self._device).view(3, len(trees), width).unbind()
        is_valid = parents >= 0
        is_valid[:, 0] = True
        deepest = max(tree.depth for tree in known)
        return DraftTree(
            tokens=tokens,
            parents=parents,
            depths=depths,
            is_valid=is_valid,
            max_depth=deepest if grown is None else max(deepest, grown.max_depth),
            max_children=width - 1,
            row_counts=tuple(len(nodes.tokens) for nodes in trees),
            grown_counts=grown_counts,
            survivals=None if grown is None else _with_bare_roots(grown.survivals, len(trees)),
            level_rows=None if grown is None else grown.level_rows,
            draft_to_target_ids=None if grown is None else grown.draft_to_target_ids,
        )


def _with_bare_roots(
    survivals: tuple[tuple[float, ...], ...] | None, num_trees: int
) -> tuple[tuple[float, ...], ...] | None:
    return None if survivals is None else survivals + ((1.0,),) * (num_trees - len(survivals))


class _HostNodes:
    """The nodes of one request."""

    def __init__(self, root: int) -> None:
        self.tokens = [root]
        self.parents = [-1]
        self.depths = [0]

    def add(self, tree: HostTree) -> None:
        """Add the nodes that are not there yet."""
        if len(self.tokens) == 1:
            self.tokens += tree.tokens
            self.parents += tree.parents
            self.depths += tree.depths
            return
        number = [0]
        present = {place: node for node, place in enumerate(zip(self.parents, self.tokens, strict=True))}
        for token_id, known_parent, depth in zip(tree.tokens, tree.parents, tree.depths, strict=True):
            parent = number[known_parent]
            node = present.get((parent, token_id))
            if node is None:
                node = len(self.tokens)
                self.tokens.append(token_id)
                self.parents.append(parent)
                self.depths.append(depth)
            number.append(node)


def _merged_on_device(grown: DraftTree, known: Sequence[HostTree]) -> DraftTree:
    """The same without looking at a tensor: every known node has a place, which stays empty if it is there already."""
    device, num_grown = grown.tokens.device, grown.num_nodes
    width = max(tree.num_draft_tokens for tree in known)
    padding = [width - tree.num_draft_tokens for tree in known]
    columns = [
        torch.tensor([[*values, *[fill] * count] for values, count in zip(lists, padding, strict=True)], device=device)
        for lists, fill in (
            ([tree.tokens for tree in known], 0),
            ([tree.parents for tree in known], -1),
            ([tree.depths for tree in known], 1),
        )
    ]
    tokens, known_parents, depths = columns  # [num_reqs, width]
    places = torch.zeros(len(known), width + 1, dtype=torch.long, device=device)
    parents = torch.full_like(tokens, -1)
    for node in range(width):
        is_known = known_parents[:, node] >= 0  # [num_reqs]
        parent = places.gather(1, known_parents[:, node].clamp_min(0).unsqueeze(1))  # [num_reqs, 1]
        is_same = (grown.parents == parent) & (grown.tokens == tokens[:, node].unsqueeze(1))  # [num_reqs, num_grown]
        is_there = is_same.any(dim=1)
        places[:, node + 1] = torch.where(is_there, is_same.to(torch.int8).argmax(dim=1), num_grown + node)
        parents[:, node] = torch.where(is_known & ~is_there, parent.squeeze(1), -1)
    return DraftTree(
        tokens=torch.cat((grown.tokens, tokens), dim=1),
        parents=torch.cat((grown.parents, parents), dim=1),
        depths=torch.cat((grown.depths, depths), dim=1),
        is_valid=torch.cat((grown.is_valid, parents >= 0), dim=1),
        max_depth=max(grown.max_depth, *(tree.depth for tree in known)),
        max_children=num_grown + width - 1,
        grown_counts=(num_grown,) * len(known),
        draft_to_target_ids=grown.draft_to_target_ids,
    )
