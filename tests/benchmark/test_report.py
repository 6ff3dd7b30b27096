"""Pages of results: what is read, what is refused, and what the page says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from aquiline.benchmark.report_forecasts import forecast_figures
from aquiline.benchmark.report_page import page_of
from aquiline.benchmark.report_planner import planner_figures
from aquiline.benchmark.report_plots import plots_of, plots_of_all
from aquiline.benchmark.report_results import Kind, Result, read_result, speedups
from aquiline.benchmark.report_serving import frontier_figures
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


def serving_row(rate: float, is_ours: bool) -> dict[str, Any]:
    latencies = {"mean": 31.5, "p50": 30.5, "p90": 33.5, "p99": 34.5}
    return {
        "load": "rate",
        "request_rate": rate,
        "concurrency": None,
        "num_complete": 7,
        "num_requests": 8,
        "request_throughput": rate,
        "output_throughput": 100.0 * rate,
        "goodput": 0.5 * rate,
        "ttft_ms": latencies,
        "tpot_ms": latencies,
        "itl_ms": None,
        "server": {"acceptance_length": 1.75, "phases_ms": PHASES} if is_ours else None,
    }


def chosen(num_requests: int, text: str, step_ms: float) -> dict[str, Any]:
    return {
        "num_requests": num_requests,
        "text": text,
        "expected": 2.0 * num_requests,
        "step_ms": step_ms,
        "tokens_per_second": 2e3 * num_requests / step_ms,
        "plain_tokens_per_second": 100.0,
    }


FORECAST = {
    "num_steps": 9,
    "expected_step_ms": 3.25,
    "measured_step_ms": 3.5,
    "expected_tokens": 1.25,
    "committed_tokens": 1.125,
    "num_steps_by_shape": {"off": 6, **{f"chain:{n}": 1 for n in range(1, 12)}},
}
OFFLINE = [offline_row(1, "off", 10.0), offline_row(1, "auto", 4.0), offline_row(4, "off", 3.0)]
WITHOUT_TIMES = [{key: row[key] for key in row if key != "time_per_committed_token_ms"} for row in OFFLINE]
WITH_FORECAST = [OFFLINE[0] | {"forecast": None}, OFFLINE[1] | {"forecast": FORECAST}]
SERVING = [serving_row(1.0, True), serving_row(2.0, True)]
OTHER_SERVER = [serving_row(1.0, False) | {"goodput": None, "ttft_ms": None}]
OBJECTIVES = {"latency": [chosen(8, "chain:2", 9.0)], "throughput": [chosen(8, "off", 5.0)]}
CHOSEN = [{"objective": text, **shapes[0]} for text, shapes in OBJECTIVES.items()]
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


@pytest.mark.parametrize(
    ("kind", "rows", "count"),
    [
        ("offline", OFFLINE, 3),
        ("offline", OFFLINE[1:2], 3),
        ("offline", WITHOUT_TIMES, 3),
        ("offline", WITH_FORECAST, 6),
        ("latency", LATENCY, 2),
        ("latency", [LATENCY[1] | {"forecast": FORECAST}], 5),
        ("serving", SERVING, 3),
        ("serving", OTHER_SERVER, 1),
        ("tune", CHOSEN, 3),
    ],
)
def test_pictures_are_well_formed(kind: Kind, rows: list[dict[str, Any]], count: int) -> None:
    result = Result("it", kind, rows, {}, "us")
    pictures = plots_of(result) | plots_of_all([result])
    assert len(pictures) == count + 2 * (kind == "serving")
    for picture in pictures.values():
        assert ElementTree.fromstring(picture).tag.endswith("svg")


def test_the_page_stands_alone_and_escapes_what_it_quotes(files: list[Path], tmp_path: Path) -> None:
    page = page_of([read_result(path) for path in files], [{"A <b>": "<svg></svg>"}, {}])
    assert "A &lt;b&gt;" in page and "<svg></svg>" in page
    assert "&lt;edit&gt;" in page and "<edit>" not in page
    assert not re.search(r"(src|href)=", page)
    assert "abc" in page and ">2.50<" not in page and ">10.00<" in page


def test_forecasts_servers_and_both_objectives_are_on_the_page(tmp_path: Path) -> None:
    contents: dict[str, dict[str, Any]] = {
        "offline": {"rows": WITH_FORECAST},
        "ours": {"kind": "serving", "label": "auto, latency", "rows": SERVING},
        "tuned": {"kind": "tune", "objectives": OBJECTIVES, "chosen": []},
    }
    results = []
    for name, content in contents.items():
        (tmp_path / name).write_text(json.dumps(content))
        results.append(read_result(tmp_path / name))
    assert [result.kind for result in results] == ["offline", "serving", "tune"]
    page = page_of(results, [{}, {}, {}], {"All of them": "<svg></svg>"})
    cells = [re.findall(r"<td>(.*?)</td>", row) for row in page.split("<tr>")]
    assert ["plain", "1", "100.00", "10.00", "1.50", "-", "-", "-", "-"] in cells
    assert ["auto", "1", "250.00", "4.00", "1.50", "3.25", "3.50", "1.25", "1.12"] in cells
    assert any(row[:6] == ["2/s", "7", "8", "2.00", "1.00", "200.00"] and "34.50" in row for row in cells)
    assert ["latency", "8", "chain:2", "16.00", "9.00", "1777.78", "100.00"] in cells
    assert ["throughput", "8", "off", "16.00", "5.00", "3200.00", "100.00"] in cells
    assert "auto, latency (ours)" in page and "All of them" in page and "ITL" not in page


def curves(figure: Figure) -> list[np.ndarray[Any, Any]]:
    """Points of every line, [num_points, 2] each."""
    return [np.asarray(line.get_xydata()) for line in figure.axes[0].lines]


def test_expectations_are_drawn_where_they_belong() -> None:
    times, tokens, trees = forecast_figures(WITH_FORECAST, "batch_size").values()
    assert curves(times)[0].tolist() == [[3.5, 3.25]] and curves(tokens)[0].tolist() == [[1.125, 1.25]]
    assert curves(times)[1][1] == pytest.approx([3.85, 3.85])
    heights = [patch.get_height() for patch in trees.axes[0].patches if isinstance(patch, Rectangle)]
    assert sum(heights) == pytest.approx(1.0) and heights[0] == pytest.approx(6 / 17)


def test_long_names_of_trees_neither_cover_the_bars_nor_leave_the_picture() -> None:
    """Also in the picture of a single load."""
    names = [f"dynamic:steps={steps},topk=4,nodes=12,survival=0.07" for steps in range(1, 10)]
    forecast = {**FORECAST, "num_steps_by_shape": dict.fromkeys(names, 2)}
    figure = forecast_figures([{**OFFLINE[1], "forecast": forecast}], "batch_size")["Trees that grew"]
    figure.draw_without_rendering()
    legend, bars = figure.legends[0].get_window_extent(), figure.axes[0].get_window_extent()
    assert legend.y1 <= bars.y0 and 0.0 <= legend.x0 < legend.x1 <= figure.bbox.width
    assert bars.height > 0.3 * figure.bbox.height


def test_objectives_and_servers_are_drawn_where_they_belong() -> None:
    shapes, speed, wait = planner_figures(CHOSEN).values()
    for figure, expected in ((shapes, (2.0, 0.0)), (speed, (160 / 9, 160 / 5)), (wait, (4.5, 2.5))):
        found = np.concatenate(curves(figure))
        assert found[:, 0].tolist() == [8.0, 8.0] and found[:, 1] == pytest.approx(expected)
    frontier, _ = frontier_figures([Result("it", "serving", SERVING, {}, "us")]).values()
    assert curves(frontier)[0].tolist() == [[100.0, 30.5], [200.0, 30.5]]


def test_the_command_writes_the_page(files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "page.html"
    assert main(["bench", "report", *map(str, files), "--output", str(output)]) == 0
    assert output.read_text().count("<svg") == 5
    assert capsys.readouterr().out == f"{output}: 2 results\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("no json", "is not JSON"),
        ("[1]", "is no result of bench offline, latency or serving, nor of tune"),
        ('{"rows": []}', "is no result of"),
        ('{"objectives": {"latency": [1]}}', "is no result of"),
        ('{"objectives": {"latency": 1}}', "is no result of"),
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
