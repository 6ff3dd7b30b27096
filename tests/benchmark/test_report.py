"""Pages of results: what is read, what is refused, and what the page says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from aquiline.benchmark.report_page import page_of
from aquiline.benchmark.report_plots import plots_of
from aquiline.benchmark.report_results import Result, read_result, speedups
from aquiline.cli import main

PHASES = {"draft": 0.5, "verify": 1.5}


def offline_row(batch_size: int, speculate: str, ms: float) -> dict[str, Any]:
    return {
        "batch_size": batch_size,
        "speculate": speculate,
        "tokens_per_second": 1000.0 / ms,
        "time_per_committed_token_ms": ms,
        "acceptance_length": 1.5,
        "phases_ms": PHASES,
    }


def latency_row(workload: str, speculate: str, lookup: str, tpot_ms: float | None) -> dict[str, Any]:
    return {
        "workload": workload,
        "speculate": speculate,
        "lookup": lookup,
        "ttft_ms": 50.0,
        "tpot_ms": tpot_ms,
        "itl_p95_ms": 9.0,
        "time_per_committed_token_ms": 4.0,
        "acceptance_length": 2.0,
        "phases_ms": PHASES,
    }


OFFLINE = [offline_row(1, "off", 10.0), offline_row(1, "auto", 4.0), offline_row(4, "off", 3.0)]
LATENCY = [
    latency_row("chat", "off", "off", 10.0),
    latency_row("chat", "auto", "auto", 5.0),
    latency_row("<edit>", "auto", "auto", None),
]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "offline.json", tmp_path / "latency.json"]
    paths[0].write_text(json.dumps({"backend": "cpu", "rows": OFFLINE, "commit": "abc"}))
    paths[1].write_text(json.dumps({"kind": "latency", "rows": LATENCY, "date": "today"}))
    return paths


def test_results_know_their_kind_and_where_they_come_from(files: list[Path]) -> None:
    offline, latency = map(read_result, files)
    assert (offline.kind, offline.provenance) == ("offline", {"commit": "abc", "backend": "cpu"})
    assert (latency.kind, latency.provenance) == ("latency", {"date": "today"})


def test_speed_up_is_plain_divided_by_the_variant() -> None:
    assert speedups(OFFLINE, "batch_size", "time_per_committed_token_ms") == {"auto": {1: 2.5}}
    assert speedups(LATENCY, "workload", "tpot_ms") == {"auto, lookup auto": {"chat": 2.0}}


@pytest.mark.parametrize(("rows", "count"), [(OFFLINE, 3), (OFFLINE[1:2], 3), (LATENCY, 2)])
def test_pictures_are_well_formed(rows: list[dict[str, Any]], count: int) -> None:
    pictures = plots_of(Result("it", "offline" if "batch_size" in rows[0] else "latency", rows, {}))
    assert len(pictures) == count
    for picture in pictures.values():
        assert ElementTree.fromstring(picture).tag.endswith("svg")


def test_the_page_stands_alone_and_escapes_what_it_quotes(files: list[Path], tmp_path: Path) -> None:
    page = page_of([read_result(path) for path in files], [{"A <b>": "<svg></svg>"}, {}])
    assert "A &lt;b&gt;" in page and "<svg></svg>" in page
    assert "&lt;edit&gt;" in page and "<edit>" not in page
    assert not re.search(r"(src|href)=", page)
    assert "abc" in page and ">2.50<" not in page and ">10.00<" in page


def test_the_command_writes_the_page(files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "page.html"
    assert main(["bench", "report", *map(str, files), "--output", str(output)]) == 0
    assert output.read_text().count("<svg") == 5
    assert capsys.readouterr().out == f"{output}: 2 results\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("no json", "is not JSON"),
        ("[1]", "is no result of bench offline or bench latency"),
        ('{"rows": []}', "is no result of"),
        ('{"rows": [{"kernel": "x"}]}', "is no result of"),
        (None, "cannot be read: No such file"),
    ],
)
def test_what_is_no_result_is_refused(
    content: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, output = tmp_path / "result.json", tmp_path / "page.html"
    if content is not None:
        path.write_text(content)
    assert main(["bench", "report", str(path), "--output", str(output)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not output.exists()


def test_a_page_needs_a_folder_that_is_there(
    files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "report", str(files[0]), "--output", str(tmp_path / "none" / "page.html")]) == 2
    assert "--output is" in capsys.readouterr().err
