"""The command line of `bench accuracy`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from aquiline.benchmark import accuracy
from aquiline.cli import bench_accuracy, main

ROW = {
    "quantization": "int8",
    "num_tokens": 5,
    "mean_kl": 0.00612,
    "top1_agreement": 0.9651,
    "worst_kl": 0.25,
    "worst_position": 3,
}


class FakeModels:
    """Records what was asked; every character is a token."""

    def __init__(self) -> None:
        self.loaded: list[tuple[Any, ...]] = []
        self.asked: list[Any] = []

    def load(self, *arguments: Any) -> FakeModels:
        self.loaded.append(arguments)
        return self

    def sequences_of_text(self, text: str) -> list[list[int]]:
        self.asked.append(text)
        return [list(map(ord, text))]

    def sequences_of_answers(self, conversations: Sequence[Any], num_tokens: int) -> list[list[int]]:
        self.asked.append((conversations, num_tokens))
        return [[1, 2, 3]]


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> FakeModels:
    fake = FakeModels()

    def measure(_: object, sequences: Sequence[Sequence[int]], on_tokens: Callable[[int], None]) -> list[Any]:
        on_tokens(sum(map(len, sequences)))
        return [ROW]

    monkeypatch.setattr(bench_accuracy, "resolve_model", lambda model, show: None)
    monkeypatch.setattr(accuracy, "AccuracyModels", fake)
    monkeypatch.setattr(accuracy, "measure_accuracy", measure)
    return fake


def test_a_text_is_taken_as_it_is(models: FakeModels, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text("An eagle.\n")
    assert main(["bench", "accuracy", "--text", str(text), "--quantization", "int8,auto", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["rows"] == [ROW] and "commit" in result
    assert models.asked == ["An eagle.\n"]
    ((model, _config, kinds, num_threads),) = models.loaded
    assert (model, kinds, num_threads) == ("smollm2-135m", ("int8", "auto"), None)


def test_prompts_are_answered_first(models: FakeModels, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "one"}\n{"turns": ["two", "three"]}\n')
    assert main(["bench", "accuracy", "--prompts", str(prompts), "--num-tokens", "9", "--threads", "3"]) == 0
    ((conversations, num_tokens),) = models.asked
    assert [conversation[-1]["content"] for conversation in conversations] == ["one", "two"]
    assert num_tokens == 9 and models.loaded[0][3] == 3
    shown = capsys.readouterr().out
    for text in ("int8", "0.00612", "96.51 %", "0.250"):
        assert text in shown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param([], "one of the arguments --text --prompts is required", id="nothing"),
        pytest.param(
            ["--text", "a", "--prompts", "b"], "argument --prompts: not allowed with argument --text", id="both"
        ),
        pytest.param(["--text", "no-such-file"], "--text 'no-such-file' cannot be read", id="missing"),
        pytest.param(["--text", "TEXT", "--num-tokens", "0"], "--num-tokens is 0", id="num-tokens"),
        pytest.param(["--text", "TEXT", "--quantization", "int8,int3"], "--quantization is 'int8,int3'", id="kind"),
        pytest.param(["--text", "TEXT", "--quantization", "auto,auto"], "--quantization is 'auto,auto'", id="twice"),
        pytest.param(["--text", "TEXT", "--threads", "0"], "--threads is 0", id="threads"),
        pytest.param(["--text", "BYTES"], "--text 'BYTES' is not UTF-8", id="bytes"),
    ],
)
def test_mistakes_are_one_line(
    models: FakeModels,
    options: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "TEXT").write_text("An eagle.")
    (tmp_path / "BYTES").write_bytes(b"\xff\xfe\xff")
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "accuracy", *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"aquiline: error: {message}") and error.count("\n") == 1
    assert not models.loaded
