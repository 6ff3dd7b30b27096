"""The planner with trees that end where the draft has no confidence: near the best threshold, never far below plain."""

from __future__ import annotations

import random
from functools import partial
from itertools import product

import pytest

from aquiline.engine.cut_candidates import CUTS
from aquiline.engine.cut_tally import THRESHOLDS
from aquiline.engine.plan import StepLoad
from aquiline.engine.planner import AutoPlanner
from aquiline.engine.planner_decisions import PlannerSettings
from aquiline.engine.tree_families import TreeBounds
from aquiline.request import Request
from tests.engine.confident_drafts import ConfidentDraft, CutMachine, best_rate, step_size
from tests.engine.synthetic_costs import MACHINES, FormulaCosts, Run, load_of, request

BOUNDS = TreeBounds(32, 8, 32, reads_confidence=True)
DRAFTS = {
    "decided": ConfidentDraft((0.5, 0.5)),
    "vague": ConfidentDraft((1.0, 2.0)),
    "boastful": ConfidentDraft((0.7, 0.5), truth=0.6),
}


def straight(row_seconds: float, rows: int) -> float:
    return 1.0 + row_seconds * rows


def machine_for(costs: FormulaCosts, seed: int = 1) -> CutMachine:
    return CutMachine(AutoPlanner(costs, PlannerSettings(BOUNDS)), costs, random.Random(seed))


def fresh_load(requests: list[Request]) -> StepLoad:
    """Contexts stay as they are, so that one figure holds for a whole run."""
    for each in requests:
        each.num_computed_tokens, each.num_draft_rows = 100, 99
        del each.token_ids[101:]
    return load_of(requests)


# A lone request teaches least, so it meets every draft on every machine; others take turns.
CASES = [
    (machine, draft, num_requests)
    for place, (machine, draft) in enumerate(product(MACHINES, DRAFTS))
    for num_requests in (1, (4, 32)[place % 2])
]


@pytest.mark.parametrize(("machine", "draft", "num_requests"), CASES)
def test_it_comes_near_the_best_threshold(machine: str, draft: str, num_requests: int) -> None:
    costs = FormulaCosts(MACHINES[machine])
    requests = [request(index) for index in range(num_requests)]
    made = machine_for(costs)
    num_steps = 1200 if num_requests == 1 else 400
    run = made.steps(num_steps, lambda: fresh_load(requests), lambda _: DRAFTS[draft])
    best = best_rate(costs, load_of(requests), DRAFTS[draft], CUTS[-1].shape(BOUNDS), 3000 // num_requests)
    # Drawn at random, so within a few per cent of what was drawn for the others. The planner keeps away from a cliff,
    # for the number of nodes varies; and where hardly any node pays, what it learns with costs it most, and a lone
    # request teaches least.
    least = 0.85 if (machine, num_requests) == ("steep", 1) else 0.9 if machine in ("cliff", "steep") else 0.95
    assert run.rate(num_steps // 3) > least * best


@pytest.mark.parametrize("num_requests", [1, 8])
def test_a_draft_that_is_sure_and_wrong_is_left_alone(num_requests: int) -> None:
    costs = FormulaCosts(MACHINES["convex"])
    requests = [request(index) for index in range(num_requests)]
    liar = ConfidentDraft((3.0, 0.5), truth=0.0)
    run = machine_for(costs).steps(600, lambda: fresh_load(requests), lambda _: liar)
    plain = num_requests / costs.predict(step_size(load_of(requests), (), 0)).total
    assert sum(map(bool, run.choices[50:])) <= 0.25 * len(run.choices[50:])
    assert run.rate(50) > 0.97 * plain


def test_a_request_whose_drafts_fail_goes_without_while_others_grow_theirs() -> None:
    costs = FormulaCosts(MACHINES["convex"])
    requests = [request(index) for index in range(4)]
    liar, good = ConfidentDraft((3.0, 0.5), truth=0.0), ConfidentDraft()
    made = machine_for(costs)
    made.steps(400, lambda: fresh_load(requests), lambda each: liar if each.request_id == "r0" else good)
    late = made.held[200:]
    assert sum("r0" in held for held in late) < 0.4 * len(late)
    assert sum("r1" in held for held in late) > 0.9 * len(late)


def test_dear_rows_raise_the_threshold() -> None:
    chosen = []
    for row_seconds in (0.001, 0.02, 0.1):
        costs = FormulaCosts(partial(straight, row_seconds))
        planner = AutoPlanner(costs, PlannerSettings(BOUNDS))
        planner.plan(load_of([request(0)]))
        assert planner.last is not None
        chosen.append(planner.last.candidate.key[1])
    assert chosen == sorted(chosen) and chosen[0] < chosen[-1] < len(THRESHOLDS)


@pytest.mark.parametrize(("num_requests", "num_steps"), [(1, 120), (8, 60)])
def test_a_draft_that_loses_its_sense_is_left_though_steps_rest(num_requests: int, num_steps: int) -> None:
    costs = FormulaCosts(MACHINES["convex"])
    requests = [request(index) for index in range(num_requests)]
    made = machine_for(costs)
    made.steps(600, lambda: fresh_load(requests), lambda _: DRAFTS["decided"])
    liar = ConfidentDraft((3.0, 0.5), truth=0.0)
    run = made.steps(num_steps + 200, lambda: fresh_load(requests), lambda _: liar)
    plain = num_requests / costs.predict(step_size(load_of(requests), (), 0)).total
    assert run.rate(600 + num_steps) > 0.95 * plain


def test_plain_steps_rest_although_trees_brought_less_than_was_foretold() -> None:
    costs = FormulaCosts(MACHINES["convex"])
    requests = [request(0)]
    made = machine_for(costs)
    made.steps(400, lambda: fresh_load(requests), lambda _: DRAFTS["decided"])
    liar = ConfidentDraft((3.0, 0.5), truth=0.0)
    made.steps(100, lambda: fresh_load(requests), lambda _: liar)
    num_learnt = len(costs.observed)
    run = made.steps(300, lambda: fresh_load(requests), lambda _: liar)
    assert sum(map(bool, run.choices[500:])) < 60
    assert len(costs.observed) - num_learnt < 150


@pytest.mark.parametrize(("num_requests", "num_steps"), [(1, 900), (8, 400)])
def test_a_draft_that_comes_to_its_senses_is_used_again(num_requests: int, num_steps: int) -> None:
    costs = FormulaCosts(MACHINES["convex"])
    requests = [request(index) for index in range(num_requests)]
    made = machine_for(costs)
    liar = ConfidentDraft((3.0, 0.5), truth=0.0)
    for _ in range(2):
        made.steps(400, lambda: fresh_load(requests), lambda _: DRAFTS["decided"])
        made.steps(400, lambda: fresh_load(requests), lambda _: liar)
    made.steps(num_steps, lambda: fresh_load(requests), lambda _: DRAFTS["decided"])
    run = made.steps(100, lambda: fresh_load(requests), lambda _: DRAFTS["decided"])
    assert sum(map(bool, run.choices[-100:])) > 80


@pytest.mark.parametrize("seed", range(3))
def test_trees_that_hardly_hold_a_node_are_learnt_from_for_longer(seed: int) -> None:
    """A lone request whose draft is seldom sure, and then wrong: such trees are many before they say anything."""
    costs = FormulaCosts(MACHINES["knee"])
    requests = [request(0)]
    made = machine_for(costs, seed)
    run = made.steps(600, lambda: fresh_load(requests), lambda _: ConfidentDraft((1.0, 3.0), truth=0.02))
    assert sum(map(bool, made.held[250:])) <= 60
    plain = 1.0 / costs.predict(step_size(load_of(requests), (), 0)).total
    assert run.rate(250) > 0.97 * plain


@pytest.mark.parametrize("machine", ["convex", "knee", "slope"])
def test_load_that_swings_across_break_even_never_makes_steps_stand_out(machine: str) -> None:
    """One request and sixteen take turns every 50 steps: trees pay for the one, hardly or not at all for the others."""
    costs = FormulaCosts(MACHINES.get(machine, lambda rows: max(1.0, 0.2 * rows)))
    requests = [request(index) for index in range(16)]
    num_phases, runs = 20, []
    for seed in range(2, 6):
        made = machine_for(costs, seed=seed)
        for phase in range(num_phases):
            running = requests[: (1, 16)[phase % 2]]
            run = made.steps(50, partial(fresh_load, running), lambda _: DRAFTS["decided"])
        runs.append(run)
    plain = costs.predict(step_size(load_of(requests), (), 0)).total
    late = range(6, num_phases)
    loaded = [step for phase in late if phase % 2 for step in range(50 * phase, 50 * phase + 50)]
    lone = [step for phase in late if phase % 2 == 0 for step in range(50 * phase, 50 * phase + 50)]
    for run in runs:
        if machine != "convex":
            assert max(run.seconds[step] for step in loaded) <= 1.15 * plain
            assert sum(run.choices[step] > 0 for step in loaded) < 0.05 * len(loaded)
        assert sum(run.choices[step] > 0 for step in lone) > 0.6 * len(lone)
    # Behind a swing, steps are what they are later: 35 of each run, which are few where one request decodes.
    for steps in (loaded, lone):
        first = [step for step in steps if step % 50 < 5]
        assert per_token(runs, first) <= 1.12 * per_token(runs, steps)


def per_token(runs: list[Run], steps: list[int]) -> float:
    seconds = sum(run.seconds[step] for run in runs for step in steps)
    return seconds / sum(run.committed[step] for run in runs for step in steps)
