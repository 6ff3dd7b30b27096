"""The command line of `bench kernels`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aquiline.benchmark import kernels
from aquiline.cli import bench_kernels, main

ROW = {"p10_us": 1.0, "p90_us": 3.0, "floor_us": 1.0, "ratio_to_floor": 2.5, "ratio_to_first": 1.25}
RESULT: dict[str, Any] = {
    "speed": {
        "level": "avx2",
        "num_threads": 2,
        "memory_gb_per_s": 40.25,
        "cache_gb_per_s": 150.0,
        "float32_gops": 100.0,
        "bfloat16_gops": 200.0,
        "int8_gops": 400.0,
    },
    "packed_bytes": 96_400_000,
    "context": 256,
    "num_rounds": 3,
    "rows": [
        {"kernel": "linear qkv", "num_rows": 1, "median_us": 14.26, **ROW},
        {"kernel": "linear qkv", "num_rows": 4, "median_us": 114.6, **ROW},
        {"kernel": "target step", "num_rows": 4, "median_us": 5000.0, **ROW, "tokens_per_second": 800.0},
    ],
}


@pytest.fixture
def sweeps(monkeypatch: pytest.MonkeyPatch) -> list[kernels.KernelSweep]:
    """What was asked to be measured; nothing is loaded or measured."""
    asked: list[kernels.KernelSweep] = []

    def measure(llm: object, sweep: kernels.KernelSweep, on_run: object) -> dict[str, Any]:
        asked.append(sweep)
        return RESULT

    monkeypatch.setattr(bench_kernels, "open_llm", lambda settings: None)
    monkeypatch.setattr(kernels, "measure_kernels", measure)
    return asked


def test_json_has_rows_and_provenance(sweeps: list[kernels.KernelSweep], capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", "kernels", "--rows", "1,4", "--context", "99", "--rounds", "3", "--json"]
    assert main(command) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["rows"] == RESULT["rows"]
    assert {"commit", "versions", "machine", "arguments", "date"} <= result.keys()
    assert result["speed"]["level"] == "avx2" and result["machine"]["processor"]
    assert sweeps == [kernels.KernelSweep((1, 4), 99, 3)]


def test_the_defaults_are_those_of_the_sweep(sweeps: list[kernels.KernelSweep]) -> None:
    assert main(["bench", "kernels"]) == 0
    assert sweeps == [kernels.KernelSweep()]


def test_tables_show_times_and_ratios(sweeps: list[kernels.KernelSweep], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "kernels"]) == 0
    shown = capsys.readouterr().out
    for text in ("memory 40.2 GB/s", "96.4 MB", "linear qkv", "14.3", "115", "2.5", "5.00", "1.25", "800"):
        assert text in shown, text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(["--rows", "1,x"], "--rows has 'x'", id="letters"),
        pytest.param(["--rows", ""], "--rows has ''", id="nothing"),
        pytest.param(["--rows", "0"], "--rows has '0'", id="zero"),
        pytest.param(["--rows", "5000"], "--rows has '5000'", id="too-many"),
        pytest.param(["--rows", "4,4"], "--rows is '4,4', where", id="twice"),
        pytest.param(["--rounds", "0"], "--rounds is 0", id="rounds"),
        pytest.param(["--threads", "0"], "--threads is 0", id="threads"),
        pytest.param(["--quantization", "int3"], "quantization is 'int3'", id="quantization"),
    ],
)
def test_mistakes_are_one_line(
    sweeps: list[kernels.KernelSweep], options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "kernels", *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"aquiline: error: {message}") and error.count("\n") == 1
    assert not sweeps
