"""The draft trees of a step, as tensors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True)
class DraftTree:
    """One tree per request, all with the same number of node places.

    Siblings are numbered in draw order. The place of a node that a request does not have is marked by `is_valid` False
    and parent -1, so that nothing ever matches it. Where the host knows that only a request's first places hold nodes,
    `row_counts` says so, and the target computes no more of them.

    Worked example, a chain of 3 of which the second request may have only the first node:

        parents      -1  0  1  2      -1  0 -1 -1
        row_counts    4                2

    Attributes:
        tokens: [num_reqs, num_nodes] int64, target ids; node 0 holds the root token.
        parents: [num_reqs, num_nodes] int64, -1 for the root and for invalid nodes.
        depths: [num_reqs, num_nodes] int64, 0 for the root.
        is_valid: [num_reqs, num_nodes] bool
        max_depth: depth of the deepest node place, known without looking at any tensor.
        max_children: most children of one node, likewise.
        row_counts: places of each request that the target computes, the root included; None: all of them.
        grown_counts: places of each request that the draft model filled, the root included; the nodes behind them were
            looked up. None: all of them.
        survivals: of every grown node of each request in node order, the root (1.0) included: the product of the
            draft's confidences down to it. As many as there are grown places with rows; none where confidence did not
            shape a tree. None: it shaped no tree, or the host does not know.
        level_rows: nodes that the draft proposed children of, by depth, the roots (one a tree) first; None: confidence
            did not shape all trees, or the host does not know.
        draft_log_probs: [num_reqs, num_nodes, draft_vocab] float32, what each node's children were drawn from (nodes
            without children may hold anything); needed by the multi-round rule only.
        draft_to_target_ids: [draft_vocab] int64; None: the draft has the target's vocabulary.
    """

    tokens: Tensor
    parents: Tensor
    depths: Tensor
    is_valid: Tensor
    max_depth: int
    max_children: int
    row_counts: tuple[int, ...] | None = None
    grown_counts: tuple[int, ...] | None = None
    survivals: tuple[tuple[float, ...], ...] | None = None
    level_rows: tuple[int, ...] | None = None
    draft_log_probs: Tensor | None = None
    draft_to_target_ids: Tensor | None = None

    @property
    def num_nodes(self) -> int:
        return self.tokens.shape[1]

    def widened(self, num_nodes: int) -> DraftTree:
        """The same trees with empty places behind their own."""
        missing = num_nodes - self.num_nodes
        if not missing:
            return self
        return replace(
            self,
            tokens=pad(self.tokens, (0, missing), value=0),
            parents=pad(self.parents, (0, missing), value=-1),
            depths=pad(self.depths, (0, missing), value=1),
            is_valid=pad(self.is_valid, (0, missing), value=False),
            row_counts=self.row_counts or (self.num_nodes,) * len(self.tokens),
            draft_log_probs=None if self.draft_log_probs is None else pad(self.draft_log_probs, (0, 0, 0, missing)),
        )

    def narrowed(self, row_counts: Sequence[int]) -> DraftTree:
        """The same trees of which the first so many places hold nodes, without places that none of them uses."""
        width = max(row_counts)
        log_probs = self.draft_log_probs
        return replace(
            self,
            tokens=self.tokens[:, :width],
            parents=self.parents[:, :width],
            depths=self.depths[:, :width],
            is_valid=self.is_valid[:, :width],
            max_depth=min(self.max_depth, width - 1),
            row_counts=tuple(row_counts),
            draft_log_probs=None if log_probs is None else log_probs[:, :width],
        )

    def with_bare_roots(self, roots: Sequence[int]) -> DraftTree:
        """These trees, and behind them one of each of the given root tokens alone."""
        if not roots:
            return self
        absent = torch.zeros(len(roots), self.num_nodes, dtype=torch.long, device=self.tokens.device)
        tokens = absent.clone()
        tokens[:, 0] = torch.tensor(roots, device=tokens.device)
        is_root = torch.arange(self.num_nodes, device=tokens.device).expand_as(absent) == 0
        log_probs = self.draft_log_probs
        if log_probs is not None:
            log_probs = torch.cat((log_probs, log_probs.new_zeros(len(roots), *log_probs.shape[1:])))
        bare = (1,) * len(roots)
        return replace(
            self,
            tokens=torch.cat((self.tokens, tokens)),
            parents=torch.cat((self.parents, absent - 1)),
            depths=torch.cat((self.depths, absent)),
            is_valid=torch.cat((self.is_valid, is_root)),
            row_counts=None if self.row_counts is None else self.row_counts + bare,
            grown_counts=None if self.grown_counts is None else self.grown_counts + bare,
            survivals=None if self.survivals is None else self.survivals + ((1.0,),) * len(roots),
            draft_log_probs=log_probs,
        )


def joined_trees(trees: Sequence[DraftTree]) -> DraftTree | None:
    """Trees that were grown apart from each other by one draft model, as one record; None when there are none.

    Worked example, a chain of 2 for one request and a chain of 1 for another:

        parents      -1  0  1      -1  0 -1
        row_counts    3             2
    """
    if len(trees) < 2:
        return trees[0] if trees else None
    num_nodes = max(tree.num_nodes for tree in trees)
    wide = [tree.widened(num_nodes) for tree in trees]
    row_counts = [count for tree in wide for count in tree.row_counts or (num_nodes,) * len(tree.tokens)]
    return DraftTree(
        tokens=torch.cat([tree.tokens for tree in wide]),
        parents=torch.cat([tree.parents for tree in wide]),
        depths=torch.cat([tree.depths for tree in wide]),
        is_valid=torch.cat([tree.is_valid for tree in wide]),
        max_depth=max(tree.max_depth for tree in wide),
        max_children=max(tree.max_children for tree in wide),
        row_counts=tuple(row_counts),
        survivals=_joined_survivals(trees),
        level_rows=_summed_level_rows(trees),
        draft_log_probs=_joined_log_probs(wide),
        draft_to_target_ids=trees[0].draft_to_target_ids,
    )


def _joined_survivals(trees: Sequence[DraftTree]) -> tuple[tuple[float, ...], ...] | None:
    if all(tree.survivals is None for tree in trees):
        return None
    return tuple(itertools.chain(*(tree.survivals or ((),) * len(tree.tokens) for tree in trees)))


def _summed_level_rows(trees: Sequence[DraftTree]) -> tuple[int, ...] | None:
    parts = [tree.level_rows for tree in trees if tree.level_rows is not None]
    return tuple(map(sum, itertools.zip_longest(*parts, fillvalue=0))) if len(parts) == len(trees) else None


def _joined_log_probs(trees: Sequence[DraftTree]) -> Tensor | None:
    """Those of all trees; zeros for trees that nothing was drawn for."""
    known = next((tree.draft_log_probs for tree in trees if tree.draft_log_probs is not None), None)
    if known is None:
        return None
    parts = [tree.draft_log_probs for tree in trees]
    sizes = [len(tree.tokens) for tree in trees]
    return torch.cat(
        [
            known.new_zeros(size, *known.shape[1:]) if part is None else part
            for part, size in zip(parts, sizes, strict=True)
        ]
    )
