"""How a step's layout runs through the target, on the kernels that the target has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from aquiline.engine.inputs import InputBuilder, StepLayout
from aquiline.engine.kv_pool import KVPool
from aquiline.engine.sample import Accepted
from aquiline.engine.tree import DraftTree
from aquiline.kernels.cpu.extension import native
from aquiline.models.interfaces import TargetModel
from aquiline.models.llama import TargetStates
from aquiline.models.native_llama import NativeLlama

if TYPE_CHECKING:
    from aquiline.kernels.cpu import _native


class TargetRunner(Protocol):
    """Runs steps through one target over one pool."""

    def run(self, step: StepLayout, tree: DraftTree | None) -> TargetStates:
        """Compute all rows of a step, in the order of the layout; `tree` is that of `step.tree_requests`.

        The layout is one that has been given the tree.
        """

    def logits(self, states: TargetStates, rows: Sequence[int]) -> Tensor:
        """Next-token logits of some rows of a step, float32 [num_rows, vocab]."""

    def move_accepted(self, step: StepLayout, accepted: Accepted) -> None:
        """Move the K/V of accepted draft tokens from scratch behind their roots."""


def runner_for(model: TargetModel, pool: KVPool, builder: InputBuilder) -> TargetRunner:
    """The runner that suits a target."""
    if isinstance(model, NativeLlama):
        return NativeRunner(model, pool)
    return ReferenceRunner(model, pool, builder)


class ReferenceRunner:
    """Works on tensors alone, on any device: no stage needs the host."""

    def __init__(self, model: TargetModel, pool: KVPool, builder: InputBuilder) -> None:
        self._model = model
        self._pool = pool
        self._builder = builder

    def run(self, step: StepLayout, tree: DraftTree | None) -> TargetStates:
        """See `TargetRunner`."""
        states = self._model.forward(self._builder.target_rows(step, tree), self._pool.target_layers)
        if step.row_counts is None:
            return states
        used = self._builder.tensor(_used_rows(step))
        return TargetStates(states.hidden_states[used], states.features[used])

    def logits(self, states: TargetStates, rows: Sequence[int]) -> Tensor:
        """See `TargetRunner`."""
        return self._model.logits(states.hidden_states[self._builder.tensor(rows)])

    def move_accepted(self, step: StepLayout, accepted: Accepted) -> None:
        """See `TargetRunner`."""
        max_depth = accepted.nodes.shape[1]
        if not step.tree_requests or max_depth == 0:
            return
        nodes = accepted.nodes[: len(step.tree_requests)]
        rows = [scheduled.request.row for scheduled in step.tree_requests]
        scratch = self._builder.scratch_slots(rows, step.num_nodes - 1)
        padding = self._pool.layout.padding_slot
        sources = scratch.gather(1, (nodes - 1).clamp_min(0)).where(nodes > 0, padding)
        targets = self._builder.path_target_slots(step.tree_requests, max_depth).where(nodes > 0, padding)
        self._pool.move_target_rows(sources.flatten(), targets.flatten())


def _used_rows(step: StepLayout) -> list[int]:
    """Rows of the rectangle of trees, and of all that follows it, that belong to the layout.

    Worked example, two trees of 4 places, row counts 4 and 2, then one plain root: rows 0..3, 4..5 and 8.
    """
    rows: list[int] = []
    first = 0
    for scheduled in step.ordered:
        rows += range(first, first + step.num_rows(scheduled))
        first += step.num_nodes if scheduled.max_draft_depth > 0 else scheduled.num_new_tokens
    return rows


class NativeRunner:
    """Puts rows together in native code: on the CPU the host knows every value, and small tensors cost more than work.

    The rows are those of `InputBuilder`, without its padding.
    """

    def __init__(self, model: NativeLlama, pool: KVPool) -> None:
        self._model = model
        self._pool = pool
        self._new_rows = native().RowBuilder

    def run(self, step: StepLayout, tree: DraftTree | None) -> TargetStates:
        """See `TargetRunner`."""
        rows: _native.RowBuilder = self._new_rows(self._pool.layout.block_size, 0)
        if step.tree_requests:
            assert tree is not None
            self._add_trees(rows, step, tree)
        for scheduled in step.plain_requests + step.prefill_requests:
            request, first = scheduled.request, scheduled.request.num_computed_tokens
            rows.add_run(request.block_ids, first, request.token_ids[first : first + scheduled.num_new_tokens])
        return self._model.forward_built(rows, self._pool.target_layers)

    def _add_trees(self, rows: _native.RowBuilder, step: StepLayout, tree: DraftTree) -> None:
        tokens, parents, depths = tree.tokens.contiguous(), tree.parents.contiguous(), tree.depths.contiguous()
        bytes_per_tree = step.num_nodes * tokens.element_size()
        for index, scheduled in enumerate(step.tree_requests):
            request, offset = scheduled.request, index * bytes_per_tree
            rows.add_tree(
                request.block_ids,
                request.num_computed_tokens,
                self._pool.layout.scratch_slot(request.row, 0),
                step.num_rows(scheduled),
                tokens.data_ptr() + offset,
                parents.data_ptr() + offset,
                depths.data_ptr() + offset,
            )

    def logits(self, states: TargetStates, rows: Sequence[int]) -> Tensor:
        """See `TargetRunner`."""
        hidden_states = states.hidden_states
        is_whole = len(rows) == len(hidden_states) and rows[0] == 0 and rows[-1] == len(rows) - 1
        return self._model.logits(hidden_states if is_whole else hidden_states[list(rows)])

    def move_accepted(self, step: StepLayout, accepted: Accepted) -> None:
        """See `TargetRunner`."""
        if not step.tree_requests or not accepted.nodes.shape[1]:
            return
        layout = self._pool.layout
        sources: list[int] = []
        targets: list[int] = []
        for scheduled, nodes in zip(step.tree_requests, accepted.nodes.tolist(), strict=False):
            request = scheduled.request
            # Worked example: tokens t0..t3 are computed and the root is token 4, so the first accepted node goes to 5.
            for position, node in enumerate(nodes, request.num_tokens):
                if node > 0:
                    sources.append(layout.scratch_slot(request.row, node - 1))
                    targets.append(layout.page_slot(request.block_ids, position))
        if sources:
            self._model.move_rows(self._pool.target_layers, sources, targets)
