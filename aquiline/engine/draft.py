"""Run the draft: bring its cache up to the committed history, then let a tree grow."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aquiline.engine.draft_inputs import DraftInputBuilder
from aquiline.engine.feature_store import FeatureStore
from aquiline.engine.guidance import Guidance
from aquiline.engine.inputs import InputBuilder, StepLayout
from aquiline.engine.kv_pool import KVPool
from aquiline.engine.native_grower import NativeGrower
from aquiline.engine.sample import Sampler
from aquiline.engine.sampling_inputs import SamplingInputs
from aquiline.engine.schedule import ScheduledRequest, TreeGroup
from aquiline.engine.tree import DraftTree, joined_trees
from aquiline.engine.tree_grower import DraftWork, ReferenceGrower, TreeGrower
from aquiline.models.interfaces import DraftModel
from aquiline.models.native_eagle import NativeEagle
from aquiline.request import Request
from aquiline.speculation import NO_TREE


def grower_for(
    model: DraftModel, pool: KVPool, features: FeatureStore, sampler: Sampler, builder: InputBuilder
) -> TreeGrower:
    """The grower that suits a draft and an acceptance rule.

    Args:
        features: where the target's features of newly committed tokens wait.
        builder: of the target's rows, over the same pool.
    """
    if isinstance(model, NativeEagle) and sampler.acceptance == "keyed":
        return NativeGrower(model, pool, features)
    return ReferenceGrower(model, pool, features, sampler, DraftInputBuilder(pool.layout, builder))


class Drafter:
    """Proposes one tree per tree request of a step.

    Args:
        guidance: what grammars allow: children are chosen among that.
        gather: makes the sampling inputs of some requests of a step.
    """

    def __init__(
        self, grower: TreeGrower, guidance: Guidance, gather: Callable[[Sequence[Request]], SamplingInputs]
    ) -> None:
        self._grower = grower
        self._guidance = guidance
        self._gather = gather

    def propose(self, step: StepLayout, sampling: SamplingInputs) -> DraftTree | None:
        """Extend the draft cache by the rows that are due, then grow the trees.

        Args:
            sampling: of the step's drawing requests, tree requests first.

        Returns:
            A tree for each of `step.growing_requests`, in their order; None when the step has none.
        """
        # The token that a step draws is always new to the draft, so no request that grows a tree is missing here.
        behind = [s for s in step.ordered if s.num_due_draft_rows]
        if not behind:
            return None
        first = step.groups[0] if step.groups else TreeGroup(NO_TREE, ())
        idle = [scheduled for scheduled in behind if scheduled.grown_depth == 0]
        trees = [self._grow(first, idle, sampling)]
        for group in step.groups[1:]:
            trees.append(self._grow(group, [], self._gather([scheduled.request for scheduled in group.requests])))
        for scheduled in behind:
            scheduled.request.num_draft_rows += scheduled.num_due_draft_rows
        return joined_trees([tree for tree in trees if tree is not None])

    def _grow(self, group: TreeGroup, idle: Sequence[ScheduledRequest], sampling: SamplingInputs) -> DraftTree | None:
        """Trees of one shape; `idle` requests only write the draft rows that are due to them."""
        is_guided = any(self._guidance.is_guided(scheduled.request) for scheduled in group.requests)
        guidance = self._guidance if is_guided else None
        behind = [*group.requests, *idle]
        return self._grower.run(DraftWork(behind, len(group.requests), group.shape, sampling, guidance))
