"""`aquiline tune`, and the tables that `--speculate-table` reads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from aquiline.benchmark.chosen_shapes import LOADS, chosen_by_objective, chosen_shapes
from aquiline.cli.app import build_parser, main
from aquiline.cli.options import engine_config
from aquiline.cli.speculate_table import read_table, write_table
from aquiline.config import Objective, SpeculativeConfig
from aquiline.engine.cost_curve import Curve
from aquiline.engine.cost_model import GENERIC_PROFILE
from aquiline.errors import InvalidParameterError, UserError
from tests.checkpoints import write_draft, write_target
from tests.engine.test_tuning import STAGES
from tests.tiny import tiny_eagle_config, tiny_llama_config
from tests.tiny_tokenizers import train_byte_level


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Arguments that name a tiny target and draft; the measurement is cut short."""
    monkeypatch.setenv("AQUILINE_HOME", str(tmp_path / "home"))
    for name in ("SHORT_STAGES", "LONG_STAGES"):
        monkeypatch.setattr(f"aquiline.engine.tuning.{name}", STAGES)
    for name in ("SHORT_ROUNDS", "LONG_ROUNDS"):
        monkeypatch.setattr(f"aquiline.engine.tuning.{name}", 1)
    vocab_size = train_byte_level().get_vocab_size()
    target = tiny_llama_config(vocab_size=vocab_size, max_position=96)
    write_target(tmp_path / "target", target)
    write_draft(tmp_path / "draft", tiny_eagle_config(target, draft_vocab_size=vocab_size))
    paths = ["--model", str(tmp_path / "target"), "--draft", str(tmp_path / "draft")]
    return ["tune", *paths, "--dtype", "float32", "--threads", "1", "--draft-check", "off"]


def test_costs_are_measured_shown_and_written(
    models: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*models, "--show"]) == 2
    assert "nothing was measured" in capsys.readouterr().err
    table, plot = tmp_path / "table.json", tmp_path / "plot.png"
    assert main([*models, "--short", "--write-table", str(table), "--plot", str(plot)]) == 0
    shown = capsys.readouterr().out
    assert "milliseconds" in shown
    assert all(f"what the planner would begin with, for {aim}" in shown for aim in ("throughput", "latency"))
    assert f"{plot}: the costs, drawn\n{table}: shapes for --speculate-table\n" in shown
    assert plot.read_bytes().startswith(b"\x89PNG")
    other = tmp_path / "other"
    other.touch()
    assert plot.stat().st_mode == table.stat().st_mode == other.stat().st_mode
    assert [most for most, _ in read_table(str(table)).entries] == list(LOADS)
    assert main([*models, "--show", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["key"]["num_threads"] == 1
    assert len(content["chosen"]) == len(LOADS)
    assert content["kind"] == "tune" and list(content["objectives"]) == ["throughput", "latency"]
    assert content["objectives"]["throughput"] == content["chosen"]
    assert content["costs"]["verify"]["rows"][0] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--show", "--short"], "give only one of them"),
        (["--draft", "none"], "nothing to plan"),
        (["--plot", "costs.jpg"], "name a file that ends in .png"),
        (["--speculate", "chain:1"], "unrecognized arguments"),
        (["--grammar-mask-ms", "9"], "unrecognized arguments"),
    ],
)
def test_contradictions_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--plot", "--write-table"])
def test_files_that_cannot_be_written_are_named_before_anything_is_measured(
    option: str, models: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match="cannot write"):
        write_table(tmp_path / "none" / "table.json", [(1, "off")])
    for place in (tmp_path / "none" / "file", tmp_path):
        assert main([*models, option, str(place)]) == 2
        assert f"{option} is {str(place)!r}; name a file" in capsys.readouterr().err
    assert main([*models, "--show"]) == 2
    assert "nothing was measured" in capsys.readouterr().err


def test_a_table_comes_back_and_is_an_option(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    write_table(path, [(2, "chain:2"), (8, "paths:0,1,00"), (9, "off")])
    args = build_parser().parse_args(["generate", "--prompt", "x", "--speculate-table", str(path)])
    table = engine_config(args).speculative.table
    assert table is not None
    assert [(most, mode.text) for most, mode in table.entries] == [(2, "chain:2"), (8, "paths:0,1,00"), (9, "off")]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        "[1]",
        '[{"max_requests": 2}]',
        '[{"max_requests": "2", "speculate": "off"}]',
        '[{"max_requests": 2, "speculate": "off", "more": 1}]',
        '[{"max_requests": 2, "speculate": "x"}]',
        '[{"max_requests": 2, "speculate": 3}]',
        '[{"max_requests": 2, "speculate": "auto"}]',
        '[{"max_requests": 2, "speculate": "off"}, {"max_requests": 2, "speculate": "off"}]',
        "[]",
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "table.json").write_text(content)
    with pytest.raises(InvalidParameterError):
        read_table(str(tmp_path / "table.json"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(None, "cannot be read: No such file or directory; name a file", id="missing"),
        pytest.param(b"[{", "is not JSON; give a list such as", id="cut off"),
        pytest.param(b"[" * 100_000, "is not JSON", id="nested without end"),
        pytest.param(b"\xff", "is not JSON", id="bytes"),
    ],
)
def test_a_table_that_cannot_be_read_is_named_once(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "table.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidParameterError, match=message) as caught:
        read_table(str(path))
    assert str(caught.value).count(str(path)) == 1


def test_first_choices_follow_the_costs() -> None:
    draft = tiny_eagle_config(tiny_llama_config())
    chosen = chosen_shapes(GENERIC_PROFILE, SpeculativeConfig(), draft)
    assert [shape.num_requests for shape in chosen] == list(LOADS)
    assert all(shape.tokens_per_second >= shape.plain_tokens_per_second * 0.999 for shape in chosen)
    assert chosen[0].text != "off"
    steep = replace(GENERIC_PROFILE, verify=replace(GENERIC_PROFILE.verify, rows=(1, 2), seconds=(1.0, 2.0)))
    assert {shape.text for shape in chosen_shapes(steep, SpeculativeConfig(), draft)} == {"off"}


def test_objectives_choose_different_trees_where_the_costs_say_so() -> None:
    """A further row is dear, so that the machine delivers most without trees long before a single reader does."""
    draft = tiny_eagle_config(tiny_llama_config())
    rows = (1, 2, 4, 8, 64)
    costs = replace(GENERIC_PROFILE, verify=Curve(rows, tuple(0.010 + 0.0035 * count for count in rows)))
    chosen = chosen_by_objective(costs, SpeculativeConfig(objective=Objective("slo:30")), draft)
    assert list(chosen) == ["slo:30", "throughput", "latency"]
    waits = {
        aim: [shape.step_ms * shape.num_requests / shape.expected for shape in shapes] for aim, shapes in chosen.items()
    }
    speeds = {aim: [shape.tokens_per_second for shape in shapes] for aim, shapes in chosen.items()}
    assert all(quick <= slow * 1.001 for quick, slow in zip(waits["latency"], waits["throughput"], strict=True))
    assert all(most >= less * 0.999 for most, less in zip(speeds["throughput"], speeds["latency"], strict=True))
