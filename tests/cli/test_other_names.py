"""Options of other tools, and misspelt ones: the complaint names ours."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import pytest

from aquiline.cli import main
from aquiline.cli.app import build_parser
from aquiline.cli.other_names import MEANT
from tests.test_docs import options_of


def commands(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], set[str]]]:
    """Every command with the names that may be typed behind it."""
    nested = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in nested:
        for name, child in action.choices.items():
            yield from commands(child, (*path, name))
    if not nested:
        positional = {str(action.metavar) for action in parser._actions if not action.option_strings}
        yield path, set(options_of(parser)) | positional


COMMANDS = dict(commands(build_parser()))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_known_name_leads_to_an_option_of_the_command(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    for name, meant in MEANT.items():
        flag = f"--{name}" if len(name) > 2 else f"-{name}"
        there = [option for option in meant if option in COMMANDS[path]]
        if there and flag not in COMMANDS[path]:
            assert main([*path, f"{flag}=1"]) == 2
            shown = capsys.readouterr().err
            # A command that lacks an argument may say so instead.
            assert f"; perhaps {there[0]} is meant" in shown or "required" in shown
            assert shown.count("\n") == 1


def test_every_known_name_is_of_use_somewhere() -> None:
    known = set().union(*COMMANDS.values())
    assert {option for meant in MEANT.values() for option in meant} <= known
    assert list(MEANT) == sorted(MEANT)
    for name in MEANT:
        assert any(f"--{name}" not in options and options & set(MEANT[name]) for options in COMMANDS.values()), name


@pytest.mark.parametrize(
    ("argv", "option"),
    [
        (["serve", "--batch-size", "4"], "--max-num-seqs"),
        (["serve", "--max-batch-size=4"], "--max-num-seqs"),
        (["serve", "--prot", "80"], "--port"),
        (["serve", "--ports", "80"], "--port"),
        (["serve", "--ctx-size", "80"], "--max-model-len"),
        (["serve", "--model", "smollm2-135m"], "MODEL"),
        (["generate", "--temp", "1"], "--temperature"),
        (["generate", "--max_tokens", "1"], "--max-tokens"),
        (["generate", "--max-num-seqs", "4"], "--batch-size"),
        (["bench", "offline", "--batch-size", "4"], "--batch-sizes"),
        (["bench", "serving", "--request-rate", "4"], "--request-rates"),
        (["train", "--model", "smollm2-135m"], "--target"),
        (["train", "--lr", "0.1"], "--stage"),
        (["train", "--batch-size", "8"], "--tokens-per-step"),
        (["generate", "-n5"], "--max-tokens"),
        (["serve", "-np4"], "--max-num-seqs"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_what_others_call_it_is_understood(argv: list[str], option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert f"; perhaps {option} is meant" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--wings", "--z", "-", "---"])
def test_nothing_is_guessed_where_nothing_is_near(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "smollm2-135m", option, "2"]) == 2
    assert "perhaps" not in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["generate", "--", "2"], ["bench", "offline", "--num-prompts", "3"]], ids=" ".join)
def test_nothing_is_guessed_that_means_something_else(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert "perhaps" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "key", "option"),
    [
        ("serve", "batch_size", "max-num-seqs"),
        ("serve", "prot", "port"),
        ("train", "token_per_step", "tokens_per_step"),
        ("train", "max-seq-len", "max_length"),
    ],
)
def test_a_file_of_settings_is_understood_too(
    command: str, key: str, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "settings.yaml").write_text(f"{key}: 4\n")
    assert main([command, "--config", str(tmp_path / "settings.yaml")]) == 2
    assert f"; perhaps {option} is meant; see" in capsys.readouterr().err
