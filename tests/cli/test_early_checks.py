"""What is wrong with a command line is found before a model is fetched or loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from aquiline.cli import main

PROMPTS = ["--prompts", "{}/prompts.jsonl"]
ANSWERING = {
    "generate": ["generate", *PROMPTS],
    "acceptance": ["bench", "acceptance", *PROMPTS],
    "offline": ["bench", "offline", *PROMPTS],
    "latency": ["bench", "latency", *PROMPTS],
}
DRAFTING = ANSWERING | {
    "serve": ["serve", "--port", "0"],
    "tune": ["tune"],
    "kernels": ["bench", "kernels"],
    "serving": ["bench", "serving", "--model", "smollm2-135m", "--concurrency", "1"],
}
GUIDES = {
    "json": (["--guided-json", "{\"type\": "], "the JSON schema is no JSON"),
    "schema": (["--guided-json", '{"type": "bird"}'], "bird"),
    "schema file": (["--guided-json", "{}/none.json"], "cannot be read"),
    "regex": (["--guided-regex", "(eagle"], "the regex"),
    "schema pattern": (["--guided-json", '{"type": "string", "pattern": "(eagle"}'], "pattern"),
    "grammar": (["--guided-grammar", "root ::= eagle"], "eagle"),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with prompts, and no way to a model."""

    def fail(*_: object) -> None:
        raise AssertionError("a model is looked for")

    for module in ("model_choice", "bench_serving", "draft_check"):
        monkeypatch.setattr(f"aquiline.cli.{module}.resolve_model", fail)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "one"}\n')
    return tmp_path


def refusal(argv: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    filled = [argument.replace("{}", str(folder)) for argument in argv]
    assert main(filled) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("aquiline: error: ") and shown.count("\n") == 1
    return shown


@pytest.mark.parametrize("command", DRAFTING)
def test_a_draft_that_is_not_there(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no draft" in refusal([*DRAFTING[command], "--draft", "{}/no/draft"], folder, capsys)


@pytest.mark.parametrize("command", DRAFTING)
def test_a_draft_that_is_a_file(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = refusal([*DRAFTING[command], "--draft", "{}/prompts.jsonl"], folder, capsys)
    assert "prompts.jsonl is a file; a draft is a folder with config.json" in shown


@pytest.mark.parametrize("guide", GUIDES)
def test_a_guide_that_no_grammar_follows(guide: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options, complaint = GUIDES[guide]
    assert complaint in refusal([*ANSWERING["generate"], *options], folder, capsys)


@pytest.mark.parametrize("command", ANSWERING)
def test_every_command_that_answers_checks_guides(
    command: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "the regex" in refusal([*ANSWERING[command], "--guided-regex", "(eagle"], folder, capsys)


@pytest.mark.parametrize("command", [*ANSWERING, "serving"])
def test_prompts_that_cannot_be_read(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "prompts.jsonl").write_text('{"prompt": \n')
    argv = ANSWERING.get(command, [*DRAFTING["serving"], *PROMPTS])
    assert "prompts.jsonl line 1 is not JSON" in refusal(argv, folder, capsys)


def test_a_draft_to_be_checked_is_looked_for_before_its_target(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["draft", "check", "{}/no/draft", "--target", "smollm2-135m"]
    assert "no draft" in refusal(argv, folder, capsys)
