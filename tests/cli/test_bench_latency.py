"""The command line of `bench latency`."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from aquiline.benchmark import latency
from aquiline.cli import bench_latency, main
from aquiline.cli.app import build_parser


def row(speculate: str, tpot_ms: float | None) -> dict[str, Any]:
    return {
        "workload": "retrieval",
        "speculate": speculate,
        "lookup": "auto",
        "ttft_ms": 1234.5,
        "tpot_ms": tpot_ms,
        "acceptance_length": 2.5,
    }


def shown(rows: list[dict[str, Any]]) -> str:
    console = Console(file=io.StringIO(), width=80, highlight=False)
    console.print(bench_latency.table_of(rows))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_speed_up_is_counted_from_the_first_variant_of_a_workload() -> None:
    text = shown([row("off", 10.0), row("dynamic:steps=5,topk=4,nodes=16", 4.0), row("auto", None)])
    assert "1.00" in text and "2.50" in text and "1234.5" in text
    assert "…" not in text


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What was asked for of a measurement that needs no model."""
    asked: list[tuple[Any, ...]] = []

    def measure(*arguments: Any) -> list[dict[str, Any]]:
        asked.append(arguments)
        return [row("off", 10.0)]

    monkeypatch.setattr(bench_latency, "open_llm", lambda settings: SimpleNamespace(backend="cpu"))
    monkeypatch.setattr(latency, "measure_latency", measure)
    return asked


def test_every_mode_is_measured_with_every_lookup_and_plain_once(
    measured: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["bench", "latency", "--speculate", "off,auto,chain:2", "--lookup", "auto,off", "--json"]
    assert main([*argv, "--workloads", "chat,edit", "--rounds", "2"]) == 0
    _, workloads, _, variants, rounds, _ = measured[0]
    assert list(workloads) == ["chat", "edit"] and rounds == 2
    assert [(variant.mode.text, variant.lookup) for variant in variants] == [
        ("off", "off"),
        ("auto", "auto"),
        ("auto", "off"),
        ("chain:2", "auto"),
        ("chain:2", "off"),
    ]
    result = json.loads(capsys.readouterr().out)
    assert (result["kind"], result["rounds"], result["rows"]) == ("latency", 2, [row("off", 10.0)])
    assert "commit" in result


def test_the_model_is_loaded_for_the_modes_that_need_a_draft() -> None:
    args = build_parser().parse_args(["bench", "latency", "--speculate", "off,chain:2"])
    assert bench_latency.check_arguments(args).config.speculative.mode.text == "chain:2"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(["--workloads", "chat,poems"], "there is no workload 'poems'", id="workload"),
        pytest.param(["--workloads", "chat,chat"], "a value stands twice", id="workload-twice"),
        pytest.param(["--workloads", "chat", "--prompts", "-"], "only one of them", id="both"),
        pytest.param(["--speculate", "off,off"], "a value stands twice", id="mode-twice"),
        pytest.param(["--lookup", "auto,never"], "it must be auto, on or off", id="lookup"),
        pytest.param(["--rounds", "0"], "--rounds is 0", id="rounds"),
        pytest.param(["--n", "2"], "--n is 2", id="samples"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    options: list[str], message: str, measured: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "latency", *options]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not measured
