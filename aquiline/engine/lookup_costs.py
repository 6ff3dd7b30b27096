"""What rows of looked-up nodes cost, by the load, and how that is learnt where no draft model asks for it."""

from __future__ import annotations

from aquiline.engine.cost_curve import Curve
from aquiline.engine.cost_model import GENERIC_PROFILE, CostModel, CostProfile, StepCosts
from aquiline.engine.plan import StepLoad, StepPlan, StepReport
from aquiline.engine.planner_choice import FixedPlanner
from aquiline.engine.row_worth import RowCosts

# About what a step of one request takes: costs that are learnt start from times of the right order.
TYPICAL_STEP_SECONDS = 0.005
# Steps with looked-up nodes always teach, and of the others every so manyth.
STEPS_PER_LESSON = 8
# After so many steps in a row without a looked-up node a few are tried, and after so many with nodes some steps go
# without, so that the times of both are known; the latter happens soon at first, and then half as often each time. One
# step alone would pass for an accident.
STEPS_TO_PROBE = 512
FIRST_STEPS_TO_REST = 8
MOST_STEPS_TO_REST = 512
STEPS_OF_A_REST = 3
# Costs are kept for so many loads.
MOST_KNOWN_LOADS = 64
SHORTEST_CONTEXT = 128
# What joining trees takes beside all else that a tree costs, as a share of all that the host does in a step; and of a
# generic step with one row.
TREE_SHARE_OF_HOST = 0.3
TREE_SHARE_OF_STEP = 0.02


def unmeasured_costs() -> CostModel:
    """Generic costs in seconds, which learn from every step that is observed."""
    return CostModel(scaled(GENERIC_PROFILE, TYPICAL_STEP_SECONDS))


def scaled(profile: CostProfile, factor: float) -> CostProfile:
    """A machine on which everything takes `factor` times as long."""
    curves: dict[str, Curve] = {}
    numbers: dict[str, float] = {}
    for name, value in vars(profile).items():
        if isinstance(value, Curve):
            curves[name] = Curve(value.rows, tuple(factor * seconds for seconds in value.seconds))
        else:
            numbers[name] = factor * value
    return CostProfile(**curves, **numbers)  # type: ignore[arg-type]


class LookupPlanner(FixedPlanner):
    """Grows no trees, and learns what steps take, so that lookup proposes what pays.

    Args:
        costs: that learn.
    """

    def __init__(self, costs: CostModel) -> None:
        super().__init__([])
        self.costs = costs
        self._num_steps = 0

    def plan(self, load: StepLoad) -> StepPlan:
        """See `StepPlanner`."""
        self._num_steps += 1
        self.learns = load.num_other_rows > 0 or self._num_steps % STEPS_PER_LESSON == 0
        return super().plan(load)

    def observe(self, report: StepReport) -> None:
        """See `StepPlanner`."""
        if report.seconds is not None:
            self.costs.observe(report.size, report.seconds)


class Tempo:
    """When steps are to differ from those before them, so that costs of both kinds are learnt.

    Args:
        learns: False: never.

    Attributes:
        is_probe: looked-up nodes should be in the next step, whether they pay or not.
        is_rest: none should be.
    """

    def __init__(self, learns: bool) -> None:
        self._learns = learns
        self.is_probe = self.is_rest = False
        self._num_alike = self._num_left = 0
        self._has_nodes = False
        self._steps_to_rest = FIRST_STEPS_TO_REST

    def count(self, has_nodes: bool) -> None:
        """One more step is settled."""
        if self.is_rest:
            self._num_left -= 1
            self.is_rest = self._num_left > 0
            return
        is_alike = has_nodes == self._has_nodes and not self.is_probe
        self._num_alike = self._num_alike + 1 if is_alike else 0
        self._has_nodes, self.is_probe = has_nodes, False
        if self._learns and has_nodes and self._num_alike >= self._steps_to_rest:
            self.is_rest, self._num_left, self._num_alike = True, STEPS_OF_A_REST, 0
            self._steps_to_rest = min(2 * self._steps_to_rest, MOST_STEPS_TO_REST)
        elif self._learns and not has_nodes:
            self.is_probe = self._num_alike >= STEPS_TO_PROBE


class LoadCosts:
    """Times of rows, for steps of each load."""

    def __init__(self, costs: StepCosts | None) -> None:
        self._costs = costs
        self._generic = RowCosts()
        self._known: dict[tuple[int, int], RowCosts] = {}

    @property
    def are_learnt(self) -> bool:
        """Whether times follow those of the steps that run."""
        return self._costs is not None

    def at(self, num_requests: int, mean_context: int) -> RowCosts:
        """Those of steps of so many requests with so many tokens each, or a few more."""
        if self._costs is None:
            return self._generic
        # To the next power of two, so that the load stays the same for a while.
        key = num_requests, 1 << (max(SHORTEST_CONTEXT, mean_context) - 1).bit_length()
        costs = self._known.get(key)
        if costs is None:
            if len(self._known) == MOST_KNOWN_LOADS:
                self._known.clear()
            costs = self._known[key] = RowCosts.of(self._costs, *key)
        costs.refresh()
        return costs

    def tree_time(self, num_requests: int) -> float:
        """What a step takes longer for holding any node, its rows not counted."""
        if self._costs is None:
            return TREE_SHARE_OF_STEP * self._generic.time(1)
        return TREE_SHARE_OF_HOST * self._costs.other_seconds(0, num_requests)
