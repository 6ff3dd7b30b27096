"""Records of a run on disk: cut lines, runs that go on, and means of steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aquiline.errors import TrainingDataError
from aquiline.training.history import History, StepMeans
from aquiline.training.run import best_evaluation
from aquiline.training.trainer import StepRecord


def step(number: int, stage: int = 0, loss: float = 1.0) -> StepRecord:
    return StepRecord(
        step=number,
        stage=stage,
        epoch=0,
        num_tokens=10 * number,
        total_tokens=1000,
        loss=loss,
        losses=(loss,) * (stage + 1),
        accuracies=(0.5,) * (stage + 1),
        conditional_accuracies=(0.5,) * (stage + 1),
        learning_rate=1e-3,
        gradient_norm=2.0,
        seconds=0.1,
        label_seconds=0.05,
        tokens_per_second=100.0,
    )


def test_records_come_back(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    history = History(path)
    history.add({"kind": "step", "step": 1})
    history.add({"kind": "evaluation", "step": 1})
    assert History(path).records == history.records
    assert History(path).of_kind("step") == [{"kind": "step", "step": 1}]


def test_a_line_cut_by_a_kill_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text('{"kind": "step", "step": 1}\n{"kind": "ste')
    history = History(path)
    assert history.records == [{"kind": "step", "step": 1}]
    history.forget_after(1)
    history.add({"kind": "step", "step": 2})
    assert [record["step"] for record in History(path).records] == [1, 2]


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text('{"kind": "step", "step": 1}\n{"step"}\n{"kind": "step", "step": 2}\n')
    with pytest.raises(TrainingDataError, match=r"history.jsonl line 2 is damaged"):
        History(path)


def test_what_a_run_does_again_is_forgotten(tmp_path: Path) -> None:
    history = History(tmp_path / "history.jsonl")
    for record in (("step", 1), ("evaluation", 1), ("step", 2), ("result", 2)):
        history.add({"kind": record[0], "step": record[1]})
    history.forget_after(1)
    assert [record["kind"] for record in history.records] == ["step", "evaluation"]
    lines = (tmp_path / "history.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == history.records


def test_means_end_with_their_number_and_with_a_stage() -> None:
    means = StepMeans(2)
    assert means.push(step(1, loss=1.0)) == []
    (first,) = means.push(step(2, loss=3.0))
    assert (first["step"], first["loss"], first["losses"]) == (2, 2.0, [2.0])
    assert means.push(step(3)) == []
    (early,) = means.push(step(4, stage=1))
    assert (early["step"], early["stage"]) == (3, 0)
    (rest,) = means.rest()
    assert rest["losses"] == [1.0, 1.0] and means.rest() == []


def test_the_best_checkpoint_takes_the_least_time_per_token() -> None:
    """Not the one that is accepted most: a head with more layers may cost more than it gains."""
    evaluations = [
        {"step": 0, "time_per_committed_token_ms": 1.0},
        {"step": 10, "time_per_committed_token_ms": 2.5, "acceptance": 1.9},
        {"step": 20, "time_per_committed_token_ms": 2.2, "acceptance": 1.7},
        {"step": 30, "time_per_committed_token_ms": 2.2, "acceptance": 1.8},
    ]
    assert best_evaluation(evaluations) == evaluations[2]
    assert best_evaluation(evaluations[:1]) is None
