"""Costs measured by running steps of real, tiny engines."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from aquiline.config import EngineConfig, SpeculativeConfig
from aquiline.engine.acceptance_prior import GUIDED_FACTOR, SAMPLED_FACTOR, RequestClass
from aquiline.engine.cost_model import CostModel
from aquiline.engine.engine import EngineModels
from aquiline.engine.plan import StepPlan
from aquiline.engine.planner import AutoPlanner
from aquiline.engine.profile import load_profile
from aquiline.engine.tuning import LONG_STAGES, SHORT_STAGES, TourPlanner, TuneStage, measure_costs
from aquiline.llm import LLM
from aquiline.request import SamplingParams
from aquiline.speculation import NO_TREE, chain, parse_speculation, tree_from_branching
from aquiline.step_costs import profile_folder
from tests.checkpoints import write_draft, write_target
from tests.engine.synthetic_costs import load_of, request
from tests.engine.workloads import tiny_models
from tests.tiny import new_decoder, tiny_eagle_config, tiny_llama_config
from tests.tiny_tokenizers import train_byte_level

STAGES = (
    TuneStage(1, 8, (NO_TREE, chain(1), chain(2), tree_from_branching([2, 1]))),
    TuneStage(3, 60, (NO_TREE, chain(1)), brims=(chain(2),)),
)


def test_a_tour_takes_every_shape_in_turn() -> None:
    planner = TourPlanner((NO_TREE, chain(2)))
    plans = [planner.plan(load_of([request(0), request(1)])) for _ in range(6)]
    assert [plan.shape.num_draft_tokens for plan in plans] == [0, 0, 2] * 2
    assert [plan.num_new_draft_rows for plan in plans] == [{}, None, None] * 2
    assert plans[2].num_draft_tokens == {"r0": 2, "r1": 2}
    assert planner.plan(load_of([])) == StepPlan()


def test_a_brim_is_one_row_more_than_the_others_fill() -> None:
    planner = TourPlanner((chain(1),), brims=(chain(2),))
    assert planner.num_turns == 2
    plans = [planner.plan(load_of([request(0), request(1), request(2)])) for _ in range(2)]
    assert plans[0].num_draft_tokens == {"r0": 1, "r1": 1, "r2": 1}
    assert plans[1].shape == chain(2) and plans[1].num_draft_tokens == {"r0": 2, "r1": 1, "r2": 1}


@pytest.mark.parametrize("stages", [SHORT_STAGES, LONG_STAGES])
def test_both_sides_of_every_panel_are_timed(stages: tuple[TuneStage, ...]) -> None:
    rows = set()
    for stage in stages:
        rows |= {stage.batch_size * (1 + shape.num_draft_tokens) for shape in stage.shapes}
        rows |= {stage.batch_size * shape.num_draft_tokens + 1 for shape in stage.brims}
    for panel in (16, 32) if stages is SHORT_STAGES else (16, 32, 48, 64):
        assert {panel, panel + 1} <= rows


def test_tiny_engines_are_measured() -> None:
    models = EngineModels(tiny_models().target, tiny_models().draft, new_decoder, frozenset({60}))
    progress: list[tuple[int, int]] = []
    costs, num_steps = measure_costs(
        models, EngineConfig(dtype="float32"), STAGES, 2, lambda *done: progress.append(done)
    )
    assert num_steps == 2 * 5 + 2 * 4
    assert progress[-1][0] == progress[-1][1] == len(progress)
    assert costs.verify.at(1) > 0.0
    assert costs.verify.at(3) >= costs.verify.at(1)
    assert costs.sample_base + costs.sample_per_row > 0.0
    assert costs.extend.at(1) + costs.propose_roots.at(1) + costs.level.at(1) > 0.0


def test_slow_steps_are_timed_less_often() -> None:
    models = EngineModels(tiny_models().target, tiny_models().draft, new_decoder, frozenset({60}))
    config = EngineConfig(dtype="float32")
    costs, num_steps = measure_costs(models, config, STAGES, 10, budget_seconds=0.0)
    assert num_steps == 5  # each turn of the first stage once, behind the round that warms up
    assert costs.verify.rows[-1] > costs.verify.rows[0]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A target, a draft, and a home of their own, where costs are measured."""
    monkeypatch.setenv("AQUILINE_COSTS", "")
    monkeypatch.setenv("AQUILINE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("aquiline.step_costs.SHORT_STAGES", STAGES)
    monkeypatch.setattr("aquiline.step_costs.SHORT_ROUNDS", 1)
    vocab_size = train_byte_level().get_vocab_size()
    target = tiny_llama_config(vocab_size=vocab_size, max_position=96)
    write_target(tmp_path / "target", target)
    write_draft(tmp_path / "draft", tiny_eagle_config(target, draft_vocab_size=vocab_size))
    return tmp_path


def open_llm(folder: Path, speculate: str = "auto", reasons: list[str] | None = None) -> LLM:
    speculative = SpeculativeConfig(parse_speculation(speculate), draft_check="off")
    return LLM(
        str(folder / "target"),
        draft=str(folder / "draft"),
        config=EngineConfig(dtype="float32", speculative=speculative),
        num_threads=1,
        on_cost_progress=lambda reason, done, total: None if reasons is None else reasons.append(reason),
    )


def test_costs_are_measured_once_and_then_read(folder: Path) -> None:
    reasons: list[str] = []
    llm = open_llm(folder, reasons=reasons)
    assert set(reasons) == {"measuring step times"}
    assert isinstance(llm.engine.planner, AutoPlanner)
    stored = load_profile(profile_folder(), llm.step_costs.key(llm.config))
    assert stored is not None
    again: list[str] = []
    assert open_llm(folder, reasons=again).step_costs.profile(llm.models, llm.config) == stored
    assert again == []


def test_a_damaged_profile_is_measured_again(folder: Path) -> None:
    open_llm(folder)
    (path,) = profile_folder().iterdir()
    path.write_text("{}")
    reasons: list[str] = []
    open_llm(folder, reasons=reasons)
    assert set(reasons) == {"measuring step times again"}
    assert path.read_text() != "{}"


@pytest.mark.parametrize("speculate", ["off", "chain:1"])
def test_nothing_is_measured_where_nothing_is_chosen(folder: Path, speculate: str) -> None:
    llm = open_llm(folder, speculate)
    assert not profile_folder().exists()
    assert not isinstance(llm.engine.planner, AutoPlanner)


def test_other_settings_of_the_same_models_are_measured_when_they_choose(folder: Path) -> None:
    llm = open_llm(folder, "chain:1")
    planner = llm.reconfigured(open_llm(folder).config).engine.planner
    assert isinstance(planner, AutoPlanner) and isinstance(planner.costs, CostModel) and planner.costs.learns


def test_engines_of_the_same_models_go_on_with_what_others_have_learnt(folder: Path) -> None:
    llm = open_llm(folder)
    first = llm.engine.planner
    larger = replace(llm.config, scheduler=replace(llm.config.scheduler, max_num_seqs=3))
    same = llm.reconfigured(larger).engine.planner
    looking_up = replace(llm.config.speculative, lookup="on")
    other = llm.reconfigured(replace(llm.config, speculative=looking_up)).engine.planner
    assert isinstance(first, AutoPlanner) and isinstance(same, AutoPlanner) and isinstance(other, AutoPlanner)
    assert first.costs is same.costs is other.costs
    assert first.estimator is not same.estimator
    assert first.estimator.tables is same.estimator.tables


def test_a_draft_tells_what_is_expected_of_it(folder: Path) -> None:
    path = folder / "draft" / "config.json"
    settings = json.loads(path.read_text())
    settings["aquiline"] = {"acceptance_prior": {"depth_rank": [[0.5]]}}
    path.write_text(json.dumps(settings))
    rates = [open_llm(folder).step_costs.priors().of(each).depth_rank[0][0] for each in RequestClass]
    assert rates == pytest.approx([0.5, 0.5 * SAMPLED_FACTOR, 0.5 * GUIDED_FACTOR])
    settings["aquiline"]["acceptance_prior_sampled"] = {"depth_rank": [[0.2]]}
    path.write_text(json.dumps(settings))
    assert open_llm(folder).step_costs.priors().of(RequestClass.SAMPLED).depth_rank == ((0.2,),)


def test_a_home_that_cannot_be_written_is_no_obstacle(folder: Path) -> None:
    (folder / "home").write_text("")
    output = open_llm(folder).generate("The eagle", SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True))[0]
    assert len(output.outputs[0].token_ids) == 12


def test_measured_costs_change_no_answer(folder: Path) -> None:
    params = SamplingParams(max_tokens=40, seed=3, ignore_eos=True)
    outputs = [open_llm(folder, mode).generate(["The eagle", "a"], params) for mode in ("auto", "off")]
    assert [o.outputs[0].token_ids for o in outputs[0]] == [o.outputs[0].token_ids for o in outputs[1]]
