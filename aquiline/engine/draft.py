"""Run the draft: bring its cache up to the committed history, then let a tree grow."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from aquiline.engine.draft_inputs import DraftInputBuilder
from aquiline.engine.feature_store import FeatureStore
from aquiline.engine.grow import GrowthContext, grow_dynamic_tree, grow_static_tree
from aquiline.engine.inputs import StepLayout
from aquiline.engine.kv_pool import KVPool
from aquiline.engine.sample import Sampler
from aquiline.engine.sampling_inputs import SamplingInputs
from aquiline.engine.tree import DraftTree
from aquiline.models.eagle import DraftStates
from aquiline.models.interfaces import DraftModel
from aquiline.request import Request
from aquiline.speculation import StaticTree, TreeShape


class Drafter:
    """Proposes one tree per tree request of a step.

    Args:
        builder: makes the rows of draft forwards.
        features: where the target's features of newly committed tokens wait.
    """

    def __init__(
        self, model: DraftModel, pool: KVPool, features: FeatureStore, sampler: Sampler, builder: DraftInputBuilder
    ) -> None:
        self._model = model
        self._pool = pool
        self._features = features
        self._sampler = sampler
        self._builder = builder

    def propose(self, step: StepLayout, shape: TreeShape, sampling: SamplingInputs) -> DraftTree | None:
        """Extend the draft cache of every speculating request of the step, then grow the trees.

        Args:
            sampling: of the step's drawing requests, tree requests first.

        Returns:
            A tree for each of `step.tree_requests`, in their order; None when the step has none.
        """
        behind = [s.request for s in step.ordered if s.request.speculate]
        behind = [request for request in behind if request.num_draft_rows < request.num_computed_tokens]
        tree_requests = [scheduled.request for scheduled in step.tree_requests]
        roots = self._extend(behind, tree_requests)
        if roots is None:
            return None
        num_places = shape.num_draft_tokens if isinstance(shape, StaticTree) else shape.steps * shape.topk
        context = GrowthContext(
            model=self._model,
            memory=self._pool.draft_layers,
            sampler=self._sampler,
            sampling=sampling,
            builder=self._builder,
            view=self._builder.prefix_view(tree_requests, num_places),
            root_tokens=self._builder.tensor([request.token_ids[-1] for request in tree_requests]),
            max_depths=self._builder.tensor([scheduled.max_draft_depth for scheduled in step.tree_requests]),
        )
        if isinstance(shape, StaticTree):
            return grow_static_tree(context, shape, roots)
        return grow_dynamic_tree(context, shape, roots)

    def _extend(self, behind: Sequence[Request], tree_requests: Sequence[Request]) -> DraftStates | None:
        """Write draft rows from true features; returns those of the roots, [num_tree_reqs, hidden]."""
        if not behind:
            return None
        rows = self._builder.extend_rows(behind)
        features = self._features.take([request.row for request in behind])
        hidden = self._model.combine_features(_with_padding_row(features)[rows.feature_index])
        states = self._model.forward(rows.forward, hidden, self._pool.draft_layers)
        for request in behind:
            request.num_draft_rows = request.num_computed_tokens
        if not tree_requests:
            return None
        last = self._builder.tensor([rows.last_rows[request.request_id] for request in tree_requests])
        return DraftStates(states.head_inputs[last], states.hidden_states[last])


def _with_padding_row(features: Tensor) -> Tensor:
    return torch.cat((features, features.new_zeros(1, features.shape[1])))
