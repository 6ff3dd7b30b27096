"""Drafts written in every layout come back as they were, and go from any layout to any other unchanged."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from aquiline.errors import DraftMismatchError, InvalidParameterError, ModelFormatError, UnsupportedFeatureError
from aquiline.models.draft_metadata import AcceptanceFigures, DraftMetadata, read_draft_metadata
from aquiline.models.draft_settings import DRAFT_LAYOUTS, DraftLayout
from aquiline.models.draft_writer import write_draft
from aquiline.models.loading import LoadedDraft, load_draft
from aquiline.models.model_config import EagleConfig, RopeConfig
from tests.files import LAYERS, TARGET, eagle1_files, eagle3_files, specforge_files, speculators_files
from tests.models.draft_strategies import WrittenDraft, written_drafts

EAGLE3_LAYOUTS: tuple[DraftLayout, ...] = ("eagle3", "specforge", "speculators")
MADE_FOR = DraftMetadata(num_target_layers=LAYERS)


def write(folder: Path, draft: WrittenDraft, layout: DraftLayout) -> LoadedDraft:
    write_draft(folder, draft.config, draft.tensors, draft.metadata, layout)
    return load_draft(folder, draft.target, draft.dtype)


def assert_same(found: LoadedDraft, config: EagleConfig, tensors: dict[str, Tensor]) -> None:
    assert found.config == config
    assert found.tensors.keys() == tensors.keys()
    assert all(found.tensors[name].dtype == tensor.dtype for name, tensor in tensors.items())
    assert all(torch.equal(found.tensors[name], tensor) for name, tensor in tensors.items())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drafts") / "draft"


@pytest.mark.parametrize("layout", DRAFT_LAYOUTS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_what_is_written_is_read_back(folder: Path, layout: DraftLayout, data: st.DataObject) -> None:
    draft = data.draw(written_drafts(layout, "eagle1" if layout == "eagle1" else "eagle3"))
    found = write(folder, draft, layout)
    assert_same(found, draft.config, draft.tensors)
    assert found.metadata == draft.metadata
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]


@settings(max_examples=25, deadline=None)
@given(data=st.data(), path=st.lists(st.sampled_from(EAGLE3_LAYOUTS), min_size=2, max_size=5))
def test_going_through_any_layouts_changes_nothing(folder: Path, path: list[DraftLayout], data: st.DataObject) -> None:
    draft = data.draw(written_drafts("eagle3"))
    draft = replace(draft, config=replace(draft.config, fc_bias=False))
    draft.tensors.pop("fc.bias", None)
    for layout in path:
        found = write(folder, draft, layout)
        assert_same(found, draft.config, draft.tensors)
        draft = replace(draft, config=found.config, tensors=dict(found.tensors), metadata=found.metadata)


@pytest.mark.parametrize("layout", EAGLE3_LAYOUTS)
@pytest.mark.parametrize("make", [eagle3_files, specforge_files, speculators_files])
def test_foreign_files_go_into_every_layout(tmp_path: Path, make: Callable[[], Any], layout: DraftLayout) -> None:
    files = make()
    has_default_layers = make is not specforge_files
    first = load_draft(files.write(tmp_path / "first"), TARGET, torch.float32)

    def convert() -> None:
        write_draft(tmp_path / "second", first.config, first.tensors, MADE_FOR, layout)

    if layout == "eagle3" and not has_default_layers:
        with pytest.raises(UnsupportedFeatureError, match=r"layers \[0, 3, 5\].*\[1, 3, 4\]: use specforge or specula"):
            convert()
        return
    convert()
    assert_same(load_draft(tmp_path / "second", TARGET, torch.float32), first.config, dict(first.tensors))


def settings_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return found


def loaded(make: Callable[[], Any], folder: Path) -> LoadedDraft:
    return load_draft(make().write(folder), TARGET, torch.float32)


def test_each_layout_numbers_layers_in_its_own_way(tmp_path: Path) -> None:
    """Outputs 0, 3 and 5, which a draft enters as 1, 4 and 6."""
    draft = loaded(specforge_files, tmp_path / "first")
    for layout in ("specforge", "speculators"):
        write_draft(tmp_path / layout, draft.config, draft.tensors, MADE_FOR, layout)
    key = "eagle_aux_hidden_state_layer_ids"
    assert settings_of(tmp_path / "specforge")["eagle_config"][key] == [0, 3, 5]
    assert key not in settings_of(tmp_path / "specforge")
    assert settings_of(tmp_path / "speculators")[key] == [1, 4, 6]


def test_the_eagle3_layout_leaves_layers_to_the_reader_and_uses_its_names(tmp_path: Path) -> None:
    files = eagle3_files(num_layers=2)
    draft = load_draft(files.write(tmp_path / "first"), TARGET, torch.float32)
    write_draft(tmp_path / "second", draft.config, draft.tensors, MADE_FOR, "eagle3")
    written = settings_of(tmp_path / "second")
    assert "eagle_config" not in written and "eagle_aux_hidden_state_layer_ids" not in written
    assert load_file(tmp_path / "second" / "model.safetensors").keys() == files.tensors.keys()


def test_a_missing_base_is_written_out(tmp_path: Path) -> None:
    """Files without rope_theta mean 10000; readers that would inherit the target's base must not get the chance."""
    draft = loaded(eagle3_files, tmp_path / "first")
    write_draft(tmp_path / "second", draft.config, draft.tensors, MADE_FOR, "eagle3")
    assert settings_of(tmp_path / "second")["rope_theta"] == 10000.0


def test_a_draft_written_for_default_layers_is_refused_by_a_deeper_target(tmp_path: Path) -> None:
    draft = loaded(eagle3_files, tmp_path / "first")
    write_draft(tmp_path / "second", draft.config, draft.tensors, MADE_FOR, "eagle3")
    with pytest.raises(DraftMismatchError, match="made for a target of 8 layers, this one has 9"):
        load_draft(tmp_path / "second", replace(TARGET, num_layers=9), torch.float32)
    with pytest.raises(InvalidParameterError, match="num_target_layers"):
        write_draft(tmp_path / "third", draft.config, draft.tensors, DraftMetadata(), "eagle3")


def test_kinds_and_layouts_must_fit(tmp_path: Path) -> None:
    eagle1, eagle3 = loaded(eagle1_files, tmp_path / "1"), loaded(eagle3_files, tmp_path / "3")
    with pytest.raises(InvalidParameterError, match="EAGLE-1 head and the layout speculators"):
        write_draft(tmp_path / "new", eagle1.config, eagle1.tensors, MADE_FOR, "speculators")
    with pytest.raises(
        InvalidParameterError, match=r"EAGLE-3 head and the layout eagle1.*eagle3 or specforge or specul"
    ):
        write_draft(tmp_path / "new", eagle3.config, eagle3.tensors, MADE_FOR, "eagle1")
    with pytest.raises(InvalidParameterError, match="must be one of eagle1, eagle3, specforge, speculators"):
        write_draft(tmp_path / "new", eagle3.config, eagle3.tensors, MADE_FOR, "safeai")  # type: ignore[arg-type]
    assert not (tmp_path / "new").exists()


def test_two_kinds_of_feature_norms_are_refused(tmp_path: Path) -> None:
    draft = loaded(speculators_files, tmp_path / "first")
    config = replace(draft.config, norm_before_fc=True)
    tensors = {name: tensor for name, tensor in draft.tensors.items() if not name.startswith("fc_norm")}
    tensors["input_norm.weight"] = torch.ones(config.feature_size)
    with pytest.raises(InvalidParameterError, match="at most one of them"):
        write_draft(tmp_path / "new", config, tensors, MADE_FOR, "speculators")


def changed(draft: LoadedDraft, **layer_changes: Any) -> EagleConfig:
    return replace(draft.config, layers=replace(draft.config.layers, **layer_changes))


def test_settings_without_a_place_are_refused(tmp_path: Path) -> None:
    draft = loaded(eagle3_files, tmp_path / "first")
    biased = {**draft.tensors, "fc.bias": torch.zeros(draft.config.layers.hidden_size)}
    cases: list[tuple[EagleConfig, dict[str, Tensor], DraftLayout, str]] = [
        (replace(draft.config, fc_bias=True), biased, "speculators", "fc has a bias"),
        (changed(draft, rope=RopeConfig(frequency_factors=(1.0, 2.0, 3.0))), dict(draft.tensors), "eagle3", "GGUF"),
        (changed(draft, rope=RopeConfig(1e4, "dynamic", 2.0, 7)), dict(draft.tensors), "specforge", "dynamic"),
    ]
    for config, tensors, layout, reason in cases:
        with pytest.raises(UnsupportedFeatureError, match=reason):
            write_draft(tmp_path / "new", config, tensors, MADE_FOR, layout)
    assert not (tmp_path / "new").exists()


def test_tensors_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    draft = loaded(eagle3_files, tmp_path / "first")
    for name, tensor in draft.tensors.items():
        rest = {other: t for other, t in draft.tensors.items() if other != name}
        spoiled = [rest, {**rest, name: tensor.unsqueeze(0)}]
        if tensor.is_floating_point():
            spoiled += [{**rest, name: torch.full_like(tensor, torch.nan)}, {**rest, name: tensor.half()}]
        else:
            spoiled += [{**rest, name: tensor.flip(0)}, {**rest, name: tensor + 10}, {**rest, name: tensor.int()}]
        for tensors in spoiled:
            with pytest.raises(InvalidParameterError, match="float16" if "float16" in str(tensors.get(name)) else name):
                write_draft(tmp_path / "new", draft.config, tensors, MADE_FOR, "eagle3")
    assert not (tmp_path / "new").exists()


def test_tensors_that_share_memory_are_written(tmp_path: Path) -> None:
    draft = loaded(eagle1_files, tmp_path / "first")
    tensors = dict(draft.tensors)
    tensors["layers.0.mlp.up_proj.weight"] = tensors["layers.0.mlp.gate_proj.weight"]
    tensors["layers.0.self_attn.v_proj.weight"] = tensors["layers.0.self_attn.k_proj.weight"].T.contiguous().T
    write_draft(tmp_path / "new", draft.config, tensors, DraftMetadata(), "eagle1")
    assert_same(load_draft(tmp_path / "new", TARGET, torch.float32), draft.config, tensors)


def test_files_are_readable_as_any_new_file_is(tmp_path: Path) -> None:
    draft = loaded(eagle3_files, tmp_path / "first")
    write_draft(tmp_path / "new", draft.config, draft.tensors, MADE_FOR, "eagle3")
    (tmp_path / "plain").touch()
    modes = {path.stat().st_mode for path in ((tmp_path / "plain"), *(tmp_path / "new").iterdir())}
    assert len(modes) == 1


def test_a_failed_write_leaves_the_earlier_draft_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = loaded(eagle3_files, tmp_path / "first")
    folder = tmp_path / "draft"
    write_draft(folder, draft.config, draft.tensors, MADE_FOR, "eagle3")
    (folder / "README.md").write_text("a card")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def fill_disk(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("aquiline.models.draft_writer.save_file", fill_disk)
    doubled = {name: t * 2 if t.is_floating_point() else t for name, t in draft.tensors.items()}
    with pytest.raises(InvalidParameterError, match="No space left on device"):
        write_draft(folder, draft.config, doubled, MADE_FOR, "eagle3")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    draft = loaded(eagle3_files, tmp_path / "first")
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidParameterError, match=r"cannot be written to .*file/draft"):
        write_draft(tmp_path / "file" / "draft", draft.config, draft.tensors, MADE_FOR, "eagle3")


FIGURES = AcceptanceFigures("some prompts", 0.0, (0.5, 0.4, 0.5))


def test_acceptance_length_follows_from_the_shares() -> None:
    assert FIGURES.acceptance_length == pytest.approx(1.8)


@pytest.mark.parametrize(
    ("section", "complaint"),
    [
        ({"targets": "x"}, "unknown keys targets"),
        ({"acceptance": [{"prompts": "x", "conditional_per_position": []}]}, "conditional_per_position"),
        ({"acceptance": [{"prompts": "x", "conditional_per_position": [1.5]}]}, "shares from 0 to 1"),
        ({"acceptance": [{"conditional_per_position": [0.5]}]}, "prompts is missing"),
        ({"acceptance": {"prompts": "x"}}, "list of objects"),
        ({"acceptance_prior": {"depth_rank": [[0.5], "x"]}}, "depth_rank"),
        ({"acceptance_prior": {"depth_rank": 3}}, "depth_rank"),
        ({"acceptance_prior_sampled": {"depth_rank": [[1.5]]}}, "depth_rank"),
        ({"num_target_layers": 0}, "num_target_layers"),
        ({"provenance": "mine"}, "provenance"),
        ("mine", "aquiline"),
    ],
)
def test_a_wrong_section_about_the_draft_is_refused(tmp_path: Path, section: Any, complaint: str) -> None:
    files = eagle3_files()
    files.settings["aquiline"] = section
    with pytest.raises(ModelFormatError, match=complaint):
        load_draft(files.write(tmp_path / "draft"), TARGET, torch.float32)


def test_metadata_that_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    draft = loaded(eagle3_files, tmp_path / "first")
    for metadata in (
        replace(MADE_FOR, provenance={"path": Path("x")}),
        replace(MADE_FOR, provenance={"loss": float("nan")}),
        replace(MADE_FOR, acceptance_prior=((1.5,),)),
        replace(MADE_FOR, acceptance_prior_sampled=((-0.5,),)),
        replace(MADE_FOR, quantization="int3"),
    ):
        with pytest.raises(InvalidParameterError):
            write_draft(tmp_path / "new", draft.config, draft.tensors, metadata, "eagle3")


def test_a_foreign_draft_says_nothing_about_itself(tmp_path: Path) -> None:
    assert read_draft_metadata(eagle3_files().write(tmp_path / "draft")) == DraftMetadata()
