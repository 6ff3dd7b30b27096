"""`aquiline train` from the command line on a toy target: a whole run, a kill, and what is refused."""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from aquiline.cli import main
from aquiline.cli.app import build_parser
from aquiline.cli.parser import record_defaults
from aquiline.cli.train import CommandDefaults, check_arguments
from aquiline.cli.train_options import ALL_OPTIONS
from aquiline.cli.train_view import result_drawing
from aquiline.config import EngineConfig
from aquiline.request import SamplingParams
from aquiline.training.evaluation_settings import EvaluationSettings
from aquiline.training.settings import DraftSettings, TrainingSettings
from tests.source_tree import ROOT
from tests.training.toy_data import MAX_TOKENS, QUESTIONS, write_toy_data
from tests.training.toy_models import open_toy, write_toys

MAX_DEPTH = 3


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_data(write_toys(tmp_path_factory.mktemp("toys")))


def arguments(toys: Path, output: Path, *more: str) -> list[str]:
    """A run of a second or two that learns a few answers by heart, and is measured on the same questions."""
    options = {
        "--target": toys / "target",
        "--data": toys / "data",
        "--output": output,
        "--aux-layer-ids": "0,1,3",
        "--draft-vocab-size": "none",
        "--dtype": "float32",
        "--stage": "ttt_steps=3,learning_rate=1e-2,epochs=120",
        "--step-decay": 1,
        "--tokens-per-step": 20,
        "--checkpoint-every": 1500,
        "--eval-max-tokens": MAX_TOKENS,
        "--eval-max-depth": MAX_DEPTH,
        "--eval-prompts": toys / "prompts.jsonl",
        "--threads": 1,
    }
    return ["train", *(str(part) for pair in options.items() for part in pair), *more]


def records_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def finished(toys: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """The folder of a run that went to its end, and the lines it printed."""
    output = tmp_path_factory.mktemp("runs") / "run"
    command = [sys.executable, "-m", "aquiline", *arguments(toys, output, "--json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return output, records_of(done.stdout)


def test_a_run_prints_steps_evaluations_and_a_result(finished: tuple[Path, list[dict[str, Any]]]) -> None:
    _, records = finished
    kinds = [record["kind"] for record in records]
    assert kinds[0] == "evaluation" and kinds[-1] == "result"
    assert set(kinds) == {"step", "evaluation", "result"}
    evaluations = [record for record in records if record["kind"] == "evaluation"]
    assert [record["num_tokens"] for record in evaluations] == [0, 1500, 3000, 3600]
    assert all(record["plain_time_per_token_ms"] == evaluations[0]["plain_time_per_token_ms"] for record in evaluations)


def test_what_is_learnt_by_heart_is_accepted(finished: tuple[Path, list[dict[str, Any]]]) -> None:
    _, records = finished
    result = records[-1]
    before = records[0]["predicted"]["chain"]["acceptance_length"]
    assert before < 1.5
    assert result["served"]["chain"]["acceptance_length"] >= 0.75 * (MAX_DEPTH + 1)
    assert result["served"] == result["predicted"]
    assert result["trained"]["chain"]["acceptance_length"] == pytest.approx(
        result["served"]["chain"]["acceptance_length"], rel=0.03
    )
    assert set(result["categories"]) == set(QUESTIONS)


def test_the_head_is_ready_to_be_served(finished: tuple[Path, list[dict[str, Any]]], toys: Path) -> None:
    output, records = finished
    llm = open_toy(toys, "chain:3").with_draft(str(output / "head"))
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)
    answers = llm.chat([[{"role": "user", "content": text}] for text in QUESTIONS.values()], params)
    figures = [answer.outputs[0].speculation for answer in answers]
    assert sum(f.num_accepted_draft_tokens for f in figures) > 0.6 * sum(f.num_committed_tokens for f in figures)
    card = (output / "head" / "README.md").read_text()
    assert "birds" in card and "EAGLE-3 head for" in card
    about = json.loads((output / "head" / "config.json").read_text())["aquiline"]
    assert about["acceptance_prior"] == records[-1]["acceptance_prior"]
    assert (output / "progress.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_command_shows_a_finished_run_again(
    finished: tuple[Path, list[dict[str, Any]]], toys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, records = finished
    before = (output / "history.jsonl").read_bytes()
    assert main(arguments(toys, output, "--json")) == 0
    assert records_of(capsys.readouterr().out) == [records[-1]]
    assert (output / "history.jsonl").read_bytes() == before
    assert main(arguments(toys, output)) == 0
    shown = capsys.readouterr().out
    assert "birds" in shown and "(best)" in shown and max(map(len, shown.splitlines())) <= 80


def test_a_killed_run_goes_on_to_the_same_weights(
    finished: tuple[Path, list[dict[str, Any]]], toys: Path, tmp_path: Path
) -> None:
    output, records = finished
    killed = tmp_path / "killed"
    command = [sys.executable, "-m", "aquiline", *arguments(toys, killed, "--json")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            record = json.loads(line)
            if record["kind"] == "step" and record["num_tokens"] > 2000:
                process.send_signal(signal.SIGKILL)
                break
    shutil.rmtree(killed / "head")  # as if the kill had come before it was written
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert {record["num_tokens"] for record in records_of(done.stdout) if record["kind"] == "evaluation"} == {
        3000,
        3600,
    }
    name = "checkpoints/step-00000120/draft/model.safetensors"
    ours, theirs = load_file(killed / name), load_file(output / name)
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)
    whole = [record for record in records_of((killed / "history.jsonl").read_text()) if record["kind"] == "step"]
    expected = [record for record in records if record["kind"] == "step"]
    assert [record["step"] for record in whole] == [record["step"] for record in expected]
    assert [record["loss"] for record in whole] == [record["loss"] for record in expected]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        pytest.param(["--seed", "3"], "training.seed is 3, and the run in", id="seed"),
        pytest.param(["--backend", "pytorch"], "backend is 'pytorch', and the run in", id="backend"),
        pytest.param(["--num-layers", "2"], "training.draft.num_layers is 2", id="layers"),
    ],
)
def test_other_settings_than_those_of_the_run_are_refused(
    more: list[str],
    message: str,
    finished: tuple[Path, list[dict[str, Any]]],
    toys: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(arguments(toys, finished[0], *more)) == 2
    assert capsys.readouterr().err.startswith(f"aquiline: error: {message}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(["--output", "run", "--data", "data"], "--target is missing", id="no-target"),
        pytest.param(["--target", "t", "--output", "run"], "--data is missing", id="no-data"),
        pytest.param(["--target", "t", "--data", "d"], "--output is missing", id="no-output"),
        pytest.param(["--stage", "steps=4"], "argument --stage: 'steps=4' is not like ttt_steps=4", id="stage"),
        pytest.param(["--stage", "epochs=0"], "epochs is 0.0; it must be", id="stage-range"),
        pytest.param(["--aux-layer-ids", "1,x"], "argument --aux-layer-ids: 'x' is not an integer", id="layers"),
        pytest.param(["--kind", "eagle1", "--fc-norm"], "fc_norm is an option of eagle3 heads", id="eagle1"),
        pytest.param(["--device", "tpu"], "device is 'tpu'; it must be auto, cpu or cuda", id="device"),
        pytest.param(["--num-tokens", "9"], "--num-tokens means nothing for data that is there", id="num-tokens"),
        pytest.param(["--feature-noise", "0.1"], "--feature-noise means nothing for eagle3", id="noise"),
        pytest.param(["--kind", "eagle1", "--freeze-head"], "--freeze-head means nothing for eagle1", id="freeze"),
        pytest.param(["--kind", "eagle1", "--draft-vocab-size", "9"], "--draft-vocab-size means nothing", id="size"),
        pytest.param(["--data", "self"], "data is d, self; self stands alone", id="self-and-more"),
        pytest.param(["--threads", "0"], "--threads is 0", id="threads"),
        pytest.param(
            ["--quantization-aware", "int4", "--draft-quantization", "int8"],
            "quantization_aware is 'int4' and draft_quantization 'int8'; a head is measured as it is trained to be",
            id="served-otherwise",
        ),
        pytest.param(["--config", "no/such.yaml"], "--config 'no/such.yaml' cannot be read", id="no-file"),
    ],
)
def test_mistakes_are_one_line(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    names = {option for option in options if option in ("--target", "--output")}
    filled = [] if names else ["--target", "t", "--data", "d", "--output", "o"]
    assert main(["train", *filled, *options]) == 2
    assert capsys.readouterr().err.startswith(f"aquiline: error: {message}")


def test_an_output_folder_with_other_files_is_refused(
    toys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    assert main(arguments(toys, tmp_path)) == 2
    assert "holds other files" in capsys.readouterr().err


def test_a_run_that_came_to_nothing_binds_nobody_to_its_settings(
    toys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for mistyped in ("no-such-data", "neither"):
        argv = ["train", "--target", str(toys / "target"), "--data", mistyped, "--output", str(tmp_path / "run")]
        assert main(argv) == 2
        assert f"{mistyped} cannot be read" in capsys.readouterr().err


def test_without_matplotlib_the_command_says_what_to_do(
    toys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(arguments(toys, tmp_path / "run")) == 2
    assert "pip install matplotlib, or give --no-plot" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_options_typed_win_over_the_file(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(
        "target: toy\noutput: here\ndata: [one, two]\nnum_layers: 2\nfc_norm: true\naux_layer_ids: [0, 1]\n"
        "stages:\n- {ttt_steps: 1, learning_rate: 1e-3}\n- {ttt_steps: 4, epochs: 2, loss: lk}\n"
        "eval_max_tokens: 32\ndraft_vocab_size: null\nno_plot: true\nquantization: int8\nweight_decay: 0\n"
    )
    args = build_parser().parse_args(["train", "--config", str(config), "--num-layers", "3", "--seed", "5"])
    run = check_arguments(args).run
    assert (run.target, run.output, run.data) == ("toy", Path("here"), ("one", "two"))
    assert run.training.draft.num_layers == 3 and run.training.draft.fc_norm and run.training.seed == 5
    assert run.training.draft.aux_layer_ids == (0, 1) and run.training.draft.draft_vocab_size is None
    assert [(s.ttt_steps, s.learning_rate, s.epochs, s.loss) for s in run.training.stages] == [
        (1, 1e-3, 1.0, "kl"),
        (4, 1e-3, 2, "lk"),
    ]
    assert run.evaluation.max_tokens == 32 and not run.has_plot and run.engine.quantization == "int8"


def documented() -> str:
    return (ROOT / "docs" / "training.md").read_text()


def shown_commands() -> list[str]:
    texts = documented() + (ROOT / "README.md").read_text()
    blocks = re.findall(r"^```bash\n(.*?)^```$", texts, re.DOTALL | re.MULTILINE)
    return sorted({line for block in blocks for line in block.splitlines() if line.startswith("aquiline train ")})


@pytest.mark.parametrize("command", shown_commands())
def test_shown_commands_run(
    command: str, toys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As they stand, but for the model, and with a recipe and prompts that take seconds."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").symlink_to(toys / "data")
    (yaml_file,) = re.findall(r"^```yaml\n(.*?)^```$", documented(), re.DOTALL | re.MULTILINE)
    (tmp_path / "run.yaml").write_text(yaml_file.replace("smollm2-135m", str(toys / "target")))
    argv = shlex.split(command.replace("smollm2-135m", str(toys / "target")))[1:]
    own = {"--target", "--data", "--output", "--stage", *argv}
    small = arguments(toys, tmp_path)[1:]
    added = [part for pair in zip(small[::2], small[1::2], strict=True) if pair[0] not in own for part in pair]
    assert main([*argv, *added, "--stage", "epochs=2"]) == 0
    assert "the head is in run/head" in capsys.readouterr().out


def test_every_option_is_documented_with_its_default() -> None:
    defaults = record_defaults((CommandDefaults, DraftSettings, TrainingSettings, EvaluationSettings, EngineConfig))
    expected = {"--config": "none", "--json": "off", "--stage": "see above"}
    for option in ALL_OPTIONS:
        default = "off" if option.parse is None else defaults[option.field]
        expected.setdefault(option.flag, "none" if default is None else str(default))
    listed = re.findall(r"^\| `(--[a-z0-9-]+)` \| (.*?) \|", documented(), re.MULTILINE)
    assert {flag: default.strip("`") for flag, default in listed} == expected
    assert len(listed) == len(expected)


def test_conversations_of_a_file_become_data_first(
    toys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "So."}]} for text in "aba"
    ]
    (tmp_path / "talk.jsonl").write_text("\n".join(map(json.dumps, lines)))
    argv = arguments(toys, tmp_path / "run", "--no-plot", "--stage", "epochs=1")
    argv[argv.index("--data") + 1] = str(tmp_path / "talk.jsonl")
    assert main(argv) == 0
    shown = capsys.readouterr().out
    assert "the head is in" in shown and "2 conversations with" in shown
    assert f"left out: 1 duplicate ({tmp_path / 'talk.jsonl'} line 3: the same conversation came before)" in shown
    assert main([*argv, "--json"]) == 0
    data, result = records_of(capsys.readouterr().out)
    assert (data["kind"], data["num_skipped"], result["kind"]) == ("data", {"duplicate": 1}, "result")
    assert (tmp_path / "run" / "data" / "settings.json").exists() and not (tmp_path / "run" / "progress.png").exists()


def test_bad_lines_are_named_with_what_leaves_them_out(
    toys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "talk.jsonl").write_text("\n[]\n")
    argv = arguments(toys, tmp_path / "run", "--no-plot")
    argv[argv.index("--data") + 1] = str(tmp_path / "talk.jsonl")
    assert main(argv) == 2
    complaint = capsys.readouterr().err
    assert "talk.jsonl line 2: it must be an object" in complaint and "by train-data --skip-bad-lines" in complaint


def test_data_that_cannot_be_used_binds_nobody_to_it(
    toys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, line in (("first", '{"prompt": "a"}'), ("second", "[]")):
        (tmp_path / name).write_text(line)
        argv = arguments(toys, tmp_path / "run", "--no-plot")
        argv[argv.index("--data") + 1] = str(tmp_path / name)
        assert main(argv) == 2
        assert f"{tmp_path / name} line 1" in capsys.readouterr().err


def test_a_gap_between_training_and_serving_is_pointed_out(finished: tuple[Path, list[dict[str, Any]]]) -> None:
    _, records = finished
    assert records[-1]["served_over_trained"] == pytest.approx(1.0, abs=0.03)
    shown = []
    for ratio in (0.98, 0.9):
        console = Console(file=io.StringIO(), width=80)
        console.print(result_drawing(records[-1] | {"served_over_trained": ratio}))
        assert isinstance(console.file, io.StringIO)
        shown.append("0.90 times as far" in " ".join(console.file.getvalue().split()))
    assert shown == [False, True]
