"""`--trace FILE`: when it is written, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aquiline.cli import generate, main
from tests.fake_llm import FakeLLM


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> FakeLLM:
    fake = FakeLLM()
    monkeypatch.setattr(generate, "open_llm", lambda settings: fake)
    return fake


def test_the_trace_is_there_when_the_answers_are(llm: FakeLLM, tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    path.write_text("older")
    assert main(["generate", "--json", "--prompt", "hello", "--trace", str(path)]) == 0
    trace = json.loads(path.read_text())
    assert trace["otherData"]["num_steps"] == 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["steps.json"]


def test_an_answer_that_fails_leaves_its_trace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(generate, "open_llm", lambda settings: FakeLLM(failure=KeyboardInterrupt()))
    path = tmp_path / "steps.json"
    assert main(["generate", "--prompt", "hello", "--trace", str(path)]) == 130
    assert json.loads(path.read_text())["otherData"]["num_steps"] == 1


@pytest.mark.parametrize("place", ["", "no/such/folder/steps.json"], ids=["folder", "missing"])
def test_a_place_that_takes_no_file_is_refused_before_anything_runs(
    llm: FakeLLM, tmp_path: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "--prompt", "hello", "--trace", str(tmp_path / place)]) == 2
    error = capsys.readouterr().err
    assert "--trace is" in error and error.count("\n") == 1
    assert not llm.calls
