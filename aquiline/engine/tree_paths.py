"""From parents to root-to-node paths, on the device."""

from __future__ import annotations

import torch
from torch import Tensor


def path_nodes(parents: Tensor, depths: Tensor, max_depth: int) -> Tensor:
    """Nodes on the way from the root's child down to each node itself.

    Worked example, node 3 under node 1 under the root, max_depth 3:

        parents   -1  0  0  1
        depths     0  1  1  2
        paths      [-1 -1 -1]  [1 -1 -1]  [2 -1 -1]  [1 3 -1]

    Args:
        parents, depths: [num_reqs, num_nodes]; the root and invalid nodes have parent -1 and an empty path.

    Returns:
        [num_reqs, num_nodes, max_depth] node ids, padded with -1.
    """
    num_reqs, num_nodes = parents.shape
    paths = torch.full((num_reqs, num_nodes, max_depth + 1), -1, dtype=torch.long, device=parents.device)
    node = torch.arange(num_nodes, device=parents.device).expand(num_reqs, num_nodes)
    node = torch.where(parents >= 0, node, -1)
    place = depths - 1
    for _ in range(max_depth):
        present = node > 0
        # Absent entries go to a spare last column, which is cut off.
        paths.scatter_(2, torch.where(present, place, max_depth).unsqueeze(-1), node.unsqueeze(-1))
        node = torch.where(present, parents.gather(1, node.clamp_min(0)), -1)
        place = place - 1
    return paths[:, :, :max_depth]
