"""Measure what steps cost on this machine, by running steps: plain ones and trees of many sizes, in turn."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from aquiline.config import EngineConfig, SchedulerConfig, SpeculativeConfig
from aquiline.engine.cost_fit import fit_costs
from aquiline.engine.cost_model import CostProfile
from aquiline.engine.engine import Engine, EngineModels
from aquiline.engine.plan import StepLoad, StepPlan, StepReport
from aquiline.engine.planner_choice import MOST_AUTO_NODES
from aquiline.request import Request, SamplingParams
from aquiline.speculation import NO_TREE, StaticTree, chain, tree_from_branching

TuneCallback = Callable[[int, int], None]
"""Called with how many steps are done, and of how many."""

SHORT_ROUNDS = 4
LONG_ROUNDS = 12
# Where steps are slow, the short measurement makes do with fewer of them.
SHORT_BUDGET_SECONDS = 3.0
# The first rounds of an engine warm up what later ones find warm.
WARM_UP_ROUNDS = 1


@dataclass(frozen=True)
class TuneStage:
    """Steps of one engine.

    Attributes:
        batch_size: requests that run together.
        context: tokens of each prompt.
        shapes: grown in turn; NO_TREE twice in a row, the second time with the draft brought up to date.
        brims: shapes of which the first request holds all nodes and the others all but the last: one row more than
            what fills a panel of rows, for instance.

    Worked example, 16 requests and a brim of chain:2: each holds 1 node, the first 2, which makes 33 rows.
    """

    batch_size: int
    context: int
    shapes: tuple[StaticTree, ...]
    brims: tuple[StaticTree, ...] = ()


_SMALL = (NO_TREE, chain(1), chain(3), tree_from_branching([3]), tree_from_branching([3, 2]))
_LARGE = (
    *_SMALL,
    chain(2),
    chain(6),
    tree_from_branching([2, 2, 1]),
    tree_from_branching([7]),
    tree_from_branching([4, 2]),
    tree_from_branching([5, 2, 1]),
    tree_from_branching([4, 2, 2]),
)
# Kernels work on rows in panels of 16, so that times make a leap behind 16 and 32 rows: both sides of it are timed.
_WIDE = tree_from_branching([8, 3])
_PANELS = (_WIDE.truncated(15), _WIDE.truncated(16), _WIDE.truncated(31), _WIDE)
SHORT_STAGES = (
    TuneStage(1, 48, (*_SMALL, tree_from_branching([7]), *_PANELS[:2])),
    TuneStage(1, 384, (NO_TREE, tree_from_branching([3]))),
    TuneStage(4, 48, (NO_TREE, chain(1), tree_from_branching([3]), chain(3))),
    TuneStage(16, 48, (NO_TREE, chain(1)), brims=(chain(1), chain(2))),
)
LONG_STAGES = (
    TuneStage(1, 64, (*_LARGE, *_PANELS)),
    TuneStage(1, 768, _SMALL),
    TuneStage(2, 64, _LARGE),
    TuneStage(4, 64, _LARGE),
    TuneStage(8, 64, _SMALL, brims=(chain(2),)),
    TuneStage(8, 384, _SMALL),
    TuneStage(16, 64, (*_SMALL, chain(2)), brims=(chain(1), chain(2), chain(3))),
    TuneStage(32, 64, (NO_TREE, chain(1), chain(3)), brims=(chain(1), chain(2))),
)


class TourPlanner:
    """Goes through shapes in turn and keeps the reports.

    Args:
        shapes, brims: as in `TuneStage`.
    """

    def __init__(self, shapes: Sequence[StaticTree], brims: Sequence[StaticTree] = ()) -> None:
        self.learns = True
        self.planning_seconds = 0.0
        self.speculates = True
        self.reports: list[StepReport] = []
        # Shape, whether draft rows are written, and how many nodes fewer all but the first request hold.
        self._turns = [
            (shape, writes, 0) for shape in shapes for writes in ((False, True) if shape is NO_TREE else (True,))
        ]
        self._turns += [(shape, True, 1) for shape in brims]
        self._num_plans = 0

    @property
    def num_turns(self) -> int:
        """Steps of one round."""
        return len(self._turns)

    def plan(self, load: StepLoad) -> StepPlan:
        """See `StepPlanner`."""
        if not load.growing:
            return StepPlan()
        shape, writes, fewer = self._turns[self._num_plans % self.num_turns]
        self._num_plans += 1
        held = {request.request_id: shape.num_draft_tokens - fewer for request in load.growing}
        held[load.growing[0].request_id] += fewer
        return StepPlan(shape, held, None if writes else {})

    def rest(self) -> StepPlan | None:
        """See `StepPlanner`."""
        return None

    def wants_draft(self, request: Request) -> bool:
        """See `StepPlanner`."""
        return True

    def glance(self, seconds: float, num_accepted: int) -> None:
        """See `StepPlanner`."""

    def observe(self, report: StepReport) -> None:
        """See `StepPlanner`."""
        if report.seconds is not None:
            self.reports.append(report)

    def forget(self, request_id: str) -> None:
        """See `StepPlanner`."""


def measure_costs(
    models: EngineModels,
    config: EngineConfig,
    stages: Sequence[TuneStage],
    num_rounds: int,
    on_progress: TuneCallback | None = None,
    budget_seconds: float = math.inf,
) -> tuple[CostProfile, int]:
    """Time steps and fit costs to them.

    Args:
        config: of the engine that will use the costs; only its sizes are changed.
        budget_seconds: when so much time is spent, no further step begins, once every shape of the first stage was
            timed.

    Returns:
        The profile, and how many timed steps it rests on.
    """
    limit = min(models.target.config.max_position, config.scheduler.max_model_len or 2**31)
    if models.draft is not None:
        limit = min(limit, models.draft.config.layers.max_position)
    total = sum((num_rounds + WARM_UP_ROUNDS) * TourPlanner(stage.shapes, stage.brims).num_turns for stage in stages)
    reports: list[StepReport] = []
    num_done, deadline = 0, time.perf_counter() + budget_seconds
    for stage in stages:
        if reports and time.perf_counter() > deadline:
            break
        planner = TourPlanner(stage.shapes, stage.brims)
        num_steps = (num_rounds + WARM_UP_ROUNDS) * planner.num_turns
        for _ in _steps(models, config, stage, planner, _Room(num_steps, limit)):
            num_done += 1
            if on_progress is not None:
                on_progress(min(num_done, total), total)
            if time.perf_counter() > deadline and (reports or len(planner.reports) >= 2 * planner.num_turns):
                break
        reports += planner.reports[planner.num_turns :]
    return fit_costs(reports), len(reports)


@dataclass(frozen=True)
class _Room:
    """How many steps a stage takes, and how many tokens a request may hold."""

    num_steps: int
    max_tokens: int


def _steps(
    models: EngineModels, config: EngineConfig, stage: TuneStage, planner: TourPlanner, room: _Room
) -> Iterator[None]:
    """Run the steps of a stage, one per iteration."""
    deepest = max(shape.depth for shape in (*stage.shapes, *stage.brims))
    num_tokens = min(room.max_tokens, stage.context + room.num_steps * (deepest + 1) + 2)
    context = min(stage.context, max(1, num_tokens // 2))
    block_size = config.cache.block_size
    sized = replace(
        config,
        cache=replace(
            config.cache,
            num_blocks=stage.batch_size * (-(-num_tokens // block_size) + 1),
            kv_cache_gb=None,
            enable_prefix_cache=False,
        ),
        scheduler=SchedulerConfig(stage.batch_size, max(1024, stage.batch_size * (MOST_AUTO_NODES + 1)), num_tokens),
        speculative=SpeculativeConfig(lookup="off"),
        check_consistency=False,
    )
    engine = Engine(models, sized, planner=planner)
    dice = random.Random(0)
    params = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
    vocab_size = models.target.config.vocab_size
    number = 0
    while len(planner.reports) < room.num_steps:
        # Requests that reach the end of a short context are followed by others.
        while engine.scheduler.num_running + engine.scheduler.num_waiting < stage.batch_size:
            engine.add_request(f"tune-{number}", [dice.randrange(vocab_size) for _ in range(context)], params)
            number += 1
        before = len(planner.reports)
        engine.step()
        if len(planner.reports) > before:
            yield
