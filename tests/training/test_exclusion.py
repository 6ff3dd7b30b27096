"""Prompts for measuring stay out of the training data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aquiline.errors import TrainingDataError
from aquiline.training.exclusion import ExcludedPrompts, read_excluded

LONG = "Name every bird that you can see from the old lighthouse at noon, and say why."


@pytest.mark.parametrize(
    "text",
    [
        LONG,
        LONG.upper(),
        f"Please: {LONG}",
        "... that you can see -- from the old lighthouse!",
        "that you can\nsee from the old lighthouse",
    ],
    ids=["equal", "capitals", "inside", "eight words", "line end"],
)
def test_overlaps_are_found(text: str) -> None:
    assert ExcludedPrompts([LONG]).overlap(text)


@pytest.mark.parametrize("text", ["you can see from the old lighthouse", "Name every bird", "", "lighthouse " * 20])
def test_seven_words_are_no_overlap(text: str) -> None:
    assert not ExcludedPrompts([LONG]).overlap(text)


def test_short_prompts_are_found_as_a_whole() -> None:
    excluded = ExcludedPrompts(["What is the tide?", "Go on."])
    assert excluded.overlap("Now tell me, what is the tide?") and excluded.overlap("go on")
    assert not excluded.overlap("What is the moon?") and not excluded.overlap("Shall we go on with this?")


def test_every_text_of_a_file_counts(tmp_path: Path) -> None:
    path = tmp_path / "held_out.jsonl"
    lines = [
        {"prompt": LONG},
        {"category": "four words of category", "turns": ["first turn of two", "second turn of two"]},
        {"messages": [{"role": "user", "content": "what a message says"}]},
    ]
    path.write_text("\n\n".join(map(json.dumps, lines)))
    excluded = read_excluded([path])
    for text in (LONG, "first turn of two", "second turn of two", "what a message says"):
        assert excluded.overlap(text)
    assert not excluded.overlap("four words of category") and not excluded.overlap("user")


def test_equal_sets_have_equal_fingerprints() -> None:
    assert ExcludedPrompts(["a b", LONG]).fingerprint == ExcludedPrompts([LONG.lower(), "A, b!"]).fingerprint
    assert ExcludedPrompts([LONG]).fingerprint != ExcludedPrompts(["a b"]).fingerprint
    assert ExcludedPrompts().fingerprint == ""


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(TrainingDataError, match=r"missing\.jsonl cannot be read"):
        read_excluded([tmp_path / "missing.jsonl"])
    (tmp_path / "bad.jsonl").write_text('{"prompt": "a"}\n{"prompt"')
    with pytest.raises(TrainingDataError, match=r"bad\.jsonl line 2 is not JSON: Expecting ':' delimiter at column 10"):
        read_excluded([tmp_path / "bad.jsonl"])
    (tmp_path / "bad.jsonl").write_text("[" * 100_000)
    with pytest.raises(TrainingDataError, match=r"bad\.jsonl line 1 is not JSON"):
        read_excluded([tmp_path / "bad.jsonl"])
