"""A planner without any sense: every step another shape, other shares, and draft rows written whenever it likes."""

from __future__ import annotations

import random

from aquiline.engine.engine import Engine
from aquiline.engine.plan import StepLoad, StepPlan, StepPlanner, StepReport
from aquiline.request import Request
from aquiline.speculation import NO_TREE, StaticTree


def put_planner(engine: Engine, planner: StepPlanner) -> None:
    """Let a planner decide for an engine that was made with another."""
    engine.planner = engine.scheduler._planner = engine._observer._planner = planner
    engine.scheduler._planning._planner = planner


class RandomPlanner:
    """Grows random trees, or none, for random requests.

    Attributes:
        most_pending: most draft rows that a request was behind when it got a plan.
        num_reports: steps of which it was told.
    """

    def __init__(self, seed: int, max_draft_tokens: int = 6) -> None:
        self.learns = True
        self.planning_seconds = 0.0
        self.speculates = True
        self.most_pending = 0
        self.num_reports = 0
        self._dice = random.Random(seed)
        self._most = max_draft_tokens
        self._is_on = True
        self._last: StepPlan | None = None

    @classmethod
    def put_into(cls, engine: Engine, seed: int) -> RandomPlanner:
        """Let it decide for an engine that was made for `auto`."""
        planner = cls(seed)
        put_planner(engine, planner)
        return planner

    def plan(self, load: StepLoad) -> StepPlan:
        """See `StepPlanner`."""
        dice = self._dice
        if dice.random() < 0.25:
            self._is_on = not self._is_on
        pending = {r.request_id: r.num_computed_tokens - r.num_draft_rows for r in load.speculating}
        self.most_pending = max([self.most_pending, *pending.values()])
        rows = {name: dice.randint(0, most) for name, most in pending.items() if most > 0 and dice.random() < 0.4}
        shape = self._shape() if self._is_on else NO_TREE
        held = {r.request_id: dice.randint(0, shape.num_draft_tokens) for r in load.growing}
        self._last = StepPlan(shape, held, {})
        return StepPlan(shape, held, rows)

    def _shape(self) -> StaticTree:
        """Nodes in random order, each behind its parent and elder siblings."""
        parents, ranks, widths = [-1], [0], [0]
        for node in range(1, self._dice.randint(1, self._most) + 1):
            parent = self._dice.randrange(node)
            parents.append(parent)
            ranks.append(widths[parent])
            widths[parent] += 1
            widths.append(0)
        return StaticTree(tuple(parents), tuple(ranks))

    def rest(self) -> StepPlan | None:
        """See `StepPlanner`; at random too, and as often as not with the trees of the last plan."""
        if self._dice.random() < 0.3:
            return StepPlan(NO_TREE, {}, {})
        return self._last if self._last is not None and self._dice.random() < 0.5 else None

    def wants_draft(self, request: Request) -> bool:
        """See `StepPlanner`."""
        return self._dice.random() < 0.9

    def glance(self, seconds: float, num_accepted: int) -> None:
        """See `StepPlanner`."""

    def observe(self, report: StepReport) -> None:
        """See `StepPlanner`."""
        self.num_reports += 1
        assert all(max(outcome.accepted, default=0) <= outcome.num_draft_tokens for outcome in report.outcomes)
        assert report.size.num_rows >= report.size.num_drawn_rows >= len(report.outcomes)

    def forget(self, request_id: str) -> None:
        """See `StepPlanner`."""
