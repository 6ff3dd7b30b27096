"""Which planner an engine gets, and the planner that needs no thought."""

from __future__ import annotations

from collections.abc import Sequence

from aquiline.config import SpeculativeConfig
from aquiline.engine.acceptance import AcceptanceEstimator
from aquiline.engine.acceptance_prior import MAX_LEARNT_RANK
from aquiline.engine.cost_model import CostModel
from aquiline.engine.plan import StepLoad, StepPlan, StepPlanner, StepReport
from aquiline.engine.planner import AutoPlanner
from aquiline.engine.planner_decisions import PlannerSettings
from aquiline.engine.tree_families import TreeBounds
from aquiline.request import Request
from aquiline.speculation import NO_TREE, TreeShape

# Most nodes of a tree that `auto` grows. More cost scratch for every row, and no machine yet has repaid them.
MOST_AUTO_NODES = 32


def bounds_of(config: SpeculativeConfig, draft_vocab_size: int, is_host_memory: bool = False) -> TreeBounds:
    """What the trees of an engine with these settings never exceed.

    Args:
        is_host_memory: the host sees what the draft computes without waiting for a device.
    """
    if config.mode.is_auto and config.table is None:
        reads_confidence = is_host_memory and config.acceptance == "keyed"
        return TreeBounds(MOST_AUTO_NODES, min(MAX_LEARNT_RANK, draft_vocab_size), MOST_AUTO_NODES, reads_confidence)
    return TreeBounds.of_shapes(config.shapes)


def planner_for(
    config: SpeculativeConfig,
    bounds: TreeBounds,
    costs: CostModel | None = None,
    estimator: AcceptanceEstimator | None = None,
    has_draft: bool = True,
) -> StepPlanner:
    """The planner that the settings ask for.

    Args:
        costs: of this machine; None: generic ones that never change, so that no choice depends on a clock.
        estimator: what is known, or expected, of the draft; None: the generic prior.
        has_draft: False: nothing proposes tokens, and every step is plain.
    """
    if not has_draft:
        return FixedPlanner([])
    if config.table is not None:
        return FixedPlanner([(most, mode.shape or NO_TREE) for most, mode in config.table.entries])
    if not config.mode.is_auto:
        return FixedPlanner([(None, config.mode.shape or NO_TREE)])
    settings = PlannerSettings(bounds, config.objective)
    return AutoPlanner(costs or CostModel(learns=False), settings, estimator)


class FixedPlanner:
    """The same shape in every step, or one for each number of decoding requests; nothing is learnt.

    Args:
        table: (most decoding requests, shape) in ascending order; beyond the last entry no tree grows.
    """

    def __init__(self, table: Sequence[tuple[int | None, TreeShape]]) -> None:
        self._table = tuple(table)
        self.learns = False
        self.planning_seconds = 0.0
        self.speculates = True

    def plan(self, load: StepLoad) -> StepPlan:
        """See `StepPlanner`."""
        for most, shape in self._table:
            if most is None or load.num_roots <= most:
                return StepPlan(shape)
        return StepPlan()

    def rest(self) -> StepPlan | None:
        """See `StepPlanner`; its plans cost nothing."""
        return None

    def wants_draft(self, request: Request) -> bool:
        """See `StepPlanner`."""
        return True

    def glance(self, seconds: float, num_accepted: int) -> None:
        """See `StepPlanner`."""

    def observe(self, report: StepReport) -> None:
        """See `StepPlanner`."""

    def forget(self, request_id: str) -> None:
        """See `StepPlanner`."""
