"""What the planner learns of trees that end where the draft has no confidence: what happened, of whom it happened."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest

from aquiline.engine import step_report
from aquiline.engine.acceptance import USUAL_SKILL, AcceptanceEstimator
from aquiline.engine.acceptance_prior import AcceptancePrior, AcceptancePriors, RequestClass
from aquiline.engine.commit import AcceptedRun
from aquiline.engine.cut_candidates import DEPTHS, CutTable
from aquiline.engine.cut_tally import NODES, THRESHOLDS, CutTally
from aquiline.engine.cut_tree import CutTree
from aquiline.engine.engine import Engine
from aquiline.engine.inputs import StepLayout
from aquiline.engine.plan import StepLoad, StepReport, TreeOutcome
from aquiline.engine.planner import AutoPlanner
from aquiline.engine.planner_decisions import EARLY_TREES, PlannerSettings
from aquiline.engine.step_report import num_accepted_drafts, tree_outcomes
from aquiline.engine.tree import DraftTree
from aquiline.request import SamplingParams
from aquiline.speculation import DynamicTree, TreeShape
from tests.engine.confident_drafts import ConfidentDraft, CutMachine
from tests.engine.random_planner import put_planner
from tests.engine.synthetic_costs import MACHINES, FormulaCosts, load_of, request
from tests.engine.test_planner_confidence import BOUNDS, DRAFTS, fresh_load
from tests.engine.workloads import Job, make_engine, random_prompt, run_jobs
from tests.tiny import TinySettings

GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
BOUND = SamplingParams(temperature=0.0, frequency_penalty=0.1)
SHAPE = DynamicTree(8, 4, 12, THRESHOLDS[0])


def engine_with_trees() -> tuple[Engine, AutoPlanner, list[StepReport]]:
    """An engine whose planner takes trees to cost nothing, and what it is told."""
    engine = make_engine(TinySettings("auto", num_blocks=256, lookup="off"))
    planner = AutoPlanner(FormulaCosts(lambda rows: 1.0, 1e-4, 0.0), PlannerSettings(BOUNDS))
    put_planner(engine, planner)
    reports: list[StepReport] = []
    observe = planner.observe

    def watched(report: StepReport) -> None:
        reports.append(report)
        observe(report)

    planner.observe = watched  # type: ignore[method-assign]
    return engine, planner, reports


@pytest.mark.parametrize("own_shape", ["chain:3", "dynamic:steps=3,topk=2,nodes=5"])
def test_trees_beside_shapes_of_others_are_told_of_as_they_grew(own_shape: str) -> None:
    engine, _, reports = engine_with_trees()
    own = replace(GREEDY, speculation=own_shape)
    run_jobs(engine, [Job(random_prompt(5, 1), GREEDY), Job(random_prompt(5, 2), own)])
    told = [outcome for report in reports for outcome in report.outcomes]
    assert {outcome.request_id for outcome in told} == {"0"}
    assert all(outcome.tree and len(outcome.tree.survivals) == outcome.num_draft_tokens for outcome in told)
    assert sum(outcome.num_draft_tokens for outcome in told) > 20


@pytest.mark.parametrize("lookup", ["auto", "off"])
def test_what_a_glance_tells_is_what_a_report_would(
    lookup: Literal["auto", "off"], monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = []

    def both(
        step: StepLayout, shape: TreeShape, tree: DraftTree | None, runs: Mapping[str, AcceptedRun]
    ) -> list[TreeOutcome]:
        outcomes = tree_outcomes(step, shape, tree, runs)
        glanced = 0 if tree is None else num_accepted_drafts(step, shape, tree, runs)
        compared.append((glanced, sum(len(outcome.accepted) for outcome in outcomes)))
        return outcomes

    monkeypatch.setattr(step_report, "tree_outcomes", both)
    for bounds in (BOUNDS, replace(BOUNDS, reads_confidence=False)):
        engine = make_engine(TinySettings("auto", num_blocks=256, lookup=lookup))
        put_planner(engine, AutoPlanner(FormulaCosts(lambda rows: 1.0, 1e-4, 0.0), PlannerSettings(bounds)))
        run_jobs(engine, [Job(random_prompt(5, seed) * 3, GREEDY) for seed in range(3)])
    assert all(glanced == told for glanced, told in compared)
    assert sum(told for _, told in compared) > 10


def test_no_request_gets_more_tokens_than_it_holds_nodes() -> None:
    """However sure the draft is, however often it is right, and however well one request fares."""
    tally = CutTally(0.9, 1.5)
    for _ in range(300):
        tally.observe(SHAPE, CutTree((0.9, 0.8, 0.7, 0.1), (0, 1, 2, 2), (1, 2, 3, 3), (1, 2, 3)))
        tally.count_trials(3.0, 2.6)
    tally.refresh()
    table = CutTable.of([tally.figures, None, None], [tally.hit_rate] * 3, BOUNDS)
    nodes, _, expected, _ = table.per_request
    assert (expected - 1.0 <= nodes + 1e-9).all()
    assert expected.max() > 3.0


def test_no_level_runs_behind_the_last_node() -> None:
    """The planner reckons with the levels that nodes have."""
    engine, _, reports = engine_with_trees()
    run_jobs(engine, [Job(random_prompt(5, 1), GREEDY)])
    for report in reports:
        depths = [max(each.tree.depths, default=0) for each in report.outcomes if each.tree is not None]
        if isinstance(report.shape, DynamicTree) and depths:
            assert len(report.size.level_rows) <= min(report.shape.steps, max(depths) + 1)


def test_requests_that_ended_leave_nothing_and_teach_their_own_class() -> None:
    engine, planner, reports = engine_with_trees()
    for number in range(30):
        sampled = SamplingParams(temperature=1.0, seed=number, max_tokens=7, ignore_eos=True)
        engine.add_request(f"sampled-{number}", (1, 2, number), sampled)
        while engine.has_unfinished:
            engine.step()
    assert sum(len(report.outcomes) for report in reports) > 30
    planner._read_reports()
    assert planner.estimator.num_requests == 0
    assert planner.estimator.cut[RequestClass.GREEDY].num_observed == 0
    assert planner.estimator.cut[RequestClass.SAMPLED].num_observed > 30


def test_a_tree_that_its_request_ends_says_nothing_of_deeper_nodes() -> None:
    short, whole = CutTally(0.5), CutTally(0.5)
    for _ in range(200):
        whole.observe(SHAPE, CutTree((0.9, 0.8, 0.7), (0, 1, 2), (1, 2, 3), (1,)))
        short.observe(SHAPE, CutTree((0.9,), (0,), (1,), (1,), max_depth=1))
    nodes = []
    for tally in (short, whole):
        before = tally.figures[1].by_depth[NODES, :, 1:].copy()
        tally.refresh()
        nodes.append((before, tally.figures[1].by_depth[NODES, :, 1:]))
    assert np.array_equal(*nodes[0])
    assert not np.array_equal(*nodes[1])


def test_the_last_trees_of_a_request_are_told_with_their_limit() -> None:
    engine, _, reports = engine_with_trees()
    run_jobs(engine, [Job(random_prompt(5, 1), GREEDY)])
    limits = [outcome.tree.max_depth for report in reports for outcome in report.outcomes if outcome.tree is not None]
    assert max(limits) == DEPTHS[-1] and limits[-1] < DEPTHS[-1]


def test_requests_with_hidden_rules_alone_are_not_held_to_deep_trees() -> None:
    """Nothing is learnt of the draft from them, however many trees they grow."""
    costs = FormulaCosts(lambda rows: 1.0 + 0.5 * rows)
    planner = AutoPlanner(costs, PlannerSettings(BOUNDS))
    requests = [request(0, params=BOUND)]
    planner.plan(load_of(requests))
    assert planner.last is not None
    for _ in range(EARLY_TREES):
        planner.estimator.observe_cut("r0", SHAPE, CutTree((), (), (), ()), is_usual=False)
    forecasts = planner.forecasts(load_of(requests))
    planner.plan(load_of([*requests, request(1, params=BOUND)]))
    planner.plan(load_of(requests))
    best = max(forecasts, key=lambda forecast: forecast.score)
    assert planner.last.score >= 0.97 * best.score


def test_where_a_step_has_no_rows_for_trees_nobody_is_probed() -> None:
    costs = FormulaCosts(MACHINES["convex"])
    planner = AutoPlanner(costs, PlannerSettings(BOUNDS))
    requests = [request(index) for index in range(16)]
    machine = CutMachine(planner, costs, random.Random(3))

    def full_load() -> StepLoad:
        load = fresh_load(requests)
        return StepLoad(load.num_roots, load.growing, load.speculating, load.context, 0, 0)

    machine.steps(200, full_load, lambda _: DRAFTS["decided"])
    assert not any(machine.held)


@pytest.mark.parametrize("rate", [0.0, 1e-6, 1.0])
def test_any_prior_gives_figures(rate: float) -> None:
    costs = FormulaCosts(MACHINES["flat"])
    planner = AutoPlanner(costs, PlannerSettings(BOUNDS, priors=AcceptancePriors(AcceptancePrior(((rate,),)))))
    requests = [request(0)]
    CutMachine(planner, costs, random.Random(3)).steps(100, lambda: fresh_load(requests), lambda _: ConfidentDraft())
    for tally in planner.estimator.cut:
        for figures in tally.figures:
            assert np.isfinite(figures.by_depth).all()


def test_a_request_that_rests_comes_back_to_the_usual_skill_of_a_boastful_draft() -> None:
    """Half of what the draft promises comes true, in every request; one of them was luckier for a while."""
    estimator = AcceptanceEstimator()
    for name in ("usual", "lucky"):
        estimator.kind(request(0, name=name))
    hit, miss = CutTree((0.9,), (0,), (1,), (1,)), CutTree((0.9,), (0,), (1,), ())
    for step in range(400):
        estimator.observe_cut("usual", SHAPE, hit if step % 20 < 9 else miss)
    for step in range(40):
        estimator.observe_cut("lucky", SHAPE, miss if step % 4 == 0 else hit)
    assert estimator.skill("usual") == USUAL_SKILL
    assert estimator.skill("lucky") > USUAL_SKILL
    skills = []
    for _ in range(500):
        estimator.fade("lucky")
        skills.append(estimator.skill("lucky"))
    assert min(skills) == USUAL_SKILL == skills[-1]
