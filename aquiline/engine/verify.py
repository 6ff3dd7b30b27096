"""One target forward over everything a step holds: tree nodes, plain roots and prefill chunks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aquiline.engine.inputs import InputBuilder, StepLayout
from aquiline.engine.kv_pool import KVPool
from aquiline.engine.sample import LogitRows
from aquiline.engine.tree import DraftTree
from aquiline.engine.tree_paths import path_nodes
from aquiline.models.interfaces import TargetModel
from aquiline.models.llama import TargetStates


@dataclass(frozen=True)
class Verified:
    """What the target says about a step.

    Attributes:
        states: of every row of the forward.
        tree: one tree per drawing request; a request that grew none has only its root in it. None: no request did.
        rows: logits of the rows that draw; None when no request of the step draws.
    """

    states: TargetStates
    tree: DraftTree | None
    rows: LogitRows | None


class Verifier:
    """Runs the target.

    Args:
        builder: makes the rows of target forwards.
    """

    def __init__(self, model: TargetModel, pool: KVPool, builder: InputBuilder) -> None:
        self._model = model
        self._pool = pool
        self._builder = builder

    def run(self, step: StepLayout, tree: DraftTree | None) -> Verified:
        """Compute all rows of the step and the logits of those that draw.

        Args:
            tree: of `step.tree_requests`.
        """
        states = self._model.forward(self._builder.target_rows(step, tree), self._pool.target_layers)
        if not step.drawing:
            return Verified(states, None, None)
        whole_tree = None if tree is None else _with_bare_roots(step, tree)
        return Verified(states, whole_tree, self._logit_rows(step, whole_tree, states))

    def _logit_rows(self, step: StepLayout, tree: DraftTree | None, states: TargetStates) -> LogitRows:
        """Rows that draw: every tree node, every plain root, and the last row of each finished prefill."""
        first_rows = step.first_rows()
        requests = [scheduled.request for scheduled in step.drawing]
        width = 1 if tree is None else step.num_nodes
        state_rows: list[int] = []
        row_to_request: list[int] = []
        places: list[int] = []  # of each row in a flattened [num_reqs, width]
        for index, scheduled in enumerate(step.drawing):
            first = first_rows[scheduled.request.request_id] + scheduled.num_new_tokens - 1
            count = step.num_nodes if scheduled.max_draft_depth > 0 else 1
            state_rows += range(first, first + count)
            row_to_request += [index] * count
            places += range(index * width, index * width + count)
        tensor = self._builder.tensor
        place = tensor(places)
        node_rows = torch.full((len(requests) * width,), -1, dtype=torch.long, device=place.device)
        node_rows[place] = torch.arange(len(places), device=place.device)
        # The root is token number num_tokens - 1, so its row draws the token at position num_tokens.
        positions = tensor([requests[index].num_tokens for index in row_to_request])
        output_lengths = tensor([requests[index].num_output_tokens for index in row_to_request])
        path_tokens = None
        if tree is not None:
            depths = tree.depths.flatten()[place]
            positions, output_lengths = positions + depths, output_lengths + depths
            path_tokens = _path_tokens(tree).flatten(0, 1)[place]
        logits = self._model.logits(states.hidden_states[tensor(state_rows)])
        return LogitRows(
            logits, tensor(row_to_request), node_rows.view(-1, width), positions, output_lengths, path_tokens
        )


def _path_tokens(tree: DraftTree) -> Tensor:
    """Draft tokens from below the root down to each node: [num_reqs, num_nodes, max_depth], padded with -1."""
    nodes = path_nodes(tree.parents, tree.depths, tree.max_depth)
    tokens = tree.tokens.gather(1, nodes.clamp_min(0).flatten(1)).view(nodes.shape)
    return torch.where(nodes >= 0, tokens, -1)


def _with_bare_roots(step: StepLayout, tree: DraftTree) -> DraftTree:
    """Add a row of a root alone for every drawing request that grew no tree."""
    last_tokens = [s.request.token_ids[-1] for s in step.drawing[len(step.tree_requests) :]]
    if not last_tokens:
        return tree
    bare = torch.zeros(len(last_tokens), tree.num_nodes, dtype=torch.long, device=tree.tokens.device)
    tokens = bare.clone()
    tokens[:, 0] = torch.tensor(last_tokens, device=tokens.device)
    is_root = torch.arange(tree.num_nodes, device=tokens.device).expand_as(bare) == 0
    log_probs = tree.draft_log_probs
    if log_probs is not None:
        log_probs = torch.cat((log_probs, log_probs.new_zeros(len(last_tokens), *log_probs.shape[1:])))
    return DraftTree(
        tokens=torch.cat((tree.tokens, tokens)),
        parents=torch.cat((tree.parents, bare - 1)),
        depths=torch.cat((tree.depths, bare)),
        is_valid=torch.cat((tree.is_valid, is_root)),
        max_depth=tree.max_depth,
        max_children=tree.max_children,
        draft_log_probs=log_probs,
        draft_to_target_ids=tree.draft_to_target_ids,
    )
