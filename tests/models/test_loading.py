"""Targets in Hugging Face folders: what loads, and that everything spoiled is refused by name."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from aquiline.errors import ModelFormatError, ModelNotFoundError, UnsupportedFeatureError
from aquiline.models.loading import LoadedTarget, expected_target_tensors, load_target
from aquiline.models.model_config import RopeConfig
from tests.files import HEAD_DIM, HEADS, HIDDEN, LAYOUTS, TARGET, VOCAB, Layout, ModelFiles, target_files
from tests.models.refusals import TENSOR_MUTATIONS, refusal, spoiled_tensors


def load(files: ModelFiles, folder: Path, layout: Layout = "one_file") -> LoadedTarget:
    return load_target(files.write(folder / "model", layout), torch.float32)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_settings_and_tensors_arrive_unchanged(tmp_path: Path, layout: Layout) -> None:
    files = target_files(num_layers=8)
    target = load(files, tmp_path, layout)
    assert target.config == TARGET
    assert target.tensors.keys() == files.tensors.keys()
    assert all(torch.equal(target.tensors[name], tensor) for name, tensor in files.tensors.items())
    assert {name: tuple(t.shape) for name, t in target.tensors.items()} == expected_target_tensors(target.config)


@pytest.mark.parametrize("layout", ["one_file", "pickle"])
@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_stored_types_are_converted(tmp_path: Path, layout: Layout, stored: torch.dtype, dtype: torch.dtype) -> None:
    files = target_files()
    files.tensors = {name: tensor.to(stored) for name, tensor in files.tensors.items()}
    tensors = load_target(files.write(tmp_path / "model", layout), dtype).tensors
    for name, tensor in files.tensors.items():
        assert tensors[name].dtype == dtype
        assert torch.equal(tensors[name], tensor.to(dtype))


def test_loaded_tensors_outlive_their_file(tmp_path: Path) -> None:
    files = target_files()
    target = load(files, tmp_path)
    path = tmp_path / "model" / "model.safetensors"
    path.write_bytes(bytes(path.stat().st_size))
    assert all(torch.equal(target.tensors[name], tensor) for name, tensor in files.tensors.items())


@pytest.mark.parametrize(
    "changes",
    [{"attention_bias": True}, {"mlp_bias": True}, {"tie_word_embeddings": True}],
    ids=["attention_bias", "mlp_bias", "tied"],
)
def test_optional_tensors_follow_the_settings(tmp_path: Path, changes: dict[str, Any]) -> None:
    files = target_files(**changes)
    target = load(files, tmp_path)
    assert target.tensors.keys() == files.tensors.keys()
    assert ("model.layers.0.self_attn.o_proj.bias" in target.tensors) == ("attention_bias" in changes)


def test_missing_sizes_take_their_usual_defaults(tmp_path: Path) -> None:
    files = target_files(num_layers=1, num_key_value_heads=None, head_dim=None)
    width = HIDDEN // HEADS * HEADS
    for part in "qkv":
        files.tensors[f"model.layers.0.self_attn.{part}_proj.weight"] = torch.ones(width, HIDDEN)
    files.tensors["model.layers.0.self_attn.o_proj.weight"] = torch.ones(HIDDEN, width)
    config = load(files, tmp_path).config
    assert (config.num_kv_heads, config.head_dim) == (HEADS, HIDDEN // HEADS)


def test_tied_head_that_equals_the_embedding_is_left_out(tmp_path: Path) -> None:
    files = target_files(tie_word_embeddings=True)
    files.tensors["lm_head.weight"] = files.tensors["model.embed_tokens.weight"].clone()
    assert "lm_head.weight" not in load(files, tmp_path).tensors


def test_tied_head_that_differs_is_refused(tmp_path: Path) -> None:
    files = target_files(tie_word_embeddings=True)
    files.tensors["lm_head.weight"] = files.tensors["model.embed_tokens.weight"] + 1
    assert "lm_head.weight" in refusal(lambda: load(files, tmp_path))


def test_rotary_tables_are_ignored(tmp_path: Path) -> None:
    files = target_files()
    files.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(HEAD_DIM // 2)
    assert "model.layers.0.self_attn.rotary_emb.inv_freq" not in load(files, tmp_path).tensors


def test_end_ids_of_both_files_are_united(tmp_path: Path) -> None:
    folder = target_files(eos_token_id=[3, 2]).write(tmp_path / "model")
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 7], "temperature": 0.6}')
    assert load_target(folder, torch.float32).config.eos_token_ids == (3, 2, 7)


def test_mistral_without_a_window_is_a_llama(tmp_path: Path) -> None:
    files = target_files(model_type="mistral", architectures=["MistralForCausalLM"])
    assert "sliding_window" in refusal(lambda: load(files, tmp_path))
    files.settings["sliding_window"] = 4096
    assert "sliding_window" in refusal(lambda: load(files, tmp_path))
    files.settings["sliding_window"] = None
    assert load(files, tmp_path).config.num_layers == 2


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mutation", TENSOR_MUTATIONS)
def test_spoiled_tensors_are_refused_by_name(tmp_path: Path, layout: Layout, mutation: str) -> None:
    files = target_files(num_layers=1)
    unnamed = []
    for name, tensors in spoiled_tensors(files.tensors, mutation):
        message = refusal(lambda t=tensors: load(ModelFiles(files.settings, t), tmp_path, layout))  # type: ignore[misc]
        if name not in message or (mutation in ("rename", "add") and f"{name}_2" not in message):
            unnamed.append((name, message))
    assert unnamed == []


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


@pytest.mark.parametrize("key", REQUIRED_KEYS)
@pytest.mark.parametrize("is_null", [False, True], ids=["absent", "null"])
def test_missing_key_is_refused_by_name(tmp_path: Path, key: str, is_null: bool) -> None:
    files = target_files()
    if is_null:
        files.settings[key] = None
    else:
        del files.settings[key]
    assert f"{key} is missing" in refusal(lambda: load(files, tmp_path))


WRONG_VALUES: dict[str, tuple[Any, ...]] = {
    "model_type": ("qwen2", 3),
    "architectures": (["LlamaModel"], "LlamaForCausalLM", [1]),
    "vocab_size": (0, -1, "40", 40.0, True, 2**40),
    "hidden_size": (0, -1, "16", 2.5, False),
    "intermediate_size": (0, -1, "28"),
    "num_hidden_layers": (0, -1, "2", 10**9),
    "num_attention_heads": (0, -1, 2.0),
    "num_key_value_heads": (0, 3, 5, "2"),
    "head_dim": (0, 5, -6, "6"),
    "rms_norm_eps": (0, -1e-5, "1e-5", float("nan"), float("inf"), True),
    "max_position_embeddings": (0, "128", 1.5),
    "rope_theta": (0, 1.0, -10000.0, "10000", float("nan")),
    "hidden_act": ("gelu", 1),
    "tie_word_embeddings": ("true", 1),
    "attention_bias": (1, "false"),
    "mlp_bias": (0, "false"),
    "eos_token_id": (-1, VOCAB, [2, VOCAB], "2", 2.0, [True]),
    "bos_token_id": (VOCAB, "1"),
    "pretraining_tp": (2,),
    "partial_rotary_factor": (0.5,),
    "sliding_window": (4096,),
    "rope_interleaved": (True,),
    "quantization_config": ({"quant_method": "gptq"},),
    "auto_map": ({"AutoModel": "code.Model"},),
    "layer_types": (["sliding_attention"], "full_attention"),
    "logits_scaling": (8.0,),
    "rope_scaling": ([], "linear"),
}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in WRONG_VALUES.items() for value in values], ids=repr
)
def test_wrong_value_is_refused_by_name(tmp_path: Path, key: str, value: Any) -> None:
    assert key in refusal(lambda: load(target_files(**{key: value}), tmp_path))


@pytest.mark.parametrize(
    "key", ["vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"]
)
def test_size_that_the_tensors_contradict_is_refused_by_name(tmp_path: Path, key: str) -> None:
    files = target_files()
    files.settings[key] *= 2
    message = refusal(lambda: load(files, tmp_path))
    assert f"{key} {files.settings[key]}" in message and "has shape" in message


@pytest.mark.parametrize("key", ["attention_bias", "mlp_bias", "tie_word_embeddings"])
def test_switch_that_the_tensors_contradict_is_refused(tmp_path: Path, key: str) -> None:
    files = target_files()
    files.settings[key] = True
    assert any(word in refusal(lambda: load(files, tmp_path)) for word in (".bias", "tie_word_embeddings"))


@pytest.mark.parametrize("num_layers", [1, 3])
def test_number_of_layers_that_the_tensors_contradict_is_refused(tmp_path: Path, num_layers: int) -> None:
    files = target_files(num_layers=2)
    files.settings["num_hidden_layers"] = num_layers
    assert f"model.layers.{min(num_layers, 2)}." in refusal(lambda: load(files, tmp_path))


def test_unknown_key_with_a_value_is_refused_and_null_is_not(tmp_path: Path) -> None:
    assert "residual_multiplier" in refusal(lambda: load(target_files(residual_multiplier=0.2), tmp_path))
    files = target_files()
    files.settings |= {"quantization_config": None, "sliding_window": None, "rope_scaling": None, "pretraining_tp": 1}
    assert load(files, tmp_path).config.num_layers == 2


ROPE_CASES: dict[str, tuple[dict[str, Any], RopeConfig]] = {
    "missing": ({"rope_theta": None}, RopeConfig(theta=10000.0)),
    "old_linear": ({"rope_scaling": {"type": "linear", "factor": 2.0}}, RopeConfig(5000.0, "linear", 2.0)),
    "old_dynamic": ({"rope_scaling": {"type": "dynamic", "factor": 4}}, RopeConfig(5000.0, "dynamic", 4.0, 128)),
    "new_default": (
        {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 700.0}},
        RopeConfig(theta=700.0),
    ),
    "llama3": (
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
        RopeConfig(5000.0, "llama3", 8.0, 64, 1.0, 4.0),
    ),
    "yarn_defaults": ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, RopeConfig(5000.0, "yarn", 4.0, 128)),
    "yarn_all": (
        {
            "rope_theta": None,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 600.0,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
                "beta_fast": 20.0,
                "beta_slow": 2.0,
                "attention_factor": 1.2,
                "mscale": 0.5,
                "mscale_all_dim": 0.7,
                "truncate": False,
            },
        },
        RopeConfig(
            600.0,
            "yarn",
            4.0,
            32,
            beta_fast=20.0,
            beta_slow=2.0,
            attention_factor=1.2,
            mscale=0.5,
            mscale_all_dim=0.7,
            truncate=False,
        ),
    ),
    "both_places": (
        {
            "rope_scaling": {"type": "linear", "factor": 2.0},
            "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0},
        },
        RopeConfig(5000.0, "linear", 2.0),
    ),
}


@pytest.mark.parametrize("case", ROPE_CASES)
def test_rotary_settings_are_read_in_both_places(tmp_path: Path, case: str) -> None:
    changes, expected = ROPE_CASES[case]
    assert load(target_files(**changes), tmp_path).config.rope == expected


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
BAD_ROPE: dict[str, tuple[dict[str, Any], str]] = {
    "longrope": ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "longrope"),
    "no_factor": ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
    "factor_below_one": ({"rope_scaling": {"rope_type": "linear", "factor": 0.5}}, "factor"),
    "no_low_freq_factor": ({"rope_scaling": {**LLAMA3, "low_freq_factor": None}}, "low_freq_factor"),
    "no_high_freq_factor": ({"rope_scaling": {**LLAMA3, "high_freq_factor": None}}, "high_freq_factor"),
    "frequency_factors_reversed": ({"rope_scaling": {**LLAMA3, "high_freq_factor": 0.5}}, "high_freq_factor"),
    "unknown_key": ({"rope_scaling": {**LLAMA3, "stretch": 3}}, "stretch"),
    "two_types": ({"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 2.0}}, "rope_type"),
    "two_bases": ({"rope_parameters": {"rope_type": "default", "rope_theta": 700.0}}, "rope_theta"),
    "two_sections": (
        {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "default"}},
        "rope_parameters and rope_scaling",
    ),
    "two_original_lengths": (
        {"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 64}, "original_max_position_embeddings": 32},
        "original_max_position_embeddings",
    ),
    "part_of_the_head": (
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
        "partial_rotary_factor",
    ),
    "betas_reversed": ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "beta_fast": 0.5}}, "beta_fast"),
    "beta_beyond_logarithms": ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "beta_fast": 1e308}}, "beta_fast"),
    "beta_below_logarithms": ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "beta_slow": 1e-320}}, "beta_slow"),
    "original_length_of_dynamic": (
        {"rope_scaling": {"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 64}},
        "original_max_position_embeddings",
    ),
}


@pytest.mark.parametrize("case", BAD_ROPE)
def test_wrong_rotary_settings_are_refused_by_name(tmp_path: Path, case: str) -> None:
    changes, culprit = BAD_ROPE[case]
    assert culprit in refusal(lambda: load(target_files(**changes), tmp_path))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_truncated_weights_are_refused_by_file(tmp_path: Path, layout: Layout) -> None:
    folder = target_files(num_layers=1).write(tmp_path / "model", layout)
    path = sorted(p for p in folder.iterdir() if p.suffix in (".safetensors", ".bin"))[0]
    whole = path.read_bytes()
    for length in (0, 1, 7, 8, 9, 64, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert path.name in refusal(lambda: load_target(folder, torch.float32)), length


@pytest.mark.parametrize("layout", ["one_file", "pickle"])
@pytest.mark.parametrize("position", [0, 3, 8, 30, 100])
def test_damaged_header_is_refused_or_harmless(tmp_path: Path, layout: Layout, position: int) -> None:
    folder = target_files(num_layers=1).write(tmp_path / "model", layout)
    path = next(p for p in folder.iterdir() if p.suffix in (".safetensors", ".bin"))
    content = bytearray(path.read_bytes())
    content[position] ^= 0xFF
    path.write_bytes(content)
    try:
        load_target(folder, torch.float32)
    except ModelFormatError as error:
        assert str(tmp_path) in str(error)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "model.safetensors.index.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"a": 1, "a": 2}', b"[" * 100_000])
def test_unreadable_json_is_refused_by_file(tmp_path: Path, name: str, content: bytes) -> None:
    folder = target_files(num_layers=1).write(tmp_path / "model", "sharded")
    (folder / name).write_bytes(content)
    assert name in refusal(lambda: load_target(folder, torch.float32))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_folder_in_place_of_a_file_is_refused_by_name(tmp_path: Path, name: str) -> None:
    folder = target_files(num_layers=1).write(tmp_path / "model")
    (folder / name).unlink()
    (folder / name).mkdir()
    assert name in refusal(lambda: load_target(folder, torch.float32))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_missing_file_is_refused_by_name(tmp_path: Path, name: str) -> None:
    folder = target_files(num_layers=1).write(tmp_path / "model")
    os.remove(folder / name)
    assert name in refusal(lambda: load_target(folder, torch.float32))


def test_absent_path_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="nowhere"):
        load_target(tmp_path / "nowhere", torch.float32)


@pytest.mark.parametrize(
    ("file_name", "culprit"),
    [
        ("../model.safetensors", "../model.safetensors"),
        ("/etc/passwd", "/etc/passwd"),
        ("other.bin", "other.bin"),
        ("a" * 300 + ".safetensors", "aaa"),
    ],
)
def test_index_may_only_name_weight_files_beside_it(tmp_path: Path, file_name: str, culprit: str) -> None:
    folder = target_files(num_layers=1).write(tmp_path / "model", "sharded")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": file_name}}))
    assert culprit in refusal(lambda: load_target(folder, torch.float32))


@pytest.mark.parametrize("change", ["unlisted", "moved", "invented", "no_shard"])
def test_index_that_its_shards_contradict_is_refused_by_tensor(tmp_path: Path, change: str) -> None:
    folder = target_files(num_layers=1).write(tmp_path / "model", "sharded")
    index = folder / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    first, second = sorted(set(weight_map.values()))
    name = next(name for name, file in weight_map.items() if file == first)
    if change == "unlisted":
        del weight_map[name]
    elif change == "moved":
        weight_map[name] = second
    elif change == "invented":
        name = "model.invented.weight"
        weight_map[name] = first
    else:
        (folder / second).unlink()
        name = second
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert name in refusal(lambda: load_target(folder, torch.float32))


class Malicious:
    """What a pickle could make of itself when it is loaded without care."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, ("echo unsafe",))


@pytest.mark.parametrize(
    "content",
    [Malicious(), [torch.ones(1)], {"state_dict": {}}, {3: torch.ones(1)}, {"a": torch.ones(2, 2).to_sparse()}],
    ids=["code", "list", "nested", "number_for_a_name", "sparse"],
)
def test_pickle_of_anything_but_tensors_is_refused(tmp_path: Path, content: object) -> None:
    folder = target_files(num_layers=1).write(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    torch.save(content, folder / "pytorch_model.bin")
    assert "pytorch_model.bin" in refusal(lambda: load_target(folder, torch.float32))


def test_pickle_of_the_old_kind_loads(tmp_path: Path) -> None:
    files = target_files(num_layers=1)
    folder = files.write(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    torch.save(files.tensors, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    tensors = load_target(folder, torch.float32).tensors
    assert all(torch.equal(tensors[name], tensor) for name, tensor in files.tensors.items())


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.complex64, torch.int8, torch.bool])
def test_weights_of_other_types_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    files = target_files(num_layers=1)
    files.tensors["model.norm.weight"] = torch.ones(HIDDEN).to(dtype)
    assert "model.norm.weight" in refusal(lambda: load(files, tmp_path))


def test_number_too_large_for_the_type_in_memory_is_refused(tmp_path: Path) -> None:
    files = target_files(num_layers=1)
    files.tensors["model.norm.weight"] = torch.full((HIDDEN,), 1e300, dtype=torch.float64)
    assert "model.norm.weight" in refusal(lambda: load(files, tmp_path))


def test_quantised_checkpoints_are_unsupported_rather_than_damaged(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFeatureError, match="quantization_config"):
        load(target_files(quantization_config={"quant_method": "awq"}), tmp_path)
