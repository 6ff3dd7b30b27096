"""The command line of `bench offline`."""

from __future__ import annotations

import io
import json
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from aquiline.benchmark import offline, paired
from aquiline.cli import bench_offline, main
from aquiline.llm import LLM
from aquiline.request import SamplingParams
from aquiline.speculation import SpeculationMode, parse_speculation

LONG_SHAPE = "dynamic:steps=5,topk=4,nodes=16"


def row(batch_size: int, speculate: str) -> dict[str, Any]:
    return {
        "batch_size": batch_size,
        "speculate": speculate,
        "num_committed_tokens": 1024,
        "tokens_per_second": 1711.25,
        "time_per_committed_token_ms": 1234.56,
        "acceptance_length": 1.75,
        "full_batch": {"num_steps": 99, "committed_tokens": 1.75, "step_ms": 2.5, "tokens_per_second": 2211.25},
        "phases_ms": {"schedule": 10.25, "draft": 20.25, "verify": 1034.25, "sample": 40.25, "commit": 50.25},
        "peak_memory_mb": 12345.67,
    }


def shown(rows: list[dict[str, Any]], width: int) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(bench_offline.drawing(rows))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_every_figure_fits_on_80_columns() -> None:
    text = shown([row(1, "off"), row(16, LONG_SHAPE)], width=80)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    figures = ("speculate", "acceptance length", "1711.25", "2211.25", "1234.56", "12345.67", "schedule", "1034.25")
    for figure in figures:
        assert figure in text


@pytest.fixture
def prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A prompt file, for a measurement that needs no model."""
    monkeypatch.setattr(bench_offline, "open_llm", lambda settings: SimpleNamespace(backend="cpu"))
    monkeypatch.setattr(offline, "measure_offline", lambda *_: [row(1, "off")])
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "one"}\n')
    return str(path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_one_line(
    prompts: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w") as stream:
        monkeypatch.setattr("sys.stdout", stream)
        status = main(["bench", "offline", "--prompts", prompts])
        monkeypatch.undo()
    assert status == 2
    assert capsys.readouterr().err.startswith("aquiline: error: the output cannot be written")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(["--speculate", "off,auto,off"], "--speculate is 'off,auto,off', where", id="tree"),
        pytest.param(["--batch-sizes", "1,4,01"], "--batch-sizes is '1,4,01', where", id="batch-size"),
    ],
)
def test_a_value_given_twice_is_refused(
    options: list[str], message: str, prompts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "offline", "--prompts", prompts, *options]) == 2
    assert capsys.readouterr().err.startswith(f"aquiline: error: {message}")


@pytest.mark.parametrize("rounds", [["--warm-up-rounds", "2"], ["--paired", "--rounds", "2"]])
def test_answers_of_earlier_rounds_are_not_looked_up(
    rounds: list[str], prompts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [*rounds, "--lookup", "on", "--lookup-history", "64"]
    assert main(["bench", "offline", "--prompts", prompts, *options]) == 2
    assert "--lookup-history 64 would find the answers of the rounds before" in capsys.readouterr().err


def test_turns_after_every_batch_count_as_runs(
    prompts: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sweeps: list[offline.Sweep] = []

    def measure(llm: object, texts: object, params: object, sweep: offline.Sweep, bar: object) -> list[dict[str, Any]]:
        sweeps.append(sweep)
        ratios = [{"mean": 1.25, "standard_error": 0.03, "num_pairs": 4}, None]
        return [{**row(1, "off"), "ratio": ratio} for ratio in ratios]

    monkeypatch.setattr(paired, "measure_paired", measure)
    assert main(["bench", "offline", "--prompts", prompts, "--paired", "--rounds", "3"]) == 0
    text = capsys.readouterr().out
    assert "1.25" in text and "0.03" in text and "the first" in text
    assert sweeps == [offline.Sweep((1,), (parse_speculation("off"), parse_speculation("auto")), 3, 0)]


@pytest.mark.parametrize(
    ("warm_up_rounds", "medians"), [(0, {"off": 20.0, "chain:1": 5.0}), (2, {"off": 20.0, "chain:1": 6.0})]
)
def test_modes_take_turns_and_the_median_round_counts(
    warm_up_rounds: int, medians: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    speeds = {"off": iter((10.0, 30.0, 20.0)), "chain:1": iter((5.0, 4.0, 6.0))}
    turns: list[str] = []

    started: list[str] = []

    def measured(
        engine: object, conversations: object, params: object, batch_size: int, mode: SpeculationMode
    ) -> dict[str, Any]:
        assert engine == mode.text
        turns.append(mode.text)
        return {**row(batch_size, mode.text), "tokens_per_second": next(speeds[mode.text])}

    def start(llm: object, config: str, conversations: object, params: object) -> str:
        started.append(config)
        return config

    monkeypatch.setattr(offline, "config_of", lambda llm, batch_size, mode, shares_prompts: mode.text)
    monkeypatch.setattr(offline, "started", start)
    monkeypatch.setattr(offline, "_measure", measured)
    modes = (parse_speculation("off"), parse_speculation("chain:1"))
    sweep = offline.Sweep((4,), modes, rounds=3 - warm_up_rounds, warm_up_rounds=warm_up_rounds)
    done: list[int] = []
    rows = offline.measure_offline(cast(LLM, None), [], SamplingParams(), sweep, done.append)
    assert turns == ["off", "chain:1"] * 3
    assert started == ["off", "chain:1"] * (1 if warm_up_rounds else 3)
    assert done == list(range(1, sweep.num_runs + 1))
    assert {found["speculate"]: found["tokens_per_second"] for found in rows} == medians


@pytest.mark.parametrize(("warm_up_rounds", "most"), [(0, 1), (1, 2)])
def test_engines_that_are_not_asked_again_make_room(
    warm_up_rounds: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Engine:
        """Stands for one and its cache."""

    alive: weakref.WeakSet[Engine] = weakref.WeakSet()
    counts: list[int] = []

    def start(*_: object) -> Engine:
        engine = Engine()
        alive.add(engine)
        counts.append(len(alive))
        return engine

    monkeypatch.setattr(offline, "config_of", lambda llm, batch_size, mode, shares_prompts: mode.text)
    monkeypatch.setattr(offline, "started", start)
    monkeypatch.setattr(offline, "_measure", lambda engine, texts, params, batch_size, mode: row(batch_size, mode.text))
    modes = (parse_speculation("off"), parse_speculation("chain:1"))
    sweep = offline.Sweep((1, 4), modes, rounds=2, warm_up_rounds=warm_up_rounds)
    offline.measure_offline(cast(LLM, None), [], SamplingParams(), sweep)
    assert max(counts) == most


def test_workloads_are_repeated_until_they_fill_the_largest_batch(
    prompts: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "offline", "--workloads", "chat", "--batch-sizes", "1,9", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_prompts"] == 9
    assert main(["bench", "offline", "--workloads", "chat", "--prompts", prompts]) == 2
    assert "give only one of them" in capsys.readouterr().err


@pytest.mark.parametrize("rounds", ["0", "1001"])
def test_rounds_have_a_range(rounds: str, prompts: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "offline", "--prompts", prompts, "--rounds", rounds]) == 2
    assert f"--rounds is {rounds}; it must be an integer from 1 to 1000" in capsys.readouterr().err
