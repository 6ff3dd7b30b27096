"""Bring the draft cache up to the committed history and grow the trees of a step, on the kernels that the draft has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from aquiline.engine.draft_inputs import DraftInputBuilder
from aquiline.engine.feature_store import FeatureStore, RowCount
from aquiline.engine.grow import GrowthContext, grow_dynamic_tree, grow_static_tree
from aquiline.engine.guidance import Guidance
from aquiline.engine.kv_pool import KVPool
from aquiline.engine.sample import Sampler
from aquiline.engine.sampling_inputs import SamplingInputs
from aquiline.engine.schedule import ScheduledRequest
from aquiline.engine.tree import DraftTree
from aquiline.models.eagle import DraftStates
from aquiline.models.interfaces import DraftModel
from aquiline.speculation import StaticTree, TreeShape


@dataclass(frozen=True)
class DraftWork:
    """What a step asks of the draft.

    Attributes:
        behind: requests with draft rows to write; those that grow a tree come first.
        num_trees: how many of them do.
        guidance: what grammars allow below their roots; None: no request of the step is guided.
        sampling: of the step's drawing requests, tree requests first.
    """

    behind: Sequence[ScheduledRequest]
    num_trees: int
    shape: TreeShape
    sampling: SamplingInputs
    guidance: Guidance | None = None

    @property
    def tree_requests(self) -> Sequence[ScheduledRequest]:
        return self.behind[: self.num_trees]

    @property
    def new_rows(self) -> list[RowCount]:
        """Draft rows to write, by device row, in the order of `behind`."""
        return [RowCount(scheduled.request.row, scheduled.num_due_draft_rows) for scheduled in self.behind]

    def held_nodes(self) -> list[int] | None:
        """Nodes of a static shape that each tree holds, the root included; None where all hold all of it."""
        if not isinstance(self.shape, StaticTree):
            return None
        held = [1 + scheduled.num_held(self.shape) for scheduled in self.tree_requests]
        return held if held and min(held) <= self.shape.num_draft_tokens else None


class TreeGrower(Protocol):
    """Extends the draft and grows trees."""

    def run(self, work: DraftWork) -> DraftTree | None:
        """Write the draft rows of newly computed tokens; then a tree per tree request, None where there is none."""


class ReferenceGrower:
    """Works through the interface that every draft has, level by level, on any device.

    Args:
        features: where the target's features of newly committed tokens wait.
        builder: makes the rows of draft forwards.
    """

    def __init__(
        self, model: DraftModel, pool: KVPool, features: FeatureStore, sampler: Sampler, builder: DraftInputBuilder
    ) -> None:
        self._model = model
        self._pool = pool
        self._features = features
        self._sampler = sampler
        self._builder = builder

    def run(self, work: DraftWork) -> DraftTree | None:
        """See `TreeGrower`."""
        roots, shape = self._extend(work), work.shape
        if roots is None:
            return None
        requests = [scheduled.request for scheduled in work.tree_requests]
        num_places = shape.num_draft_tokens if isinstance(shape, StaticTree) else shape.steps * shape.topk
        context = GrowthContext(
            model=self._model,
            memory=self._pool.draft_layers,
            sampler=self._sampler,
            sampling=work.sampling,
            builder=self._builder,
            view=self._builder.prefix_view(requests, num_places),
            root_tokens=self._builder.tensor([request.token_ids[-1] for request in requests]),
            max_depths=self._builder.tensor([scheduled.grown_depth for scheduled in work.tree_requests]),
            held_nodes=work.held_nodes(),
            allowed=None if work.guidance is None else partial(work.guidance.masks_of, requests),
        )
        if isinstance(shape, StaticTree):
            return grow_static_tree(context, shape, roots)
        return grow_dynamic_tree(context, shape, roots)

    def _extend(self, work: DraftWork) -> DraftStates | None:
        """Write draft rows from true features; returns those of the roots, [num_trees, hidden]."""
        requests = [scheduled.request for scheduled in work.behind]
        new_rows = work.new_rows
        rows = self._builder.extend_rows(requests, [each.count for each in new_rows])
        features = self._features.take(new_rows)
        hidden = self._model.combine_features(_with_padding_row(features)[rows.feature_index])
        states = self._model.forward(rows.forward, hidden, self._pool.draft_layers)
        if not work.num_trees:
            return None
        last = self._builder.tensor([rows.last_rows[request.request_id] for request in requests[: work.num_trees]])
        return DraftStates(states.head_inputs[last], states.hidden_states[last])


def _with_padding_row(features: Tensor) -> Tensor:
    return torch.cat((features, features.new_zeros(1, features.shape[1])))
