"""Drafts in every layout: what loads, and that everything spoiled or made for another target is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from aquiline.errors import DraftMismatchError, ModelFormatError, ModelNotFoundError, UnsupportedFeatureError
from aquiline.models.loading import LoadedDraft, expected_draft_tensors, load_draft
from aquiline.models.model_config import LlamaConfig
from tests.files import (
    DRAFT_VOCAB,
    HIDDEN,
    LAYERS,
    LAYOUTS,
    TARGET,
    VOCAB,
    Layout,
    ModelFiles,
    eagle1_files,
    eagle3_files,
    nemo_files,
    random_tensors,
    specforge_files,
    speculators_files,
    wrapped_files,
)
from tests.models.refusals import TENSOR_MUTATIONS, refusal, spoiled_tensors

FORMATS: dict[str, Callable[[], ModelFiles]] = {
    "eagle1": eagle1_files,
    "eagle1_two_layers_with_bias": lambda: eagle1_files(num_layers=2, has_bias=True),
    "wrapped": wrapped_files,
    "eagle3": eagle3_files,
    "eagle3_two_layers": lambda: eagle3_files(num_layers=2),
    "specforge": specforge_files,
    "speculators": speculators_files,
    "nemo": nemo_files,
}


def load(files: ModelFiles, folder: Path, target: LlamaConfig = TARGET, layout: Layout = "one_file") -> LoadedDraft:
    return load_draft(files.write(folder / "draft", layout), target, torch.float32)


def canonical(name: str) -> str:
    return name.removeprefix("model.").replace("midlayer.", "layers.0.")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", FORMATS)
def test_tensors_arrive_unchanged_under_canonical_names(tmp_path: Path, name: str, layout: Layout) -> None:
    files = FORMATS[name]()
    draft = load(files, tmp_path, layout=layout)
    weights = {canonical(name): t for name, t in files.tensors.items() if name not in ("d2t", "t2d")}
    assert draft.tensors.keys() == weights.keys() | {"draft_to_target_ids"}
    assert all(torch.equal(draft.tensors[name], tensor) for name, tensor in weights.items())
    assert {name: tuple(t.shape) for name, t in draft.tensors.items()} == expected_draft_tensors(draft.config)


@pytest.mark.parametrize("name", FORMATS)
def test_vocabulary_map_holds_absolute_target_ids(tmp_path: Path, name: str) -> None:
    draft = load(FORMATS[name](), tmp_path)
    step = VOCAB // draft.config.draft_vocab_size
    assert draft.tensors["draft_to_target_ids"].tolist() == list(range(0, VOCAB, step))
    assert draft.tensors["draft_to_target_ids"].dtype == torch.int64
    assert draft.config.draft_vocab_size == (VOCAB if draft.config.kind == "eagle1" else DRAFT_VOCAB)


# The default for 8 target layers is (1, 3, 4). Speculators' [2, 4, 5] are layer inputs, SpecForge's [0, 3, 5] outputs.
AUX_LAYERS = {
    "eagle1": (),
    "wrapped": (),
    "eagle3": (1, 3, 4),
    "nemo": (1, 3, 4),
    "specforge": (0, 3, 5),
    "speculators": (1, 3, 4),
}


@pytest.mark.parametrize("name", AUX_LAYERS)
def test_captured_layers_are_outputs_counted_from_zero(tmp_path: Path, name: str) -> None:
    config = load(FORMATS[name](), tmp_path).config
    assert config.aux_layer_ids == AUX_LAYERS[name]
    assert config.feature_size == HIDDEN * max(1, len(AUX_LAYERS[name]))


def test_options_of_the_formats(tmp_path: Path) -> None:
    plain, speculators = load(eagle3_files(), tmp_path).config, load(speculators_files(), tmp_path).config
    assert (plain.norm_before_residual, plain.fc_norm, plain.norm_output) == (False, False, False)
    assert (speculators.norm_before_residual, speculators.fc_norm, speculators.norm_output) == (False, True, True)
    files = speculators_files()
    del files.settings["norm_before_residual"]
    assert load(files, tmp_path).config.norm_before_residual


def test_options_of_specforge_are_read_in_both_places(tmp_path: Path) -> None:
    files = specforge_files()
    files.settings["norm_output"] = True
    files.settings["eagle_config"]["norm_before_residual"] = True
    config = load(files, tmp_path).config
    assert config.norm_output and config.norm_before_residual
    files.settings["eagle_config"]["norm_output"] = False
    assert "norm_output" in refusal(lambda: load(files, tmp_path))


@pytest.mark.parametrize(("theta", "expected"), [(None, 10000.0), (123456.0, 123456.0)])
def test_rotary_base_is_the_drafts_own(tmp_path: Path, theta: float | None, expected: float) -> None:
    files = eagle3_files()
    files.settings["rope_theta"] = theta
    assert TARGET.rope.theta != expected
    assert load(files, tmp_path).config.layers.rope.theta == expected


def test_own_rotary_scaling_is_kept(tmp_path: Path) -> None:
    files = eagle3_files()
    files.settings["rope_scaling"] = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    assert load(files, tmp_path).config.layers.rope.kind == "llama3"


@pytest.mark.parametrize("has_embedding", [False, True], ids=["shared_embedding", "own_embedding"])
@pytest.mark.parametrize("has_head", [False, True], ids=["shared_head", "own_head"])
def test_what_the_file_does_not_bring_is_the_targets(tmp_path: Path, has_embedding: bool, has_head: bool) -> None:
    files = eagle3_files()
    files.settings["draft_vocab_size"] = VOCAB
    own = {"embed_tokens.weight": (VOCAB, HIDDEN)} if has_embedding else {}
    own |= {"lm_head.weight": (VOCAB, HIDDEN)} if has_head else {}
    kept = {name: t for name, t in files.tensors.items() if name not in ("lm_head.weight", "d2t", "t2d")}
    files.tensors = kept | random_tensors(own)
    draft = load(files, tmp_path)
    assert (draft.config.has_own_embedding, draft.config.has_own_head) == (has_embedding, has_head)
    assert ("embed_tokens.weight" in draft.tensors, "lm_head.weight" in draft.tensors) == (has_embedding, has_head)
    assert draft.tensors["draft_to_target_ids"].tolist() == list(range(VOCAB))


def test_own_head_counts_whatever_a_copied_setting_says(tmp_path: Path) -> None:
    files = eagle3_files()
    files.settings["tie_word_embeddings"] = True
    config = load(files, tmp_path).config
    assert config.has_own_head and not config.layers.tie_word_embeddings


def test_head_tied_to_the_drafts_own_embedding_is_refused(tmp_path: Path) -> None:
    files = eagle1_files()
    files.settings["tie_word_embeddings"] = True
    assert "tie_word_embeddings" in refusal(lambda: load(files, tmp_path))


def test_head_over_a_reduced_vocabulary_must_be_there(tmp_path: Path) -> None:
    files = eagle3_files()
    del files.tensors["lm_head.weight"]
    assert "lm_head.weight" in refusal(lambda: load(files, tmp_path))


def test_bias_of_an_eagle1_head_is_expected_unless_denied(tmp_path: Path) -> None:
    without, with_bias = eagle1_files(has_bias=False), eagle1_files(has_bias=True)
    del without.settings["bias"], with_bias.settings["bias"]
    assert "fc.bias" in refusal(lambda: load(without, tmp_path))
    assert load(with_bias, tmp_path).config.fc_bias


def test_bias_of_a_wrapped_head_is_expected_only_when_said(tmp_path: Path) -> None:
    files = wrapped_files()
    del files.settings["eagle_fc_bias"]
    assert "fc.bias" in refusal(lambda: load(files, tmp_path))
    del files.tensors["fc.bias"]
    assert not load(files, tmp_path).config.fc_bias
    files.settings["model"]["bias"] = True
    assert "bias" in refusal(lambda: load(files, tmp_path))


def test_rotary_tables_are_ignored(tmp_path: Path) -> None:
    files = eagle3_files()
    files.tensors["midlayer.self_attn.rotary_emb.inv_freq"] = torch.ones(3)
    assert not any("inv_freq" in name for name in load(files, tmp_path).tensors)


def test_one_tensor_under_two_names_is_refused(tmp_path: Path) -> None:
    files = eagle3_files()
    files.tensors["layers.0.hidden_norm.weight"] = torch.ones(HIDDEN)
    message = refusal(lambda: load(files, tmp_path))
    assert "layers.0.hidden_norm.weight" in message and "midlayer.hidden_norm.weight" in message


# Without these the draft is whole: the mask only repeats the map, and the target's embedding stands in.
DISPENSABLE = ("t2d", "embed_tokens.weight")


@pytest.mark.parametrize("mutation", TENSOR_MUTATIONS)
@pytest.mark.parametrize("name", FORMATS)
def test_spoiled_tensors_are_refused_by_name(tmp_path: Path, name: str, mutation: str) -> None:
    files = FORMATS[name]()
    unnamed = []
    for tensor_name, tensors in spoiled_tensors(files.tensors, mutation):
        if mutation == "delete" and tensor_name in DISPENSABLE:
            continue
        message = refusal(lambda t=tensors: load(ModelFiles(files.settings, t), tmp_path))  # type: ignore[misc]
        wanted = {f"{tensor_name}_2"} if mutation == "add" else {canonical(tensor_name), tensor_name}
        if not any(culprit in message for culprit in wanted):
            unnamed.append((tensor_name, message))
    assert unnamed == []


@pytest.mark.parametrize("name", ["eagle1", "wrapped", "speculators"])
def test_draft_without_its_embedding_uses_the_targets(tmp_path: Path, name: str) -> None:
    files = FORMATS[name]()
    del files.tensors["embed_tokens.weight"]
    assert not load(files, tmp_path).config.has_own_embedding


def spoil_map(tensors: dict[str, torch.Tensor], case: str) -> None:
    d2t, t2d = tensors["d2t"], tensors["t2d"]
    if case == "absolute":
        tensors["d2t"] = d2t + torch.arange(DRAFT_VOCAB)
    elif case == "zeros":
        tensors["d2t"] = torch.zeros_like(d2t)
    elif case == "negative":
        d2t[0] = -1
    elif case == "too_large":
        d2t[-1] = VOCAB
    elif case == "overflow":
        d2t[-1] = 2**63 - 1
    elif case == "repeated":
        d2t[1] = -1
    elif case == "descending":
        d2t[1], d2t[2] = 7, 2
    elif case == "mask_misses_one":
        t2d[4] = False
    elif case == "mask_has_one_more":
        t2d[5] = True
    elif case == "short":
        tensors["d2t"] = d2t[:-1]
    elif case == "short_mask":
        tensors["t2d"] = t2d[:-1]
    elif case == "fractional":
        tensors["d2t"] = d2t.float()


@pytest.mark.parametrize(
    "case",
    [
        "absolute",
        "zeros",
        "negative",
        "too_large",
        "overflow",
        "repeated",
        "descending",
        "mask_misses_one",
        "mask_has_one_more",
        "short",
        "short_mask",
        "fractional",
    ],
)
def test_wrong_map_is_refused(tmp_path: Path, case: str) -> None:
    files = eagle3_files()
    spoil_map(files.tensors, case)
    message = refusal(lambda: load(files, tmp_path))
    assert "d2t" in message or "t2d" in message


def test_map_of_offsets_may_be_stored_in_32_bits(tmp_path: Path) -> None:
    files = eagle3_files()
    files.tensors["d2t"] = files.tensors["d2t"].to(torch.int32)
    assert load(files, tmp_path).tensors["draft_to_target_ids"].tolist() == list(range(0, VOCAB, 4))


def test_reduced_vocabulary_without_a_map_is_refused(tmp_path: Path) -> None:
    files = eagle3_files()
    del files.tensors["d2t"], files.tensors["t2d"]
    message = refusal(lambda: load(files, tmp_path))
    assert "d2t" in message and str(DRAFT_VOCAB) in message and str(VOCAB) in message


MISMATCHES: dict[str, tuple[dict[str, Any], tuple[int, int]]] = {
    "vocabulary": ({"vocab_size": 48}, (VOCAB, 48)),
    "width": ({"hidden_size": 24}, (HIDDEN, 24)),
    "too_few_layers": ({"num_layers": 5}, (5, 4)),
}


@pytest.mark.parametrize("name", ["eagle3", "eagle1", "wrapped", "speculators"])
@pytest.mark.parametrize("case", ["vocabulary", "width"])
def test_draft_for_another_target_is_a_mismatch_with_both_numbers(tmp_path: Path, name: str, case: str) -> None:
    changes, numbers = MISMATCHES[case]
    with pytest.raises(DraftMismatchError) as caught:
        load(FORMATS[name](), tmp_path, replace(TARGET, **changes))
    assert all(str(number) in str(caught.value) for number in numbers)


@pytest.mark.parametrize("name", ["specforge", "speculators"])
def test_captured_layer_beyond_the_target_is_a_mismatch(tmp_path: Path, name: str) -> None:
    with pytest.raises(DraftMismatchError, match=r"4 layers"):
        load(FORMATS[name](), tmp_path, replace(TARGET, num_layers=4))


@pytest.mark.parametrize(
    ("name", "ids"),
    [("specforge", [0, 3, LAYERS]), ("specforge", [-1, 3, 5]), ("speculators", [0, 3, 5]), ("speculators", [1, 3, 9])],
    ids=["output_too_high", "output_negative", "input_zero", "input_too_high"],
)
def test_captured_layers_out_of_range_are_a_mismatch(tmp_path: Path, name: str, ids: list[int]) -> None:
    files = FORMATS[name]()
    place = files.settings["eagle_config"] if name == "specforge" else files.settings
    place["eagle_aux_hidden_state_layer_ids"] = ids
    with pytest.raises(DraftMismatchError, match="eagle_aux_hidden_state_layer_ids"):
        load(files, tmp_path)


def test_state_that_enters_after_the_last_layer_is_the_last_output(tmp_path: Path) -> None:
    files = speculators_files()
    files.settings["eagle_aux_hidden_state_layer_ids"] = [1, 3, LAYERS]
    assert load(files, tmp_path).config.aux_layer_ids == (0, 2, LAYERS - 1)


@pytest.mark.parametrize("ids", [[3, 1, 5], [1, 1, 5], [1, 5], [0, 1, 3, 5], "1,3,5", [1.0, 3.0, 5.0]], ids=repr)
def test_captured_layers_must_ascend_and_fit_the_projection(tmp_path: Path, ids: Any) -> None:
    files = specforge_files()
    files.settings["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = ids
    message = refusal(lambda: load(files, tmp_path))
    assert "eagle_aux_hidden_state_layer_ids" in message or "fc.weight" in message


def test_other_number_of_captured_layers_is_taken_from_the_file(tmp_path: Path) -> None:
    files = specforge_files()
    files.settings["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [2, 6]
    files.tensors["fc.weight"] = torch.ones(HIDDEN, 2 * HIDDEN)
    assert load(files, tmp_path).config.aux_layer_ids == (2, 6)


def test_layers_at_top_level_are_refused_as_ambiguous(tmp_path: Path) -> None:
    files = eagle3_files()
    files.settings["eagle_aux_hidden_state_layer_ids"] = [1, 3, 5]
    assert "eagle_aux_hidden_state_layer_ids" in refusal(lambda: load(files, tmp_path))


@pytest.mark.parametrize("num_layers", [2, 6])
def test_default_layers_that_a_shallow_target_lacks_are_refused(tmp_path: Path, num_layers: int) -> None:
    assert "the default" in refusal(lambda: load(eagle3_files(), tmp_path, replace(TARGET, num_layers=num_layers)))


def test_narrower_draft_needs_its_own_embedding(tmp_path: Path) -> None:
    wide = replace(TARGET, hidden_size=2 * HIDDEN)
    files = eagle3_files()
    files.settings["target_hidden_size"] = 2 * HIDDEN
    files.tensors["fc.weight"] = torch.ones(HIDDEN, 6 * HIDDEN)
    with pytest.raises(DraftMismatchError, match=r"embed_tokens\.weight"):
        load(files, tmp_path, wide)
    files.tensors["embed_tokens.weight"] = torch.ones(VOCAB, HIDDEN)
    assert load(files, tmp_path, wide).config.feature_size == 6 * HIDDEN


REQUIRED_KEYS = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "rms_norm_eps",
    "max_position_embeddings",
)


def layer_settings(files: ModelFiles) -> dict[str, Any]:
    for key in ("model", "transformer_layer_config"):
        if key in files.settings:
            section: dict[str, Any] = files.settings[key]
            return section
    return files.settings


@pytest.mark.parametrize("key", REQUIRED_KEYS)
@pytest.mark.parametrize("name", ["eagle1", "wrapped", "eagle3", "speculators"])
def test_missing_key_is_refused_by_name(tmp_path: Path, name: str, key: str) -> None:
    files = FORMATS[name]()
    del layer_settings(files)[key]
    assert f"{key} is missing" in refusal(lambda: load(files, tmp_path))


@pytest.mark.parametrize("key", REQUIRED_KEYS)
@pytest.mark.parametrize("value", [0, -1, "text", [1]], ids=repr)
@pytest.mark.parametrize("name", ["eagle1", "wrapped", "eagle3", "speculators"])
def test_wrong_value_is_refused_by_name(tmp_path: Path, name: str, key: str, value: Any) -> None:
    files = FORMATS[name]()
    layer_settings(files)[key] = value
    assert f"{key} is" in refusal(lambda: load(files, tmp_path))


WRONG_SETTINGS: dict[str, tuple[str, str, Any]] = {
    "head_larger_than_vocabulary": ("eagle3", "draft_vocab_size", VOCAB + 1),
    "draft_vocabulary_gone": ("eagle3", "draft_vocab_size", None),
    "draft_vocabulary_of_eagle1": ("eagle1", "draft_vocab_size", 10),
    "truncated_vocabulary": ("wrapped", "truncated_vocab_size", 10),
    "embedding_norms": ("wrapped", "add_para_norm", True),
    "wrapped_eagle3": ("wrapped", "method", "eagle3"),
    "wrapped_type": ("wrapped", "model_type", "medusa"),
    "section": ("wrapped", "model", [1]),
    "old_speculators": ("speculators", "speculators_model_type", "eagle"),
    "other_speculators": ("speculators", "speculators_model_type", "dflash"),
    "no_layers": ("speculators", "transformer_layer_config", None),
    "speculators_vocabulary_gone": ("speculators", "draft_vocab_size", None),
    "norm_before_fc": ("speculators", "norm_before_fc", True),
    "plain_norm_before_fc": ("eagle3", "norm_before_fc", True),
    "mask_token": ("speculators", "mask_token_id", 5),
    "unknown_key": ("eagle3", "residual_scale", 0.5),
    "unknown_key_of_eagle1": ("eagle1", "residual_scale", 0.5),
    "architecture": ("eagle3", "architectures", ["Qwen3ForCausalLMEagle3"]),
    "quantised": ("eagle3", "quantization_config", {"bits": 4}),
    "norm_type": ("eagle3", "norm_before_residual", "yes"),
    "per_feature_norm": ("eagle3", "fc_norm", True),
    "layer_bias": ("eagle3", "attention_bias", True),
}


@pytest.mark.parametrize("case", WRONG_SETTINGS)
def test_wrong_setting_is_refused_by_name(tmp_path: Path, case: str) -> None:
    name, key, value = WRONG_SETTINGS[case]
    files = FORMATS[name]()
    files.settings[key] = value
    message = refusal(lambda: load(files, tmp_path))
    missing = {"fc_norm": "fc_norm.0.weight", "attention_bias": "q_proj.bias", "norm_before_fc": "input_norm.weight"}
    assert key in message or missing.get(key, key) in message


@pytest.mark.parametrize("place", ["top", "eagle_config"])
def test_one_norm_over_all_features_is_read(tmp_path: Path, place: str) -> None:
    files = specforge_files()
    (files.settings if place == "top" else files.settings["eagle_config"])["norm_before_fc"] = True
    files.tensors |= random_tensors({"input_norm.weight": (3 * HIDDEN,)})
    draft = load(files, tmp_path)
    assert draft.config.norm_before_fc and not draft.config.fc_norm
    assert torch.equal(draft.tensors["input_norm.weight"], files.tensors["input_norm.weight"])


@pytest.mark.parametrize("key", ["use_aux_hidden_state", "use_last_layernorm", "parallel_draft_step"])
def test_option_in_eagle_config_is_honoured_or_refused(tmp_path: Path, key: str) -> None:
    files = specforge_files()
    files.settings["eagle_config"][key] = False
    assert key in refusal(lambda: load(files, tmp_path))


def test_unknown_key_in_a_layer_section_is_refused(tmp_path: Path) -> None:
    for name in ("wrapped", "speculators"):
        files = FORMATS[name]()
        layer_settings(files)["residual_scale"] = 0.5
        assert "residual_scale" in refusal(lambda f=files: load(f, tmp_path))  # type: ignore[misc]


@pytest.mark.parametrize(
    ("architecture", "kind"), [("LlamaForCausalLMEagle", "eagle1"), ("LlamaForCausalLMEagle3", "eagle3")]
)
def test_architecture_tells_the_kind(tmp_path: Path, architecture: str, kind: str) -> None:
    files = eagle1_files() if kind == "eagle1" else eagle3_files()
    files.settings["architectures"] = [architecture]
    assert load(files, tmp_path).config.kind == kind


def test_eagle1_architecture_with_eagle3_tensors_is_refused(tmp_path: Path) -> None:
    files = eagle3_files()
    files.settings |= {"architectures": ["LlamaForCausalLMEagle"], "draft_vocab_size": None, "bias": False}
    assert "midlayer.hidden_norm.weight" in refusal(lambda: load(files, tmp_path))


def test_truncated_weights_are_refused_by_file(tmp_path: Path) -> None:
    folder = eagle3_files().write(tmp_path / "draft")
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for length in (0, 8, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert "model.safetensors" in refusal(lambda: load_draft(folder, TARGET, torch.float32))


def test_path_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="nowhere"):
        load_draft(tmp_path / "nowhere", TARGET, torch.float32)
    (tmp_path / "draft.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelFormatError, match=r"draft\.gguf"):
        load_draft(tmp_path / "draft.gguf", TARGET, torch.float32)


def test_foreign_kinds_are_unsupported_rather_than_damaged(tmp_path: Path) -> None:
    files = speculators_files()
    files.settings["speculators_model_type"] = "peagle"
    with pytest.raises(UnsupportedFeatureError, match="speculators_model_type"):
        load(files, tmp_path)
