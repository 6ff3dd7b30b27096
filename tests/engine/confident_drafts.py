"""Drafts that say how sure they are, machines whose trees end where such a draft has no confidence, and the best that
any threshold would do on them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from aquiline.engine.cost_model import StepSize
from aquiline.engine.cut_tally import THRESHOLDS
from aquiline.engine.cut_tree import CutTree
from aquiline.engine.plan import StepLoad, StepPlan, StepReport, TreeOutcome
from aquiline.engine.planner import AutoPlanner
from aquiline.request import Request
from aquiline.speculation import NO_TREE, DynamicTree, TreeShape
from tests.engine.synthetic_costs import FormulaCosts, Run, size_with


@dataclass(frozen=True)
class ConfidentDraft:
    """A draft that is sure at some places of a text and not at others.

    Attributes:
        sharpness: of the first child's probability, a beta distribution with these parameters.
        truth: what share of its confidence comes true.
    """

    sharpness: tuple[float, float] = (0.7, 0.7)
    truth: float = 1.0

    def children(self, dice: random.Random, num_children: int) -> list[float]:
        """Confidence in the children of one node, best first."""
        first = dice.betavariate(*self.sharpness)
        left, found = 1.0 - first, [first]
        while len(found) < num_children:
            found.append(min(found[-1], 0.4 * left))
            left -= found[-1]
        return found

    def grow(self, dice: random.Random, shape: DynamicTree) -> CutTree:
        """A tree, and the path that the target accepts: level by level, then the best nodes of all."""
        nodes: list[tuple[float, int, int]] = []  # survival, parent in the order of growth, depth
        frontier, truths = [-1], {-1}
        for depth in range(1, shape.steps + 1):
            grown: list[int] = []
            for parent in frontier:
                own = nodes[parent][0] if parent >= 0 else 1.0
                chances = self.children(dice, shape.topk)
                throw, passed = dice.random(), 0.0
                for chance in chances:
                    passed += chance * self.truth
                    is_next, throw = throw < passed, 2.0 if throw < passed else throw
                    if own * chance < shape.least_survival:
                        continue
                    nodes.append((own * chance, parent, depth))
                    grown.append(len(nodes) - 1)
                    if is_next and parent in truths:
                        truths.add(len(nodes) - 1)
            frontier = sorted(grown, key=lambda node: -nodes[node][0])[: shape.topk]
        best = sorted(range(len(nodes)), key=lambda node: (-nodes[node][0], node))[: shape.num_draft_tokens]
        number = {node: place for place, node in enumerate(sorted(best), 1)}
        kept = [nodes[node] for node in sorted(best)]
        return CutTree(
            tuple(survival for survival, _, _ in kept),
            tuple(number[parent] if parent >= 0 else 0 for _, parent, _ in kept),
            tuple(depth for _, _, depth in kept),
            tuple(sorted(number[node] for node in truths if node in number)),
        )


def step_size(load: StepLoad, trees: Sequence[CutTree], new_rows: int) -> StepSize:
    """Of a step in which some requests grew trees."""
    nodes = sum(len(tree.survivals) for tree in trees)
    deepest = max((max(tree.depths, default=0) for tree in trees), default=0)
    levels = [sum(tree.depths.count(depth) for tree in trees) for depth in range(1, deepest + 1)]
    return size_with(load, nodes, new_rows, [len(trees), *levels] if trees else [])


def rate_of(
    costs: FormulaCosts, load: StepLoad, draft: ConfidentDraft, shape: DynamicTree, num_steps: int, seed: int = 7
) -> float:
    """Committed tokens per second if every request grows this tree in every step."""
    dice, seconds, committed, before = random.Random(seed), 0.0, 0, load.num_roots
    for _ in range(num_steps):
        trees = [draft.grow(dice, shape) for _ in load.growing]
        seconds += costs.predict(step_size(load, trees, before)).total
        before = load.num_roots + sum(len(tree.accepted) for tree in trees)
        committed += before
    return committed / seconds


def best_rate(costs: FormulaCosts, load: StepLoad, draft: ConfidentDraft, shape: DynamicTree, num_steps: int) -> float:
    """The best of plain decoding and of every threshold between those that the planner knows, and beyond them."""
    plain = load.num_roots / costs.predict(step_size(load, (), 0)).total
    finer = sorted({*THRESHOLDS, *((one + other) / 2 for one, other in itertools.pairwise(THRESHOLDS))})
    shapes = [DynamicTree(shape.steps, shape.topk, shape.num_draft_tokens, least) for least in (0.02, *finer, 0.85)]
    return max(plain, *(rate_of(costs, load, draft, each, num_steps) for each in shapes))


@dataclass
class CutMachine:
    """Runs steps as a planner wants them and reports them back; within a call the same requests decode on."""

    planner: AutoPlanner
    costs: FormulaCosts
    dice: random.Random
    run: Run = field(default_factory=Run)
    held: list[set[str]] = field(default_factory=list)

    def steps(
        self, num_steps: int, load_of: Callable[[], StepLoad], draft_of: Callable[[Request], ConfidentDraft]
    ) -> Run:
        for step in range(num_steps):
            load = load_of()
            plan = self.planner.rest() if step else None
            self._step(load, plan or self.planner.plan(load), draft_of)
        return self.run

    def _step(self, load: StepLoad, plan: StepPlan, draft_of: Callable[[Request], ConfidentDraft]) -> None:
        held = plan.num_draft_tokens or {}
        trees: dict[str, CutTree] = {}
        new_rows, committed = 0, load.num_roots
        for each in plan.gives_up:
            each.num_draft_rows = each.num_computed_tokens
        for each in load.growing:
            caught_up = (plan.num_new_draft_rows or {}).get(each.request_id, 0)
            if each.request_id in held:
                assert isinstance(plan.shape, DynamicTree)
                caught_up = each.num_computed_tokens - each.num_draft_rows
                shape = plan.shape.truncated(held[each.request_id])
                trees[each.request_id] = draft_of(each).grow(self.dice, shape)
            each.num_draft_rows += caught_up
            new_rows += caught_up
            num_accepted = len(trees[each.request_id].accepted) if each.request_id in trees else 0
            committed += num_accepted
            each.num_computed_tokens += num_accepted + 1
            each.token_ids += [1] * (num_accepted + 1)
        self._report(load, plan.shape if trees else NO_TREE, trees, new_rows)
        self.run.choices.append(sum(len(tree.survivals) for tree in trees.values()))
        self.run.keys.append(self.planner.last.candidate.key if self.planner.last else (-1, 0))
        self.run.committed.append(committed)
        self.held.append(set(trees))

    def _report(self, load: StepLoad, shape: TreeShape, trees: dict[str, CutTree], new_rows: int) -> None:
        size = step_size(load, list(trees.values()), new_rows)
        seconds = self.costs.predict(size)
        self.run.seconds.append(seconds.total)
        self.planner.glance(seconds.total, sum(len(tree.accepted) for tree in trees.values()))
        if not self.planner.learns:
            return
        outcomes = [
            TreeOutcome(request_id, len(tree.survivals), tree.accepted, tree=tree) for request_id, tree in trees.items()
        ]
        self.planner.observe(StepReport(shape, size, seconds, tuple(outcomes)))
