"""Grow draft trees level by level: shapes fixed beforehand, and shapes the draft's confidence decides (EAGLE-2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from aquiline.engine.draft_inputs import DraftInputBuilder, PrefixView
from aquiline.engine.sample import Proposal, Sampler
from aquiline.engine.sampling_inputs import SamplingInputs
from aquiline.engine.tree import DraftTree
from aquiline.kernels.reference.sampling import TokenMasks, largest
from aquiline.models.eagle import DraftStates
from aquiline.models.interfaces import DraftModel
from aquiline.models.kv_layer import KVLayer
from aquiline.speculation import DynamicTree, StaticTree, max_children


@dataclass(frozen=True)
class GrowthContext:
    """What all levels of a step share.

    Attributes:
        view: what draft nodes see of their requests' pages, and the scratch they write to.
        root_tokens, max_depths: [num_reqs]; nodes below `max_depths` are marked invalid.
        held_nodes: nodes of a static shape that each request holds, its first ones, the root included; None: all that
            `max_depths` leaves.
        allowed: tells, from the draft tokens down to each node, what grammars allow below it; None: everything.
    """

    model: DraftModel
    memory: Sequence[KVLayer]
    sampler: Sampler
    sampling: SamplingInputs
    builder: DraftInputBuilder
    view: PrefixView
    root_tokens: Tensor
    max_depths: Tensor
    held_nodes: Sequence[int] | None = None
    allowed: Callable[[Sequence[Sequence[int]]], TokenMasks | None] | None = None

    @property
    def num_reqs(self) -> int:
        return int(self.root_tokens.shape[0])

    def run(self, tokens: Tensor, hidden_states: Tensor, paths: Tensor, depth: int) -> DraftStates:
        """One draft forward over nodes of one depth.

        Args:
            tokens: [num_reqs, num_nodes].
            hidden_states: of each node's parent, [num_reqs, num_nodes, hidden].
            paths: scratch places down to each node, [num_reqs, num_nodes, depth].
        """
        rows = self.builder.level_rows(self.view, tokens, paths, depth)
        return self.model.forward(rows, hidden_states.flatten(0, 1), self.memory)

    def propose(self, head_inputs: Tensor, depth: int, path_tokens: Tensor | None = None) -> Proposal:
        """Scores of the children of nodes at `depth`.

        The child of a node at depth d stands at position root + d + 1: that is the position its noise is keyed by.

        Args:
            head_inputs: [num_reqs * num_nodes, hidden], request by request.
            path_tokens: draft tokens down to each node, [num_reqs, num_nodes, depth]; None at the root.
        """
        request = torch.arange(self.num_reqs, device=head_inputs.device)
        request = request.repeat_interleave(head_inputs.shape[0] // self.num_reqs)
        positions = self.view.root_positions[request] + depth + 1
        if path_tokens is not None:
            path_tokens = path_tokens.flatten(0, 1)
        masks = None
        if self.allowed is not None:
            masks = self.allowed([()] * self.num_reqs if path_tokens is None else path_tokens.tolist())
        return self.sampler.propose_scores(
            self.sampling,
            self.model.logits(head_inputs),
            request,
            positions,
            self.model.draft_to_target_ids,
            path_tokens,
            masks,
        )

    def tree(
        self,
        shape: StaticTree | DynamicTree,
        tokens: Tensor,
        parents: Tensor,
        depths: Tensor,
        draft_log_probs: Tensor | None = None,
    ) -> DraftTree:
        """The finished record, with nodes beyond a request's limit cut off."""
        is_valid = depths <= self.max_depths.unsqueeze(1)
        if self.held_nodes is not None:
            places = torch.arange(depths.shape[1], device=depths.device)
            is_valid = is_valid & (places < self.builder.tensor(self.held_nodes).unsqueeze(1))
        return DraftTree(
            tokens=tokens,
            parents=torch.where(is_valid, parents, -1),
            depths=depths,
            is_valid=is_valid,
            max_depth=min(shape.depth, tokens.shape[1] - 1),
            max_children=max_children(shape),
            row_counts=None if self.held_nodes is None else tuple(self.held_nodes),
            draft_log_probs=draft_log_probs,
            draft_to_target_ids=self.model.draft_to_target_ids,
        )


def grow_static_tree(context: GrowthContext, shape: StaticTree, roots: DraftStates) -> DraftTree:
    """Children of every node are the draft's best, as many as the shape gives it.

    Only nodes that have children run through the draft; node n uses scratch place n - 1.
    """
    num_reqs, num_nodes = context.num_reqs, shape.num_draft_tokens + 1
    device = context.root_tokens.device
    tokens = torch.zeros(num_reqs, num_nodes, dtype=torch.long, device=device)
    tokens[:, 0] = context.root_tokens
    draft_log_probs: Tensor | None = None
    expanded: tuple[int, ...] = (0,)
    states, path_tokens = roots, None
    for depth in range(shape.depth):
        if depth > 0:
            parents_before = expanded
            expanded = tuple(node for node in shape.levels[depth] if node in shape.parents)
            paths = [_path(shape, node) for node in expanded]
            path_tokens = tokens[:, paths]  # [num_reqs, num_expanded, depth]
            index = [parents_before.index(shape.parents[node]) for node in expanded]
            hidden = states.hidden_states.view(num_reqs, len(parents_before), -1)[:, index]
            places = (torch.tensor(paths, device=device) - 1).expand(num_reqs, -1, -1)
            states = context.run(tokens[:, list(expanded)], hidden, places, depth)
        proposal = context.propose(states.head_inputs, depth, path_tokens)
        children = shape.levels[depth + 1]
        width = max(shape.ranks[node] for node in children) + 1
        best = context.model.draft_to_target_ids[largest(proposal.scores, width)].view(num_reqs, len(expanded), width)
        parent_index = [expanded.index(shape.parents[node]) for node in children]
        tokens[:, list(children)] = best[:, parent_index, [shape.ranks[node] for node in children]]
        if proposal.log_probs is not None:
            if draft_log_probs is None:
                draft_log_probs = proposal.log_probs.new_zeros(num_reqs, num_nodes, proposal.log_probs.shape[-1])
            draft_log_probs[:, list(expanded)] = proposal.log_probs.view(num_reqs, len(expanded), -1)
    parents = torch.tensor(shape.parents, device=device).expand(num_reqs, -1)
    depths = torch.tensor(shape.depths, device=device).expand(num_reqs, -1)
    return context.tree(shape, tokens, parents, depths, draft_log_probs)


def _path(shape: StaticTree, node: int) -> list[int]:
    """Nodes from the root's child down to `node`."""
    path = []
    while node > 0:
        path.append(node)
        node = shape.parents[node]
    return path[::-1]


@dataclass(frozen=True)
class _Candidates:
    """Nodes recorded while a dynamic tree grows; all [num_reqs, num_candidates], in creation order."""

    tokens: Tensor
    values: Tensor  # sum of log-confidences from the root down
    parents: Tensor  # candidate index, -1 for children of the root
    depths: Tensor

    @staticmethod
    def joined(levels: list[_Candidates]) -> _Candidates:
        return _Candidates(
            torch.cat([level.tokens for level in levels], dim=1),
            torch.cat([level.values for level in levels], dim=1),
            torch.cat([level.parents for level in levels], dim=1),
            torch.cat([level.depths for level in levels], dim=1),
        )


def grow_dynamic_tree(context: GrowthContext, shape: DynamicTree, roots: DraftStates) -> DraftTree:
    """Expand the most promising nodes of every level, then keep the best of all (EAGLE-2, sections 4.1 and 4.2).

    A node's value is the sum of the log-confidences on its path. Confidence is at most 1, so no child is worth more
    than its parent, and with ties going to the earlier candidate the kept nodes always form a tree. The frontier node j
    of level d uses scratch place (d - 1) * topk + j.

    Unlikely nodes run through the draft like all others, worth nothing, and are left out in the end: no level waits for
    a device to say how many there are. Where the host sees that none is left, no further level runs.
    """
    topk, num_reqs = shape.topk, context.num_reqs
    levels = [_without_unlikely(context, shape, _first_level(context, context.propose(roots.head_inputs, 0), topk))]
    frontier = _first_frontier(levels[0], roots.hidden_states)
    for depth in range(1, shape.steps):
        if shape.least_survival > 0.0 and _is_seen_to_end(levels[-1]):
            break
        states = context.run(frontier.tokens, frontier.hidden_states, frontier.places, depth)
        proposal = context.propose(states.head_inputs, depth, frontier.path_tokens)
        first_index = topk + (depth - 1) * topk * topk  # of the candidates of the next level
        levels.append(_without_unlikely(context, shape, _next_level(context, proposal, frontier, depth + 1)))
        frontier = _next_frontier(frontier, levels[-1], states.hidden_states.view(num_reqs, topk, -1), first_index)
    return _rerank(context, shape, _Candidates.joined(levels), len(levels))


def _without_unlikely(context: GrowthContext, shape: DynamicTree, level: _Candidates) -> _Candidates:
    """A level in which nodes that may not be kept are worth nothing, and so their children too."""
    if shape.least_survival == 0.0:
        return level
    may_be_kept = (level.values >= math.log(shape.least_survival)) & (level.depths <= context.max_depths.unsqueeze(1))
    return replace(level, values=level.values.where(may_be_kept, -math.inf))


def _is_seen_to_end(level: _Candidates) -> bool:
    """Whether no node of a level is worth anything, as far as the host sees without waiting."""
    return level.values.device.type == "cpu" and bool((level.values == -math.inf).all())


@dataclass(frozen=True)
class _Frontier:
    """The topk nodes of one level that grow children; [num_reqs, topk, ...]."""

    candidates: Tensor  # candidate index
    tokens: Tensor
    values: Tensor
    hidden_states: Tensor  # of their parents
    places: Tensor  # scratch places on the way down, [num_reqs, topk, depth]
    path_tokens: Tensor  # draft tokens on the way down, [num_reqs, topk, depth]


def _first_frontier(level: _Candidates, root_hidden_states: Tensor) -> _Frontier:
    num_reqs, topk = level.tokens.shape
    index = torch.arange(topk, device=level.tokens.device).expand(num_reqs, -1)
    hidden = root_hidden_states.unsqueeze(1).expand(-1, topk, -1)
    return _Frontier(index, level.tokens, level.values, hidden, index.unsqueeze(-1), level.tokens.unsqueeze(-1))


def _next_frontier(before: _Frontier, level: _Candidates, hidden_states: Tensor, first_index: int) -> _Frontier:
    """The topk best candidates of a level; hidden_states [num_reqs, topk, hidden] of the frontier before."""
    num_reqs, topk, depth = before.places.shape
    chosen = largest(level.values, topk)  # [num_reqs, topk]
    parent = (chosen // topk).unsqueeze(-1)
    tokens = level.tokens.gather(1, chosen)
    own_places = (depth * topk + torch.arange(topk, device=chosen.device)).expand(num_reqs, -1)
    return _Frontier(
        first_index + chosen,
        tokens,
        level.values.gather(1, chosen),
        hidden_states.gather(1, parent.expand(-1, -1, hidden_states.shape[-1])),
        torch.cat((before.places.gather(1, parent.expand(-1, -1, depth)), own_places.unsqueeze(-1)), dim=-1),
        torch.cat((before.path_tokens.gather(1, parent.expand(-1, -1, depth)), tokens.unsqueeze(-1)), dim=-1),
    )


def _first_level(context: GrowthContext, proposal: Proposal, topk: int) -> _Candidates:
    best = largest(proposal.scores, topk)  # [num_reqs, topk]
    return _Candidates(
        context.model.draft_to_target_ids[best],
        proposal.log_confidence.gather(1, best),
        torch.full_like(best, -1),
        torch.ones_like(best),
    )


def _next_level(context: GrowthContext, proposal: Proposal, frontier: _Frontier, depth: int) -> _Candidates:
    """topk children of each frontier node, parent by parent."""
    num_reqs, topk = frontier.tokens.shape
    best = largest(proposal.scores, topk)  # [num_reqs * topk, topk]
    confidence = proposal.log_confidence.gather(1, best).view(num_reqs, topk, topk)
    parents = frontier.candidates.repeat_interleave(topk, dim=1)
    return _Candidates(
        context.model.draft_to_target_ids[best].view(num_reqs, topk * topk),
        (frontier.values.unsqueeze(-1) + confidence).flatten(1),
        parents,
        torch.full_like(parents, depth),
    )


def _rerank(context: GrowthContext, shape: DynamicTree, candidates: _Candidates, num_levels: int) -> DraftTree:
    """Keep the most valuable candidates, in creation order, and number them anew behind the root.

    Worked example, candidates 0 and 1 below the root, 2 and 3 below 0; kept are 0, 1 and 3:

        candidate      0   1   2   3
        new number     1   2   -   3
        new parent     0   0   -   1
    """
    most = min(shape.num_draft_tokens, candidates.values.shape[1])
    kept = largest(candidates.values, most).sort(dim=1).values  # [num_reqs, num_kept]
    is_empty = torch.zeros_like(kept, dtype=torch.bool)
    if shape.least_survival > 0.0:
        is_empty = candidates.values.gather(1, kept) == -math.inf
        kept = kept.gather(1, is_empty.to(torch.int8).argsort(dim=1, stable=True))  # empty places come last
        is_empty = is_empty.sort(dim=1).values
    num_reqs, num_kept = kept.shape
    new_number = torch.zeros(num_reqs, candidates.tokens.shape[1] + 1, dtype=torch.long, device=kept.device)
    order = torch.arange(1, num_kept + 1, device=kept.device).expand(num_reqs, -1)
    new_number.scatter_(1, kept, order)  # the spare last entry stays 0: children of the root have parent -1
    parents = new_number.gather(1, candidates.parents.gather(1, kept) % new_number.shape[1])
    root = torch.zeros_like(context.root_tokens).unsqueeze(1)
    tree = context.tree(
        shape,
        torch.cat((context.root_tokens.unsqueeze(1), candidates.tokens.gather(1, kept)), dim=1),
        torch.cat((root - 1, parents), dim=1),
        torch.cat((root, candidates.depths.gather(1, kept)), dim=1),
    )
    values = torch.cat((torch.zeros_like(candidates.values[:, :1]), candidates.values.gather(1, kept)), dim=1)
    if shape.least_survival > 0.0:
        tree = _with_empty_places(tree, torch.cat((root > 0, is_empty), dim=1))
    return _with_figures(shape, tree, values, num_levels) if values.device.type == "cpu" else tree


def _with_empty_places(tree: DraftTree, is_empty: Tensor) -> DraftTree:
    return replace(
        tree,
        tokens=tree.tokens.where(~is_empty, 0),
        parents=tree.parents.where(~is_empty, -1),
        depths=tree.depths.where(~is_empty, 1),
        is_valid=tree.is_valid & ~is_empty,
    )


def _with_figures(shape: DynamicTree, tree: DraftTree, values: Tensor, num_levels: int) -> DraftTree:
    """The tree without places that no request fills, and with what the host knows of it.

    Args:
        values: of all nodes, [num_reqs, num_nodes].
        num_levels: that the draft ran.
    """
    num_reqs = len(tree.tokens)
    level_rows = (num_reqs, *[num_reqs * shape.topk] * (num_levels - 1))
    counts = [tree.num_nodes] * num_reqs
    if shape.least_survival > 0.0:
        counts = tree.is_valid.sum(dim=1).tolist()
        tree = tree.narrowed(counts)
    survivals = tuple(tuple(map(math.exp, own[:count])) for own, count in zip(values.tolist(), counts, strict=True))
    return replace(tree, survivals=survivals, level_rows=level_rows)
