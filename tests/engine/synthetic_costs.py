"""Machines that exist only as formulas, drafts with known rates, and the best that anyone could choose on them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

from aquiline.engine.cost_curve import Curve
from aquiline.engine.cost_model import CostProfile, StepSeconds, StepSize
from aquiline.engine.plan import StepLoad, StepPlan, StepReport, TreeOutcome
from aquiline.engine.planner import AutoPlanner
from aquiline.request import Request, SamplingParams
from aquiline.speculation import NO_TREE, StaticTree, chain, tree_from_branching

Formula = Callable[[int], float]
FloatArray = NDArray[np.float64]

MACHINES: dict[str, Formula] = {
    "convex": lambda rows: 1.0 + 0.002 * rows**1.4,
    "flat": lambda rows: 1.0 + 0.0005 * rows,
    "steep": lambda rows: 0.5 + 0.5 * rows,
    "stepped": lambda rows: 1.0 + 0.35 * (-(-rows // 16) - 1),
    "cliff": lambda rows: 1.0 + 0.004 * rows + (3.0 if rows > 40 else 0.0),
    "knee": lambda rows: max(1.0, 0.06 * rows),
}

RATES = {
    "good": [[0.8, 0.1, 0.03, 0.02]] * 8,
    "fair": [[0.55, 0.14, 0.07, 0.04], [0.5, 0.12, 0.06, 0.03], *[[0.45, 0.1, 0.05, 0.03]] * 6],
    "fading": [[0.7 * 0.7**depth, 0.1 * 0.7**depth, 0.05 * 0.7**depth, 0.0] for depth in range(8)],
    "useless": [[0.01, 0.005, 0.0, 0.0]] * 8,
}


def exact_profile(verify: Formula, rows: tuple[int, ...]) -> CostProfile:
    """What an exact measurement of a machine of `FormulaCosts` would give, at so many rows."""
    return CostProfile(
        verify=Curve(rows, tuple(map(verify, rows))),
        seconds_per_context_token=0.0,
        seconds_per_row_context=0.0,
        extend=Curve((1, 256), (0.026, 0.281)),
        propose_roots=Curve((1, 256), (0.051, 0.306)),
        level=Curve((1, 256), (0.051, 0.306)),
        sample_base=0.02,
        sample_per_row=0.001,
        host_base=0.0,
        host_per_request=0.002,
    )


@dataclass
class FormulaCosts:
    """`StepCosts` of a machine: the target by formula, the draft by its rows and levels.

    Attributes:
        noise: spread of what a run really takes around the formula; predictions have none.
    """

    verify: Formula
    draft_level: float = 0.05
    draft_row: float = 0.001
    noise: float = 0.0
    context_cost: float = 1e-6
    version: int = 0
    learns: bool = True
    stairs: tuple[int, ...] = ()
    mask_seconds: float = 0.0
    observed: list[StepSize] = field(default_factory=list)

    @property
    def num_observed(self) -> int:
        return len(self.observed)

    def verify_seconds(self, num_rows: int, context: int, row_context: int) -> float:
        return self.verify(num_rows) + self.context_cost * (context + 2 * row_context)

    def draft_seconds(self, num_new_rows: int, level_rows: Sequence[int]) -> float:
        seconds = self.draft_level / 2 + self.draft_row * num_new_rows if num_new_rows else 0.0
        return seconds + sum(self.draft_level + self.draft_row * rows for rows in level_rows)

    def _draft_seconds(self, num_new_rows: int, level_rows: Sequence[float]) -> float:
        """A level with less than one row in the mean runs in so many of all steps."""
        seconds = self.draft_seconds(num_new_rows, ())
        return seconds + sum(self.draft_seconds(0, [max(1, round(rows))]) * min(1.0, rows) for rows in level_rows)

    def other_seconds(self, num_drawn_rows: int, num_requests: int) -> float:
        return 0.02 + 0.001 * num_drawn_rows + 0.002 * num_requests

    def verify_seconds_of(self, num_rows: FloatArray, context: int, row_context: FloatArray) -> FloatArray:
        forwards = zip(num_rows, row_context, strict=True)
        return np.array([self.verify_seconds(round(rows), context, round(summed)) for rows, summed in forwards])

    def draft_seconds_of(self, num_new_rows: FloatArray, level_rows: FloatArray) -> FloatArray:
        runs = zip(num_new_rows, level_rows, strict=True)
        return np.array([self._draft_seconds(round(new), levels.tolist()) for new, levels in runs])

    def other_seconds_of(self, num_drawn_rows: FloatArray, num_requests: int) -> FloatArray:
        return np.array([self.other_seconds(round(rows), num_requests) for rows in num_drawn_rows])

    def observe(self, size: StepSize, seconds: StepSeconds, num_steps: int = 1) -> None:
        self.observed += [size] * num_steps

    def predict(self, size: StepSize) -> StepSeconds:
        return StepSeconds(
            self.verify_seconds(size.num_rows, size.context, size.row_context),
            self.draft_seconds(size.num_new_rows, size.level_rows),
            self.other_seconds(size.num_drawn_rows, size.num_requests),
            0.0,
        )


GREEDY = SamplingParams(temperature=0.0)


def request(index: int, context: int = 100, params: SamplingParams = GREEDY, name: str = "") -> Request:
    """One that decodes, with its draft as far as it can be."""
    prompt = tuple([1] * context)
    made = Request(name or f"r{index}", prompt, params, seed=0)
    made.token_ids.append(2)
    made.num_computed_tokens = context
    made.num_draft_rows = context - 1
    return made


def load_of(requests: Sequence[Request], num_other_rows: int = 0) -> StepLoad:
    context = sum(each.num_computed_tokens for each in requests)
    return StepLoad(len(requests), requests, requests, context, num_other_rows)


def survivals(shape: StaticTree, rates: Sequence[Sequence[float]]) -> list[float]:
    """Chance of each node to be committed."""
    found = [1.0]
    for parent, rank, depth in zip(shape.parents[1:], shape.ranks[1:], shape.depths[1:], strict=True):
        row = rates[min(depth, len(rates)) - 1]
        found.append(found[parent] * (row[rank] if rank < len(row) else 0.0))
    return found


def step_size(load: StepLoad, shape: StaticTree, sizes: Sequence[int], new_rows: float) -> StepSize:
    """Of a step in which the growing requests hold the first `sizes` nodes of `shape`."""
    trees = sum(size > 0 for size in sizes)
    widths = [sum(shape.num_children[node] > 0 for node in level) for level in shape.levels[:-1]] if trees else []
    return size_with(load, sum(sizes), round(new_rows), [width * trees for width in widths])


def size_with(load: StepLoad, nodes: int, new_rows: int, level_rows: Sequence[int]) -> StepSize:
    """Of a step with so many nodes and rows of the draft; draft rows are written only where a tree grows."""
    mean_context = load.context // max(1, load.num_roots)
    return StepSize(
        num_rows=load.num_roots + nodes + load.num_other_rows,
        num_drawn_rows=load.num_roots + nodes,
        num_requests=load.num_roots,
        context=load.context,
        row_context=load.context + nodes * mean_context,
        num_new_rows=new_rows if level_rows else 0,
        level_rows=tuple(level_rows),
    )


def true_rate(
    costs: FormulaCosts, load: StepLoad, shape: StaticTree, sizes: Sequence[int], rates: Sequence[Sequence[float]]
) -> float:
    """Committed tokens per second."""
    chances = survivals(shape, rates)
    expected = load.num_roots + sum(sum(chances[1 : size + 1]) for size in sizes)
    return expected / costs.predict(step_size(load, shape, sizes, expected)).total


def best_rate(costs: FormulaCosts, load: StepLoad, rates: Sequence[Sequence[float]], max_nodes: int = 64) -> float:
    """The best of plain decoding, chains, full trees, and best-first trees of every size and depth."""
    found = 0.0
    for shape in shapes_to_beat(rates, max_nodes):
        sizes = [shape.num_draft_tokens] * len(load.growing)
        found = max(found, true_rate(costs, load, shape, sizes, rates))
    return found


def shapes_to_beat(rates: Sequence[Sequence[float]], max_nodes: int) -> list[StaticTree]:
    """Whatever someone might set by hand."""
    return _shapes_to_beat(tuple(map(tuple, rates)), max_nodes)


@cache
def _shapes_to_beat(rates: tuple[tuple[float, ...], ...], max_nodes: int) -> list[StaticTree]:
    shapes = [NO_TREE, *(chain(steps) for steps in range(1, 11))]
    shapes += [tree_from_branching(widths) for widths in ([2], [4], [8], [2, 2], [4, 2, 1], [3, 2, 2], [4, 4, 2])]
    for max_depth in (1, 2, 3, 4, 5, 6, 8, 10):
        shape = ideal_tree(rates, max_depth, max_nodes)
        shapes += [shape.truncated(size) for size in range(1, shape.num_draft_tokens + 1)]
    return [shape for shape in shapes if shape.num_draft_tokens <= max_nodes]


def ideal_tree(rates: Sequence[Sequence[float]], max_depth: int, max_nodes: int) -> StaticTree:
    """Nodes in the order of their true survival."""
    paths: dict[tuple[int, ...], float] = {(): 1.0}
    order: list[tuple[int, ...]] = [()]
    while len(order) <= max_nodes:
        best, chance = None, 0.0
        for path in order:
            if len(path) < max_depth:
                rank = sum(other[:-1] == path for other in order if other)
                row = rates[min(len(path), len(rates) - 1)]
                value = paths[path] * row[rank] if rank < len(row) else 0.0
                if value > chance:
                    best, chance = (*path, rank), value
        if best is None:
            break
        order.append(best)
        paths[best] = chance
    number = {path: index for index, path in enumerate(order)}
    return StaticTree(
        tuple(number[path[:-1]] if path else -1 for path in order), tuple(path[-1] if path else 0 for path in order)
    )


def walk(shape: StaticTree, size: int, rates: Sequence[Sequence[float]], dice: random.Random) -> tuple[int, ...]:
    """The accepted path of one tree, drawn by the true rates."""
    accepted: list[int] = []
    parent = 0
    while True:
        throw, passed, hit = dice.random(), 0.0, None
        for node in range(parent + 1, size + 1):
            if shape.parents[node] == parent:
                row = rates[min(shape.depths[node], len(rates)) - 1]
                passed += row[shape.ranks[node]] if shape.ranks[node] < len(row) else 0.0
                if throw < passed:
                    hit = node
                    break
        if hit is None:
            return tuple(accepted)
        accepted.append(hit)
        parent = hit


@dataclass
class Run:
    """What became of some steps.

    Attributes:
        choices: nodes held per step, all requests together.
        keys: of the chosen candidates.
        committed, seconds: by step; seconds are the true ones, without noise.
    """

    choices: list[int] = field(default_factory=list)
    keys: list[tuple[int, int]] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def rate(self, first: int = 0) -> float:
        return sum(self.committed[first:]) / sum(self.seconds[first:])


@dataclass
class Machine:
    """Runs steps as a planner wants them and reports them back; within a call the same requests decode on."""

    planner: AutoPlanner
    costs: FormulaCosts
    dice: random.Random
    run: Run = field(default_factory=Run)

    def steps(
        self, num_steps: int, requests: Sequence[Request], rates: Callable[[Request], Sequence[Sequence[float]]]
    ) -> Run:
        for step in range(num_steps):
            load = load_of(requests)
            plan = self.planner.rest() if step else None
            self._step(load, plan or self.planner.plan(load), rates)
        return self.run

    def _step(self, load: StepLoad, plan: StepPlan, rates: Callable[[Request], Sequence[Sequence[float]]]) -> None:
        shape = plan.shape
        assert isinstance(shape, StaticTree)
        held = plan.num_draft_tokens or {}
        sizes = [held.get(each.request_id, 0) for each in load.growing]
        for each in plan.gives_up:
            # As if another had come in its place.
            each.num_draft_rows = each.num_computed_tokens
        new_rows, outcomes, committed = 0, [], 0
        for each, size in zip(load.growing, sizes, strict=True):
            caught_up = (plan.num_new_draft_rows or {}).get(each.request_id, 0)
            if size:
                caught_up = each.num_computed_tokens - each.num_draft_rows
            each.num_draft_rows += caught_up
            new_rows += caught_up
            accepted = walk(shape, size, rates(each), self.dice) if size else ()
            if size:
                outcomes.append(TreeOutcome(each.request_id, size, accepted))
            committed += len(accepted) + 1
            each.num_computed_tokens += len(accepted) + 1
            each.token_ids += [1] * (len(accepted) + 1)
        size_of_step = step_size(load, shape, sizes, new_rows)
        seconds = self.costs.predict(size_of_step)
        if not any(sizes) and new_rows:
            draft = self.costs.draft_seconds(new_rows, ())
            seconds = StepSeconds(seconds.verify, draft, seconds.sample, seconds.host)
        measured = self._noisy(seconds)
        self.planner.glance(measured.total, sum(len(outcome.accepted) for outcome in outcomes))
        if self.planner.learns:
            self.planner.observe(StepReport(shape, size_of_step, measured, tuple(outcomes)))
        self.run.choices.append(sum(sizes))
        self.run.keys.append(self.planner.last.candidate.key if self.planner.last else (-1, 0))
        self.run.committed.append(committed)
        self.run.seconds.append(seconds.total)

    def _noisy(self, seconds: StepSeconds) -> StepSeconds:
        if not self.costs.noise:
            return seconds
        accident = 3.0 if self.dice.random() < 0.03 else 1.0
        factor = accident * max(0.5, 1.0 + self.dice.gauss(0.0, self.costs.noise))
        return StepSeconds(
            seconds.verify * factor, seconds.draft * factor, seconds.sample * factor, seconds.host * factor
        )
