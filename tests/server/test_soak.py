"""A short soak; `python -m tests.server.soak 2000` is a long one."""

from __future__ import annotations

from pathlib import Path

from tests.server.soak import soak


def test_every_answer_is_the_solo_answer_whatever_else_happens(toy_folder: Path) -> None:
    tally = soak(toy_folder, 40)
    assert tally.problems == []
    assert tally.counts["answered"] + tally.counts["aborted"] == 40
    assert tally.counts["aborted"] > 0 and tally.counts["preempted"] > 0
