"""Signs of life: on a terminal only, gone before anything is printed."""

from __future__ import annotations

import io

import pytest

from aquiline.cli.output import StreamPrinter
from aquiline.cli.waiting import AwaitedPrinter, loading_shown
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
