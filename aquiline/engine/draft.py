"""Run the draft: bring its cache up to the committed history, then let a tree grow."""

from __future__ import annotations

from aquiline.engine.draft_inputs import DraftInputBuilder
from aquiline.engine.feature_store import FeatureStore
from aquiline.engine.guidance import Guidance
from aquiline.engine.inputs import InputBuilder, StepLayout
from aquiline.engine.kv_pool import KVPool
from aquiline.engine.native_grower import NativeGrower
from aquiline.engine.sample import Sampler
from aquiline.engine.sampling_inputs import SamplingInputs
from aquiline.engine.tree import DraftTree
from aquiline.engine.tree_grower import DraftWork, ReferenceGrower, TreeGrower
from aquiline.models.interfaces import DraftModel
from aquiline.models.native_eagle import NativeEagle
from aquiline.speculation import TreeShape


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
    """

    def __init__(self, grower: TreeGrower, guidance: Guidance) -> None:
        self._grower = grower
        self._guidance = guidance

    def propose(self, step: StepLayout, shape: TreeShape, sampling: SamplingInputs) -> DraftTree | None:
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
        is_guided = any(self._guidance.is_guided(s.request) for s in step.growing_requests)
        guidance = self._guidance if is_guided else None
        tree = self._grower.run(DraftWork(behind, len(step.growing_requests), shape, sampling, guidance))
        for scheduled in behind:
            scheduled.request.num_draft_rows += scheduled.num_due_draft_rows
        return tree
