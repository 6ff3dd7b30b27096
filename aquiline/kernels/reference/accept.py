"""Which path of a draft tree is accepted.

Both rules start at node 0, the root, and stop at the first node none of whose children is accepted. Nodes of one parent
are numbered in the order in which they were drawn. A parent of -1 marks the root and unused nodes; those never match.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aquiline.kernels.reference.sampling import largest

EXACT_SUM_SCALE = 2.0**60


@dataclass(frozen=True)
class AcceptedPaths:
    """The accepted path of every request.

    Attributes:
        nodes: [num_reqs, max_depth] int64, accepted nodes below the root from the top down, padded with -1.
        num_accepted: [num_reqs] int64, how many there are.
        bonus: [num_reqs] int64, the token drawn at the last accepted node.
    """

    nodes: Tensor
    num_accepted: Tensor
    bonus: Tensor


@dataclass(frozen=True)
class MultiRoundPaths:
    """The accepted path of every request, before its last token is drawn.

    Attributes:
        nodes, num_accepted: as in `AcceptedPaths`.
        last_probs: [num_reqs, vocab] float32, what to draw the last token from: the residual after a rejection, the
            target's own probabilities at a node without children.
        acceptance: [num_reqs, max_depth, max_children] float32, the probability with which each tried child was to be
            accepted; 0 where none was tried.
    """

    nodes: Tensor
    num_accepted: Tensor
    last_probs: Tensor
    acceptance: Tensor


def accept_keyed(tokens: Tensor, parents: Tensor, drawn: Tensor, max_depth: int) -> AcceptedPaths:
    """Walk from the root to the child that holds the token drawn at its parent, until there is none.

    Of siblings with the same token the one with the lowest number is taken.

    Args:
        tokens, parents: [num_reqs, num_nodes] int64.
        drawn: [num_reqs, num_nodes] int64, the token the target drew at every node.
        max_depth: of the deepest node; known without looking at any tensor.
    """
    current = torch.zeros_like(tokens[:, :1])  # [num_reqs, 1]
    walking = torch.ones_like(current, dtype=torch.bool)
    levels = []
    for _ in range(max_depth):
        matches = (parents == current) & (tokens == drawn.gather(1, current))  # [num_reqs, num_nodes]
        child, found = _first(matches)
        walking = walking & found
        current = torch.where(walking, child, current)
        levels.append(torch.where(walking, child, -1))
    nodes = torch.cat(levels, dim=1) if levels else tokens[:, :0]  # [num_reqs, max_depth]
    return AcceptedPaths(nodes, (nodes >= 0).sum(dim=1), drawn.gather(1, current).squeeze(1))


def accept_multi_round(
    tokens: Tensor,
    parents: Tensor,
    node_rows: Tensor,
    target_probs: Tensor,
    draft_log_probs: Tensor,
    uniforms: Tensor,
    draft_to_target_ids: Tensor | None = None,
) -> MultiRoundPaths:
    """Multi-round speculative sampling for children drawn without replacement.

    At each node its children x are tried in draw order: x is accepted when u < target(x) / draft(x). After a rejection
    both distributions change (see `after_rejection`). Committed tokens have exactly the target's law (SpecInfer, arXiv
    2305.09781; without replacement: Sequoia, arXiv 2402.12374, and RSD, arXiv 2402.14160). A child that the draft gives
    probability 0 was not drawn from it and is passed over.

    Args:
        tokens, parents: [num_reqs, num_nodes] int64.
        node_rows: [num_reqs, num_nodes] int64, row of `target_probs` of every node; -1 for unused nodes.
        target_probs: [num_rows, vocab] float32.
        draft_log_probs: [num_reqs, num_nodes, draft_vocab] float32, what each node's children were drawn from; nodes
            without children may hold anything.
        uniforms: [num_reqs, max_depth, max_children] float32 in (0, 1).
        draft_to_target_ids: [draft_vocab] int64; None: the draft has the target's vocabulary.
    """
    num_reqs, max_depth, max_children = uniforms.shape
    current = torch.zeros_like(tokens[:, :1])  # [num_reqs, 1]
    walking = torch.ones_like(current, dtype=torch.bool)
    last_probs = target_probs.new_zeros(num_reqs, target_probs.shape[1])
    acceptance = torch.zeros_like(uniforms)
    levels = []
    for level in range(max_depth):
        probs = _node_probs(target_probs, node_rows, current)  # [num_reqs, vocab]
        draft_probs = _node_draft_probs(draft_log_probs, current, target_probs.shape[1], draft_to_target_ids)
        latest = current
        chosen = torch.full_like(current, -1)
        for rank in range(max_children):
            child, found = _next_child(parents, current, latest)
            latest = torch.where(found, child, latest)
            token = tokens.gather(1, child).clamp(min=0)  # [num_reqs, 1]
            share = draft_probs.gather(1, token)
            tried = walking & found & (chosen < 0) & (share > 0)
            ratio = (probs.gather(1, token) / share).clamp(max=1.0)
            acceptance[:, level, rank] = torch.where(tried, ratio, 0.0).squeeze(1)
            accepted = tried & (uniforms[:, level, rank : rank + 1] < ratio)
            chosen = torch.where(accepted, child, chosen)
            residual, remaining = after_rejection(probs, draft_probs, token)
            rejected = tried & ~accepted
            probs = torch.where(rejected, residual, probs)
            draft_probs = torch.where(rejected, remaining, draft_probs)
        last_probs = torch.where(walking & (chosen < 0), probs, last_probs)
        walking = walking & (chosen >= 0)
        current = torch.where(walking, chosen, current)
        levels.append(chosen)
    last_probs = torch.where(walking, _node_probs(target_probs, node_rows, current), last_probs)
    nodes = torch.cat(levels, dim=1) if levels else tokens[:, :0]  # [num_reqs, max_depth]
    return MultiRoundPaths(nodes, (nodes >= 0).sum(dim=1), last_probs, acceptance)


def after_rejection(target_probs: Tensor, draft_probs: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    """Both distributions of the next round, after `token` was rejected.

    The target's becomes norm(max(target - draft, 0)), or stays when rounding leaves that no mass. The draft's becomes
    that of the next draw without replacement: `token` removed, the rest normalised.

    Args:
        target_probs, draft_probs: [num_reqs, vocab] float32.
        token: [num_reqs, 1] int64.
    """
    residual = (target_probs - draft_probs).clamp(min=0.0)
    mass = _row_sum(residual)  # [num_reqs, 1]
    residual = torch.where(mass > 0, residual / mass, target_probs)
    remaining = draft_probs.scatter(1, token, 0.0)
    mass = _row_sum(remaining)
    remaining = torch.where(mass > 0, remaining / mass, remaining)
    return residual, remaining


def draw_children(log_probs: Tensor, noise: Tensor, num_children: int) -> Tensor:
    """Draw without replacement, in draw order: the largest of log-probability plus Gumbel noise, largest first.

    Args:
        log_probs, noise: [num_rows, draft_vocab] float32.

    Returns:
        [num_rows, num_children] int64 draft ids. When fewer tokens have a probability, the rest have log-probability
        -inf, and `accept_multi_round` passes over them.
    """
    return largest(log_probs + noise, num_children)


def _first(matches: Tensor) -> tuple[Tensor, Tensor]:
    """Lowest true column of every row (0 when there is none), and whether there is one; both [num_reqs, 1]."""
    return matches.to(torch.int32).argmax(dim=1, keepdim=True), matches.any(dim=1, keepdim=True)


def _next_child(parents: Tensor, current: Tensor, latest: Tensor) -> tuple[Tensor, Tensor]:
    """The first child of `current` numbered above `latest`, and whether there is one; both [num_reqs, 1]."""
    node_ids = torch.arange(parents.shape[1], device=parents.device)
    return _first((parents == current) & (node_ids > latest))


def _node_probs(target_probs: Tensor, node_rows: Tensor, nodes: Tensor) -> Tensor:
    return target_probs.index_select(0, node_rows.gather(1, nodes).squeeze(1).clamp(min=0))  # [num_reqs, vocab]


def _node_draft_probs(
    draft_log_probs: Tensor, nodes: Tensor, vocab_size: int, draft_to_target_ids: Tensor | None
) -> Tensor:
    """The draft's probabilities at one node per request, over the target's vocabulary: 0 where the draft has no id."""
    index = nodes.unsqueeze(2).expand(-1, -1, draft_log_probs.shape[2])  # [num_reqs, 1, draft_vocab]
    probs = draft_log_probs.gather(1, index).squeeze(1).exp()  # [num_reqs, draft_vocab]
    if draft_to_target_ids is None:
        return probs
    return probs.new_zeros(probs.shape[0], vocab_size).index_copy_(1, draft_to_target_ids, probs)  # [num_reqs, vocab]


def _row_sum(probs: Tensor) -> Tensor:
    """Sum of every row, [num_reqs, 1], for numbers whose sum stays below 8.

    Summed as integers: a float sum would depend on its order, and that on the number of rows and threads.
    """
    total = (probs * EXACT_SUM_SCALE).to(torch.int64).sum(dim=1, keepdim=True)
    return total.to(torch.float32) * (1.0 / EXACT_SUM_SCALE)
