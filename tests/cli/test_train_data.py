"""`aquiline train-data`: each way to data through the command line, what it says, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from aquiline.cli import main
from aquiline.cli.app import build_parser
from aquiline.cli.parser import record_defaults
from aquiline.cli.train_data import OWN_OPTIONS, check_arguments
from aquiline.training.data_settings import DataSettings
from aquiline.training.evaluation_prompts import held_out_prompts
from aquiline.training.examples import ExampleStore
from tests.source_tree import ROOT
from tests.training.self_written.tiny_chat import write_chat_model

SMALL = ["--num-tokens", "150", "--turns-per-round", "8", "--max-answer-tokens", "16", "--dtype", "float32"]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("target"))


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    conversations = [
        {"messages": [{"role": "user", "content": f"Bird {n}?"}, {"role": "assistant", "content": f"Yes, {n}."}]}
        for n in range(12)
    ]
    path.write_text("\n".join(map(json.dumps, conversations)))
    return path


def run(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> str:
    assert main(["train-data", *map(str, argv)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def summary(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(capsys, *argv, "--json"))
    return found


def refusal(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> str:
    assert main(["train-data", *map(str, argv)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    return captured.err


def test_the_target_writes_its_own_data(capsys: pytest.CaptureFixture[str], target: Path, tmp_path: Path) -> None:
    argv: list[str | Path] = ["--target", target, "--output", tmp_path / "data", *SMALL]
    found = summary(capsys, *argv)
    store = ExampleStore(tmp_path / "data")
    assert found["num_conversations"] == len(store) and found["num_answer_tokens"] == store.num_answer_tokens >= 140
    assert sum(found["categories"].values()) == store.num_answer_tokens
    assert found["tokens_per_second"] > 0 and found["output"] == str(tmp_path / "data")
    again = run(capsys, *argv)
    assert "conversations with" in again and "tokens/s" not in again


def test_more_is_added_to_what_is_there(capsys: pytest.CaptureFixture[str], target: Path, tmp_path: Path) -> None:
    argv: list[str | Path] = ["--target", target, "--output", tmp_path / "data", *SMALL]
    first = summary(capsys, *argv)
    before = list(ExampleStore(tmp_path / "data"))
    argv[argv.index("150")] = str(first["num_answer_tokens"] + 100)
    assert summary(capsys, *argv)["num_answer_tokens"] > first["num_answer_tokens"]
    assert list(ExampleStore(tmp_path / "data"))[: len(before)] == before
    assert "seed 0, and now it is 1" in refusal(capsys, *argv, "--seed", "1")


def test_conversations_of_files_are_taken_over(
    capsys: pytest.CaptureFixture[str], target: Path, lines: Path, tmp_path: Path
) -> None:
    argv: list[str | Path] = [
        "--target",
        target,
        "--output",
        tmp_path / "data",
        "--data",
        lines,
        "--held-out-share",
        "0.25",
    ]
    found = summary(capsys, *argv)
    assert found["num_conversations"] + found["num_held_out"] == 12 and found["tokens_per_second"] is None
    lines.write_text(lines.read_text() + "\n{\n")
    other = tmp_path / "other"
    assert "line 13: it is not JSON" in refusal(capsys, "--target", target, "--output", other, "--data", lines)
    shown = run(capsys, "--target", target, "--output", tmp_path / "third", "--data", lines, "--skip-bad-lines")
    assert "left out: 1 bad line" in " ".join(shown.split())


def test_questions_of_files_are_answered(
    capsys: pytest.CaptureFixture[str], target: Path, lines: Path, tmp_path: Path
) -> None:
    argv: list[str | Path] = [
        "--target",
        target,
        "--output",
        tmp_path / "data",
        "--data",
        lines,
        "--regenerate",
        *SMALL[2:],
    ]
    found = summary(capsys, *argv)
    assert 6 < found["num_conversations"] + found["num_held_out"] <= 12 and found["tokens_per_second"] > 0


def test_folders_are_put_together(capsys: pytest.CaptureFixture[str], target: Path, tmp_path: Path) -> None:
    for seed in ("1", "2"):
        summary(capsys, "--target", target, "--output", tmp_path / seed, *SMALL, "--seed", seed)
    argv: list[str | Path] = [
        "--target",
        target,
        "--output",
        tmp_path / "both",
        "--data",
        tmp_path / "1",
        "--data",
        tmp_path / "2",
    ]
    found = summary(capsys, *argv)
    assert found["num_conversations"] == len(ExampleStore(tmp_path / "both"))
    assert found["num_conversations"] + found["num_skipped"].get("duplicate", 0) >= sum(
        len(ExampleStore(tmp_path / seed)) for seed in ("1", "2")
    )


def test_a_folder_that_grew_is_put_together_anew(
    capsys: pytest.CaptureFixture[str], target: Path, tmp_path: Path
) -> None:
    one: list[str | Path] = ["--target", target, "--output", tmp_path / "one", *SMALL]
    first = summary(capsys, *one)
    both: list[str | Path] = ["--target", target, "--output", tmp_path / "both", "--data", tmp_path / "one"]
    assert summary(capsys, *both) == summary(capsys, *both) | {"seconds": ANY}
    one[one.index("150")] = str(first["num_answer_tokens"] + 100)
    summary(capsys, *one)
    assert "was written with folders" in refusal(capsys, *both)


def test_an_import_that_came_to_nothing_binds_nobody_to_files(
    capsys: pytest.CaptureFixture[str], target: Path, tmp_path: Path
) -> None:
    (tmp_path / "bad.jsonl").write_text("[]")
    argv = ["train-data", "--target", str(target), "--output", str(tmp_path / "data"), "--data"]
    assert main([*argv, str(tmp_path / "bad.jsonl")]) == 2
    assert main([*argv, str(tmp_path / "bad.jsonl"), "--regenerate"]) == 2
    assert capsys.readouterr().err.count("bad.jsonl line 1: it must be an object") == 2


def test_data_that_came_about_in_another_way_is_not_mixed_with(
    capsys: pytest.CaptureFixture[str], target: Path, lines: Path, tmp_path: Path
) -> None:
    plain: list[str | Path] = ["--target", target, "--output", tmp_path / "data"]
    answered = [*plain, "--data", lines, "--regenerate", *SMALL[2:]]
    summary(capsys, *answered)
    before = len(ExampleStore(tmp_path / "data"))
    for other in ([*plain, *SMALL], [*plain, "--data", lines]):
        assert "came about in another way" in refusal(capsys, *other)
    assert len(ExampleStore(tmp_path / "data")) == before


def test_what_training_measures_on_is_never_trained_on(
    capsys: pytest.CaptureFixture[str], target: Path, tmp_path: Path
) -> None:
    asked = [str(prompt.messages[0]["content"]) for prompt in held_out_prompts()[:2]]
    own = tmp_path / "own.jsonl"
    own.write_text(json.dumps({"prompt": "Please name my very own favourite bird."}))
    path = tmp_path / "data.jsonl"
    questions = [*asked, "Please name my very own favourite bird.", "Who sings?"]
    answer = {"role": "assistant", "content": "So."}
    path.write_text("\n".join(json.dumps({"messages": [{"role": "user", "content": q}, answer]}) for q in questions))
    argv: list[str | Path] = [
        "--target",
        target,
        "--output",
        tmp_path / "data",
        "--data",
        path,
        "--exclude",
        own,
        "--max-length",
        "4000",
    ]
    found = summary(capsys, *argv, "--held-out-share", "0")
    assert found["num_skipped"] == {"excluded": 3} and found["num_conversations"] == 1


@pytest.mark.parametrize("is_json", [False, True], ids=["table", "json"])
def test_a_bar_is_drawn_on_a_terminal_only_for_people(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, target: Path, tmp_path: Path, is_json: bool
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    argv = ["--target", str(target), "--output", str(tmp_path / "data"), *SMALL, *["--json"] * is_json]
    assert main(["train-data", *argv]) == 0
    visible = re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]|\r|\n", "", capsys.readouterr().err)
    assert ("answer tokens" in visible) == (not is_json) and (visible == "") == is_json


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--data", "{lines}", "--num-tokens", "5"], "--num-tokens means nothing with files"),
        (["--data", "{lines}", "--batch-size", "5"], "--batch-size means nothing with files"),
        (["--data", "{lines}", "--threads", "1"], "--threads means nothing with files"),
        (["--data", "{lines}", "--regenerate", "--max-length", "50"], "--max-length means nothing with --regenerate"),
        (["--data", "{folder}", "--seed", "1"], "--seed means nothing with folders"),
        (["--skip-bad-lines"], "--skip-bad-lines means nothing with --data self"),
        (["--regenerate"], "regenerate answers the questions of JSONL files"),
        (["--data", "self", "--data", "{lines}"], "self stands alone"),
        (["--data", "{folder}", "--data", "{lines}"], "files or folders, not both"),
        (["--data", "missing.jsonl"], "missing.jsonl cannot be read"),
        (["--data", "{folder}"], "holds no training data"),
        (["--exclude", "missing.jsonl"], "missing.jsonl cannot be read"),
        (["--num-tokens", "0"], "num_tokens is 0"),
        (["--num-tokens", "many"], "'many' is not an integer"),
        (["--held-out-share", "0.6"], "held_out_share is 0.6"),
        (["--held-out-share", "nan"], "held_out_share is nan"),
        (["--max-answer-tokens", "0"], "max_answer_tokens is 0"),
        (["--turns-per-round", "0"], "num_turns_per_round is 0"),
        (["--seed", "-1"], "seed is -1"),
        (["--speculate", "off"], "unrecognized arguments"),
        (["--grammar-mask-ms", "9"], "unrecognized arguments"),
        (["--threads", "0"], "--threads is 0"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_makes_no_sense_is_refused(
    capsys: pytest.CaptureFixture[str], target: Path, lines: Path, tmp_path: Path, argv: list[str], message: str
) -> None:
    filled = [text.format(lines=lines, folder=tmp_path) for text in argv]
    assert message in refusal(capsys, "--target", target, "--output", tmp_path / "data", *filled)


def test_large_batches_are_the_default() -> None:
    parser = build_parser()
    plain = check_arguments(parser.parse_args(["train-data", "--output", "x"])).engine
    assert plain.scheduler.max_num_seqs == 64 and plain.cache.kv_cache_gb == 2.0
    typed = check_arguments(
        parser.parse_args(["train-data", "--output", "x", "--num-blocks", "9", "--batch-size", "3"])
    )
    assert typed.engine.cache.num_blocks == 9 and typed.engine.cache.kv_cache_gb is None
    assert typed.engine.scheduler.max_num_seqs == 3


def test_options_are_documented() -> None:
    section = (ROOT / "docs" / "training-data.md").read_text().split("\n## Options\n")[1]
    listed = dict(re.findall(r"^\| `(--[a-z-]+)` \| `?(.*?)`? \|", section, re.MULTILINE))
    engine = {"--batch-size": "64", "--kv-cache-gb": "2.0"}
    defaults = record_defaults((DataSettings,))
    own = {option.flag: defaults[option.field] for option in OWN_OPTIONS}
    spelt = {flag: _spelt(default) for flag, default in own.items()} | {"--data": "self"}
    others = {"--target": "smollm2-135m", "--output": "required", "--json": "off", "--threads": "none"}
    assert listed == spelt | engine | others


def _spelt(default: object) -> str:
    if isinstance(default, bool):
        return "off"
    return "none" if default in (None, ()) else str(default)
