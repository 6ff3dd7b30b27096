"""`aquiline draft`: a report on a draft, and the same draft in other layouts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from aquiline.cli import main
from aquiline.cli.draft_export import LAYOUTS
from aquiline.models.draft_metadata import AcceptanceFigures, DraftMetadata, read_draft_metadata
from aquiline.models.draft_settings import DRAFT_LAYOUTS
from aquiline.models.draft_writer import write_draft
from aquiline.models.loading import expected_draft_tensors, load_draft, load_target
from tests.bigram_models import bigram_config, write_bigram_draft, write_bigram_target
from tests.quickstart_model import IS_ON_DISK, PULL_IT
from tests.tiny import random_tensors, tiny_eagle_config


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target with drafts of both kinds; `right` says what it is for."""
    folder = tmp_path_factory.mktemp("drafts")
    write_bigram_target(folder / "target")
    figures = AcceptanceFigures("some prompts", 0.0, (1.0, 1.0))
    write_bigram_draft(folder / "right", DraftMetadata(target=str(folder / "target"), acceptance=(figures,)))
    write_bigram_draft(folder / "rounded", DraftMetadata(quantization="int4"))
    write_bigram_draft(folder / "wrong", is_right=False)
    config = replace(tiny_eagle_config(bigram_config()), aux_layer_ids=(0, 1, 2))
    shapes = {name: shape for name, shape in expected_draft_tensors(config).items() if name != "draft_to_target_ids"}
    tensors = {name: tensor.bfloat16() for name, tensor in random_tensors(shapes, seed=1).items()}
    tensors["draft_to_target_ids"] = torch.arange(0, 80, 2)
    write_draft(folder / "eagle3", config, tensors, DraftMetadata(provenance={"seed": 1}), "specforge")
    prompts = [{"prompt": text} for text in ("The eagle", "flies over the sea", "and back", "Why?")]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    return folder


def check(folder: Path, draft: str, *options: str, is_short: bool = True) -> list[str]:
    options = (*options, "--target", str(folder / "target")) if draft != "right" else options
    options = (*options, "--prompts", str(folder / "prompts.jsonl")) if is_short else options
    return ["draft", "check", str(folder / draft), "--dtype", "float32", "--threads", "1", *options]


def test_a_sound_draft_is_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(check(folder, "right", "--json")) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["is_sound"], found["cause"]) == ("fits", True, None)
    assert found["agreement"] == {"1": 1.0, "2": 1.0, "4": 1.0}
    assert found["conditional_per_position"] == [1.0] * 4 and found["acceptance_length"] == 5.0
    assert found["claimed_per_position"] == [1.0, 1.0]
    assert found["target"] == str(folder / "target")
    assert {"token_of_the_feature", "halves_swapped"} <= {mistake["name"] for mistake in found["mistakes"]}


def test_the_report_is_readable_and_a_log_is_told_what_is_done(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(check(folder, "right")) == 0
    shown, log = capsys.readouterr()
    assert log.splitlines() == ["answering", "reading the answers", "asking the draft", "looking for mistakes"]
    for part in ("EAGLE-1, 1 layer", "1.00 1.00 1.00 1.00", "5.00 with a chain of 4", "some prompts", "it fits"):
        assert part in shown


def test_the_report_says_what_a_draft_was_trained_for(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for draft in ("right", "rounded"):
        assert main(check(folder, draft, "--json")) == 0
        said.append(json.loads(capsys.readouterr().out)["facts"]["trained to be served in"])
    assert said == ["any quantization", "int4; asked with exact weights"]


def test_a_wrong_draft_is_named_and_fails(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(check(folder, "wrong", "--json")) == 2
    shown = capsys.readouterr()
    found: dict[str, Any] = json.loads(shown.out)
    # This head looks at features alone, and so gives back the token of its row, or what the target says one earlier.
    assert found["cause"] in ("label_one_early", "token_and_label_one_early")
    assert shown.err.startswith("aquiline: error: the draft ") and shown.err.count("\n") == 1


def test_an_untrained_draft_fails(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(check(folder, "eagle3")) == 2
    shown = capsys.readouterr()
    assert "no better than chance" in shown.err and "outputs of layers 0, 1, 2 of 4" in shown.out


def test_prompts_need_not_be_given(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    positions = []
    for is_short in (True, False):
        assert main(check(folder, "right", "--json", is_short=is_short)) == 0
        positions.append(json.loads(capsys.readouterr().out)["num_positions"])
    assert positions == [4 * 58, 8 * 58]


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["check", "auto"], "auto is the draft of a known model, and no target is named; name a folder"),
        (["check", "{}/wrong"], "does not say which model it is for; name it with --target"),
        (["check", "{}/none"], "no draft"),
        (["check", "{}/right", "--target", "{}/none"], "no model"),
        (["check", "{}/right", "--prompts", "{}/none"], "cannot be read"),
        (["check", "{}/right", "--threads", "0"], "--threads is 0"),
        (["check", "{}/right", "--quantization", "int8", "--dtype", "float32"], "quantization is 'int8'"),
        (["export", "{}/right", "--output", "{}/right", "--format", "eagle1"], "is the draft itself"),
        (["export", "{}/right", "--output", "{}/new", "--format", "eagle3"], "EAGLE-1 head"),
        (["export", "{}/eagle3", "--output", "{}/new", "--format", "eagle3"], "name it with --target"),
        (["export", "{}/right", "--output", "{}/new", "--format", "gguf"], "invalid choice: 'gguf'"),
        (["export", "{}/right", "--output", "{}/new"], "--format"),
    ],
)
def test_mistakes_are_one_line(
    folder: Path, argv: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["draft", *(part.format(folder) for part in argv)]) == 2
    shown = capsys.readouterr()
    assert complaint in shown.err and shown.err.count("\n") == 1 and not shown.out
    assert not (folder / "new").exists()


def test_export_keeps_numbers_types_and_origin(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert LAYOUTS == DRAFT_LAYOUTS
    target = load_target(folder / "target", torch.float32).config
    before = load_draft(folder / "eagle3", target, torch.bfloat16)
    source, target_name = folder / "eagle3", str(folder / "target")
    for layout in ("speculators", "specforge"):
        output = tmp_path / layout
        argv = ["draft", "export", str(source), "--output", str(output), "--format", layout, "--target", target_name]
        assert main(argv) == 0
        assert layout in capsys.readouterr().out
        after = load_draft(output, target, torch.bfloat16)
        assert after.config == before.config
        assert all(torch.equal(after.tensors[name], tensor) for name, tensor in before.tensors.items())
        settings = json.loads((output / "config.json").read_text())
        assert settings["torch_dtype"] == "bfloat16"
        assert read_draft_metadata(output) == DraftMetadata(target_name, 4, provenance={"seed": 1})
        source = output


@pytest.mark.model
@pytest.mark.skipif(not IS_ON_DISK, reason=PULL_IT)
def test_the_shipped_draft_is_sound(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["draft", "check", "auto", "--target", "smollm2-135m", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "fits" and not [m for m in found["mistakes"] if m["is_clear"]]
    assert found["agreement"]["1"] > 0.4
    assert found["claimed_per_position"] is not None
