"""Arrivals by chance and from files."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from aquiline.benchmark.serving.arrivals import poisson_arrivals, read_trace
from aquiline.errors import InvalidParameterError


def test_gaps_have_the_mean_and_spread_of_an_exponential_distribution() -> None:
    times = poisson_arrivals(4.0, 20_001, seed=1)
    gaps = [after - before for before, after in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert times[0] == 0.0 and min(gaps) >= 0.0
    assert mean == pytest.approx(0.25, rel=0.03)
    assert deviation == pytest.approx(0.25, rel=0.05)


def test_a_seed_gives_one_pattern_at_every_rate() -> None:
    slow, fast = poisson_arrivals(1.0, 9, seed=3), poisson_arrivals(4.0, 9, seed=3)
    assert [4.0 * time for time in fast] == pytest.approx(slow)
    assert poisson_arrivals(1.0, 9, seed=4) != slow == poisson_arrivals(1.0, 9, seed=3)


def test_a_trace_begins_at_its_first_arrival(tmp_path: Path) -> None:
    path = tmp_path / "arrivals.txt"
    path.write_text("100.5\n\n101\n101\n 103.25 \n")
    assert read_trace(path) == (0.0, 0.5, 0.5, 2.75)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"1\nsoon\n", "line 2 is 'soon'; it must be a number of seconds"),
        (b"1\nnan\n", "line 2 is 'nan'"),
        (b"2\n1\n", "line 2: 1 comes before the line above"),
        (b"\n", "has 0 arrivals"),
        (b"\xff", "is not text"),
        (None, "cannot be read: No such file"),
    ],
)
def test_what_is_no_trace_is_refused(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "arrivals.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidParameterError, match=message):
        read_trace(path)
