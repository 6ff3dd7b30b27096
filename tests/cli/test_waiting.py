"""Signs of life: on a terminal only, gone before anything is printed."""

from __future__ import annotations

import errno
import io

import pytest
from rich.console import Console

from aquiline.cli.measurement import shown_bar
from aquiline.cli.output import StreamPrinter
from aquiline.cli.train_view import shown_training
from aquiline.cli.waiting import AwaitedPrinter, RareLines, loading_shown
from tests.cli.test_output import output


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")


def test_loading_draws_a_bar_on_a_terminal(terminal: None, capsys: pytest.CaptureFixture[str]) -> None:
    with loading_shown(is_hidden=False) as show:
        show(3, 4)
    shown = capsys.readouterr()
    assert "packing weights" in shown.err and "75%" in shown.err and not shown.out


def test_loading_draws_nothing_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    with loading_shown(is_hidden=False) as show:
        show(3, 4)
    assert capsys.readouterr() == ("", "")


def test_what_is_hidden_is_not_drawn(terminal: None, capsys: pytest.CaptureFixture[str]) -> None:
    with loading_shown(is_hidden=True) as show:
        show(3, 4)
    with AwaitedPrinter(StreamPrinter(io.StringIO()), is_hidden=True) as printer:
        printer.update(0, output("an eagle"))
    assert capsys.readouterr() == ("", "")


def test_the_moving_line_is_gone_before_text_appears(terminal: None, capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    with AwaitedPrinter(StreamPrinter(stream), is_hidden=False) as printer:
        printer.update(0, output("an eagle"))
        assert stream.getvalue() == "an eagle"
        shown = capsys.readouterr().err
        # The terminal's own code for erasing a line comes last.
        assert "reading the prompt" in shown and shown.rpartition("reading the prompt")[2].endswith("\x1b[2K")
        printer.update(0, output("an eagle flies"))
        assert capsys.readouterr().err == ""
    assert stream.getvalue() == "an eagle flies"


def test_a_log_gets_a_line_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = iter([0.0, 0.0, 60.0, 60.0, 119.0, 120.0, 120.0, 121.0])
    lines = RareLines(Console(stderr=True), is_hidden=False, clock=lambda: next(seconds))
    for number in range(5):
        lines.say(f"{number} [tokens]")
    assert capsys.readouterr().err == "1 [tokens]\n3 [tokens]\n"


def test_what_begins_is_said_at_once_and_then_a_line_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    lines = RareLines(Console(stderr=True), is_hidden=False, clock=lambda: now)
    for now, text in ((50.0, "1 of 3"), (70.0, "2 of 3"), (109.0, "3 of 3"), (110.0, "more")):
        if now == 50.0:
            lines.begin("answering")
        lines.say(text)
    assert capsys.readouterr().err == "answering\nmore\n"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_no_line_where_a_bar_moves_or_nothing_is_to_be_shown(
    is_terminal: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = iter([0.0, 60.0, 60.0, 61.0])
    lines = RareLines(
        Console(stderr=True, force_terminal=is_terminal), is_hidden=not is_terminal, clock=lambda: next(seconds)
    )
    lines.say("word")
    lines.begin("word")
    assert capsys.readouterr().err == ""


def test_a_measurement_says_in_a_log_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("aquiline.cli.waiting.SECONDS_BETWEEN_LINES", 0.0)
    with shown_bar("answering", 64) as bar:
        bar.advance()
        bar.rename("timing", 2000)
        bar(1500)
    with shown_bar("answering", is_hidden=True) as bar:
        bar(3, 4)
    assert capsys.readouterr() == ("", "answering: 1 of 64\ntiming: 1,500 of 2,000\n")


def test_training_says_in_a_log_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("aquiline.cli.waiting.SECONDS_BETWEEN_LINES", 0.0)
    with shown_training(is_json=False) as view:
        view.on_work("answering", 3, 0)
        view.on_work("labelling", 3, 4)
    with shown_training(is_json=False, is_hidden=True) as view:
        view.on_work("labelling", 3, 4)
    assert capsys.readouterr() == ("", "answering\nlabelling: 3 of 4\n")


def test_work_goes_on_although_its_log_cannot_be_written() -> None:
    class Full(io.StringIO):
        """A disk without room."""

        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    lines = RareLines(Console(file=Full()), is_hidden=False)
    for text in ("answering", "reading"):
        lines.begin(text)
