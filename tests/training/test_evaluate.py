"""Evaluation of heads: what it reports is what serving counts, and the rule by which one head beats another."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aquiline.engine.acceptance_tally import AcceptanceTally
from aquiline.errors import DraftMismatchError, InvalidParameterError
from aquiline.request import SamplingParams
from aquiline.training.costs import StepCosts
from aquiline.training.evaluate import HeadEvaluator, HeadFigures, ShapeFigures
from aquiline.training.evaluation_prompts import EvaluationPrompt, held_out_prompts
from aquiline.training.evaluation_settings import EvaluationSettings
from tests.training.toy_models import TOY_HEAD, open_toy, write_head, write_toys

SETTINGS = EvaluationSettings(max_tokens=24, max_depth=3, num_ranks=4, tree_sizes=(2, 4), batch_size=2)
COSTS = StepCosts(64, 3.0, ((1, 3.0), (5, 4.0)), 0.5, ((1, 0.2), (4, 0.3)))
QUESTIONS = {"birds": ("Eagle?", "The sea"), "numbers": ("12 34",)}
PROMPTS = tuple(
    EvaluationPrompt(category, ({"role": "user", "content": text},))
    for category, texts in QUESTIONS.items()
    for text in texts
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toys(tmp_path_factory.mktemp("toys"))


@pytest.fixture(scope="module")
def figures(folder: Path) -> HeadFigures:
    evaluator = HeadEvaluator(open_toy(folder), PROMPTS, SETTINGS, COSTS)
    return evaluator.evaluate(str(folder / "head"))


def test_predicted_counts_are_those_of_serving(figures: HeadFigures) -> None:
    assert figures.predicted == figures.served
    assert figures.predicted["chain"].num_steps > 10


def test_served_counts_are_those_of_the_trees_that_the_engine_shows(folder: Path, figures: HeadFigures) -> None:
    """Counted here by hand, request by request, in an engine with other settings."""
    counts = AcceptanceTally()
    llm = open_toy(folder, "chain:3")
    for prompt in PROMPTS:
        params = SamplingParams(temperature=0.0, max_tokens=SETTINGS.max_tokens)
        llm.chat(list(prompt.messages), params, on_trace=counts.add)
    assert counts == figures.served["chain"]


def test_every_figure_is_there_and_fits_json(figures: HeadFigures) -> None:
    record = json.loads(json.dumps(figures.as_json()))
    assert list(record["categories"]) == ["birds", "numbers"]
    assert record["plain_time_per_token_ms"] == 3.0
    assert {shape["speculate"] for shape in record["shapes"]} >= {"chain:1", "chain:2", "chain:3"}
    assert record["best_shape"] in {shape["speculate"] for shape in record["shapes"]}
    for row in record["acceptance_prior"]["depth_rank"]:
        assert len(row) == SETTINGS.num_ranks and all(0.0 <= rate <= 1.0 for rate in row)


def test_another_head_needs_no_other_target(folder: Path, tmp_path: Path) -> None:
    llm = open_toy(folder)
    other = llm.with_draft(str(write_head(tmp_path / "two", layers=replace(TOY_HEAD.layers, num_layers=2))))
    assert other.models.target is llm.models.target
    assert other.models.draft is not None and other.models.draft.config.num_layers == 2
    params = SamplingParams(temperature=0.0, max_tokens=8)
    texts = [each.generate("The eagle", params)[0].outputs[0].text for each in (llm, other)]
    assert texts[0] == texts[1]


def test_a_head_for_other_features_is_refused(folder: Path, tmp_path: Path) -> None:
    head = write_head(tmp_path / "other", aux_layer_ids=(0, 1, 2))
    with pytest.raises(DraftMismatchError, match=r"layers \[0, 1, 2\].*\[0, 1, 3\]"):
        open_toy(folder).with_draft(str(head))


def test_heads_are_exchanged_only_where_one_was_loaded(folder: Path) -> None:
    with pytest.raises(InvalidParameterError, match="load the model with one"):
        open_toy(folder, "off", None).with_draft(str(folder / "head"))
    with pytest.raises(InvalidParameterError, match="name a folder"):
        open_toy(folder).with_draft("none")


def test_answers_longer_than_the_context_are_refused(folder: Path) -> None:
    with pytest.raises(InvalidParameterError, match="the model's context holds 192"):
        HeadEvaluator(open_toy(folder), PROMPTS, replace(SETTINGS, max_tokens=500), COSTS)


@pytest.mark.parametrize("changes", [{"max_tokens": 2}, {"max_depth": 0}, {"num_ranks": 11}])
def test_settings_out_of_range_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameterError, match="it must be an integer from"):
        EvaluationSettings(**changes)


def test_the_best_tree_is_the_one_with_the_least_time_per_token(figures: HeadFigures) -> None:
    shapes = (
        ShapeFigures("chain:1", 1, 1.5, 4.5),
        ShapeFigures("chain:3", 3, 2.0, 5.0),
        ShapeFigures("x", 9, 3.0, 9.0),
    )
    found = replace(figures, shapes=shapes)
    assert found.best_shape.speculate == "chain:3"
    assert found.time_per_committed_token_ms == 2.5


def test_held_out_prompts_cover_the_tasks() -> None:
    prompts = held_out_prompts()
    categories = [prompt.category for prompt in prompts]
    assert {category: categories.count(category) for category in categories} == dict.fromkeys(
        ("chat", "code", "maths", "question answering", "summarising", "translation", "extraction"), 8
    )
    assert len({prompt.messages[0]["content"] for prompt in prompts}) == len(prompts)
