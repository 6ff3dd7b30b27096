"""One target forward over everything a step holds: tree nodes, plain roots and prefill chunks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aquiline.engine.inputs import InputBuilder, StepLayout
from aquiline.engine.sampling_inputs import SamplingInputs
from aquiline.engine.target_runner import TargetRunner
from aquiline.engine.tree import DraftTree
from aquiline.engine.tree_paths import path_nodes
from aquiline.kernels.sampling_kernels import LogitRows
from aquiline.models.llama import TargetStates


@dataclass(frozen=True)
class Verified:
    """What the target says about a step.

    Attributes:
        states: of every row of the forward.
        tree: one tree per drawing request; a request that grew none has only its root in it. None: no tree of
            the step has any other node.
        rows: logits of the rows that draw; None when no request of the step draws.
    """

    states: TargetStates
    tree: DraftTree | None
    rows: LogitRows | None


class Verifier:
    """Runs the target.

    Args:
        builder: makes tensors of integers.
    """

    def __init__(self, runner: TargetRunner, builder: InputBuilder) -> None:
        self._runner = runner
        self._builder = builder

    def run(self, step: StepLayout, tree: DraftTree | None, sampling: SamplingInputs) -> Verified:
        """Compute all rows of the step and the logits of those that draw.

        Args:
            tree: of `step.tree_requests`.
            sampling: of the drawing requests; the tokens above a row are made out only where penalties count them.
        """
        states = self._runner.run(step, tree)
        if not step.drawing:
            return Verified(states, None, None)
        roots = [scheduled.request.token_ids[-1] for scheduled in step.drawing[len(step.tree_requests) :]]
        # Where no tree has more than its root, the step draws as plain decoding does, and costs what that costs.
        whole_tree = None if tree is None or tree.num_nodes == 1 else tree.with_bare_roots(roots)
        return Verified(states, whole_tree, self._logit_rows(step, whole_tree, states, sampling.any_penalty))

    def _logit_rows(
        self, step: StepLayout, tree: DraftTree | None, states: TargetStates, any_penalty: bool
    ) -> LogitRows:
        """Rows that draw: every tree node, every plain root, and the last row of each finished prefill."""
        first_rows = step.first_rows
        state_rows: list[int] = []
        row_to_request: list[int] = []
        node_rows: list[list[int]] = []
        # The root is token number num_tokens - 1, so its row draws the token at position num_tokens.
        positions: list[int] = []
        output_lengths: list[int] = []
        for index, scheduled in enumerate(step.drawing):
            request = scheduled.request
            first = first_rows[request.request_id] + scheduled.num_new_tokens - 1
            count = step.num_rows(scheduled) if scheduled.max_draft_depth > 0 else 1
            first_logit_row = len(state_rows)
            node_rows.append([*range(first_logit_row, first_logit_row + count)])
            state_rows += range(first, first + count)
            row_to_request += [index] * count
            positions += [request.num_tokens] * count
            output_lengths += [request.num_output_tokens] * count
        logits = self._runner.logits(states, state_rows)
        figures = self._builder.tensor((row_to_request, positions, output_lengths))
        if tree is None:
            return LogitRows(logits, figures[0], self._builder.tensor(node_rows), figures[1], figures[2])
        # Where each row lies among the [num_reqs, num_nodes] places of the trees.
        places = self._builder.tensor(
            [index * step.num_nodes + node for index, rows in enumerate(node_rows) for node in range(len(rows))]
        )
        padded = self._builder.tensor([rows + [-1] * (step.num_nodes - len(rows)) for rows in node_rows])
        depths = tree.depths.flatten()[places]
        path_tokens = _path_tokens(tree).flatten(0, 1)[places] if any_penalty else None
        return LogitRows(logits, figures[0], padded, figures[1] + depths, figures[2] + depths, path_tokens)


def _path_tokens(tree: DraftTree) -> Tensor:
    """Draft tokens from below the root down to each node: [num_reqs, num_nodes, max_depth], padded with -1."""
    nodes = path_nodes(tree.parents, tree.depths, tree.max_depth)
    tokens = tree.tokens.gather(1, nodes.clamp_min(0).flatten(1)).view(nodes.shape)
    return torch.where(nodes >= 0, tokens, -1)
