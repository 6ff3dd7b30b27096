"""Targets in GGUF files: storage types, the order of rotated rows, metadata, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from aquiline.errors import UserError
from aquiline.models.gguf_reader import unpermute
from aquiline.models.loading import LoadedTarget, load_target
from aquiline.models.model_config import RopeConfig
from tests.files import HEADS, HIDDEN, TARGET, VOCAB, GgufFiles, gguf_files, interleave_heads, target_files
from tests.models.refusals import refusal


def load(files: GgufFiles, folder: Path, dtype: torch.dtype = torch.float32) -> LoadedTarget:
    return load_target(files.write(folder / "model.gguf"), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_tied", [False, True], ids=["untied", "tied"])
def test_gguf_equals_the_folder_it_was_made_from(tmp_path: Path, dtype: torch.dtype, is_tied: bool) -> None:
    files = target_files(num_layers=8, tie_word_embeddings=is_tied)
    target = load(gguf_files(files), tmp_path, dtype)
    folder = load_target(files.write(tmp_path / "model"), dtype)
    assert target.config == folder.config
    assert is_tied or target.config == TARGET
    assert target.tensors.keys() == folder.tensors.keys()
    assert all(torch.equal(target.tensors[name], tensor) for name, tensor in folder.tensors.items())


@pytest.mark.parametrize("switch", ["attention_bias", "mlp_bias"])
def test_biases_are_found_by_their_tensors(tmp_path: Path, switch: str) -> None:
    files = target_files(**{switch: True})
    target = load(gguf_files(files), tmp_path)
    assert getattr(target.config, switch)
    assert all(torch.equal(target.tensors[name], tensor) for name, tensor in files.tensors.items())


def test_bias_of_some_projections_only_is_refused(tmp_path: Path) -> None:
    files = gguf_files(target_files(attention_bias=True))
    del files.tensors["blk.1.attn_k.bias"]
    assert "blk.1.attn_k.bias" in refusal(lambda: load(files, tmp_path))


def rotate_neighbours(rows: Tensor, angles: Tensor) -> Tensor:
    """llama.cpp's rotation of one head: numbers 2i and 2i + 1 turn by angle i."""
    even, odd = rows[0::2], rows[1::2]
    turned = (even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos())
    return torch.stack(turned, dim=-1).flatten()


def rotate_halves(rows: Tensor, angles: Tensor) -> Tensor:
    """Hugging Face's rotation of one head: numbers i and i + width / 2 turn by angle i."""
    first, second = rows.chunk(2)
    return torch.cat((first * angles.cos() - second * angles.sin(), first * angles.sin() + second * angles.cos()))


@settings(deadline=None, max_examples=50)
@given(half=st.integers(1, 8), num_heads=st.integers(1, 4), seed=st.integers(0, 2**32 - 1))
def test_reordered_rows_give_the_same_attention_scores(half: int, num_heads: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    shape = (num_heads * 2 * half, 5)
    query, key = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    hidden = torch.randn(5, generator=generator, dtype=torch.float64)
    angles = torch.rand(half, generator=generator, dtype=torch.float64)
    stored = [(weight @ hidden).view(num_heads, -1) for weight in (query, key)]
    loaded = [(unpermute(weight, num_heads) @ hidden).view(num_heads, -1) for weight in (query, key)]
    for head in range(num_heads):
        ours = rotate_halves(loaded[0][head], 7 * angles) @ rotate_halves(loaded[1][head], 3 * angles)
        theirs = rotate_neighbours(stored[0][head], 7 * angles) @ rotate_neighbours(stored[1][head], 3 * angles)
        assert torch.allclose(ours, theirs)


def test_worked_example_of_the_row_order() -> None:
    assert "".join("acbd"[int(i)] for i in unpermute(torch.arange(4), 1)) == "abcd"
    assert interleave_heads(torch.arange(4), head_dim=4).tolist() == [0, 2, 1, 3]


# Where the half-precision scales lie in a block of a K-quant, in bytes; every other byte may hold anything.
SCALE_OFFSETS = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
WIDE = 256


def stored_matrix(storage: str, num_rows: int, width: int) -> tuple[np.ndarray[Any, Any], GGMLQuantizationType]:
    """A random matrix as the bytes of a storage type."""
    kind = GGMLQuantizationType[storage]
    random = np.random.default_rng(len(storage) + num_rows)
    if storage not in SCALE_OFFSETS:
        values = (random.standard_normal((num_rows, width)) * 0.1).astype(np.float32)
        return gguf.quants.quantize(values, kind), kind
    numbers, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (num_rows * width // numbers, num_bytes), dtype=np.uint8)
    for offset in SCALE_OFFSETS[storage]:
        scales = (random.random(len(blocks)) * 0.01).astype(np.float16)
        blocks[:, offset : offset + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(num_rows, -1), kind


def wide_files(storage: str) -> GgufFiles:
    """One layer of width 256, the block size of K-quants, with every matrix in one storage type."""
    files = gguf_files(target_files(num_layers=1))
    files.metadata |= {
        "llama.embedding_length": WIDE,
        "llama.feed_forward_length": 2 * WIDE,
        "llama.attention.key_length": WIDE // HEADS,
        "llama.attention.value_length": WIDE // HEADS,
        "llama.rope.dimension_count": WIDE // HEADS,
    }
    sizes = {"attn_k": (WIDE // 2, WIDE), "attn_v": (WIDE // 2, WIDE), "ffn_down": (WIDE, 2 * WIDE)}
    sizes |= {"ffn_gate": (2 * WIDE, WIDE), "ffn_up": (2 * WIDE, WIDE)}
    for name, values in files.tensors.items():
        if values.ndim == 1:
            files.tensors[name] = np.ones(WIDE, dtype=np.float32)
            continue
        rows, width = sizes.get(name.split(".")[-2], (VOCAB if "blk" not in name else WIDE, WIDE))
        files.tensors[name], files.storage[name] = stored_matrix(storage, rows, width)
    return files


STORAGE_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")


@pytest.mark.parametrize("storage", STORAGE_TYPES)
def test_storage_type_is_dequantised(tmp_path: Path, storage: str) -> None:
    files = wide_files(storage)
    tensors = load(files, tmp_path).tensors
    for name, hf_name in (("token_embd", "model.embed_tokens"), ("blk.0.ffn_down", "model.layers.0.mlp.down_proj")):
        packed = files.tensors[f"{name}.weight"]
        expected = gguf.quants.dequantize(packed, files.storage[f"{name}.weight"])
        assert torch.equal(tensors[f"{hf_name}.weight"], torch.from_numpy(expected))
        assert tensors[f"{hf_name}.weight"].std() > 0
    query = gguf.quants.dequantize(files.tensors["blk.0.attn_q.weight"], files.storage["blk.0.attn_q.weight"])
    restored = interleave_heads(tensors["model.layers.0.self_attn.q_proj.weight"], WIDE // HEADS)
    assert torch.equal(restored, torch.from_numpy(query))


def decode_block(storage: str, block: bytes) -> list[float]:
    """The 32 numbers of a block, from the published layout: scale, (least value), (high bits), low bits."""
    halves = np.frombuffer(block[:4], dtype=np.float16).astype(np.float32)
    scale = halves[0]
    if storage == "Q8_0":
        return [float(scale * np.float32(int.from_bytes([byte], "little", signed=True))) for byte in block[2:34]]
    has_least, has_high = storage.endswith("1"), storage.startswith("Q5")
    start = 4 if has_least else 2
    high = int.from_bytes(block[start : start + 4], "little") if has_high else 0
    low = block[start + 4 * has_high :]
    numbers = [(low[i % 16] >> (4 if i >= 16 else 0)) & 15 for i in range(32)]
    numbers = [number | ((high >> i & 1) << 4) for i, number in enumerate(numbers)]
    middle = 0 if has_least else 16 if has_high else 8
    return [float(scale * np.float32(n - middle) + (halves[1] if has_least else 0)) for n in numbers]


@pytest.mark.parametrize("storage", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_small_blocks_decode_as_their_layout_says(tmp_path: Path, storage: str) -> None:
    files = wide_files(storage)
    packed = files.tensors["token_embd.weight"][0].tobytes()
    size = len(packed) * 32 // WIDE
    expected = [
        number for at in range(0, len(packed), size) for number in decode_block(storage, packed[at : at + size])
    ]
    row = load(files, tmp_path).tensors["model.embed_tokens.weight"][0]
    assert torch.allclose(row, torch.tensor(expected), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("storage", ["IQ4_NL", "TQ1_0", "F64"])
def test_other_storage_types_are_refused_by_name(tmp_path: Path, storage: str) -> None:
    files = wide_files("F32")
    kind = GGMLQuantizationType[storage]
    numbers, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    shape = (VOCAB, WIDE * num_bytes // numbers)
    files.tensors["output.weight"] = np.zeros((VOCAB, WIDE)) if storage == "F64" else np.zeros(shape, dtype=np.uint8)
    files.storage["output.weight"] = kind
    message = refusal(lambda: load(files, tmp_path))
    assert "output.weight" in message and storage in message


ROPE_CASES: dict[str, tuple[dict[str, Any], RopeConfig]] = {
    "none": ({"type": "none"}, RopeConfig(theta=5000.0)),
    "linear": ({"type": "linear", "factor": 2.5}, RopeConfig(5000.0, "linear", 2.5)),
    "factor_alone_is_linear": ({"factor": 4.0}, RopeConfig(5000.0, "linear", 4.0)),
    "yarn": ({"type": "yarn", "factor": 4.0, "original_context_length": 32}, RopeConfig(5000.0, "yarn", 4.0, 32)),
    "yarn_betas": (
        {"type": "yarn", "factor": 4.0, "yarn_beta_fast": 16.0, "yarn_beta_slow": 2.0, "attn_factor": 1.0},
        RopeConfig(5000.0, "yarn", 4.0, 128, beta_fast=16.0, beta_slow=2.0),
    ),
}


@pytest.mark.parametrize("case", ROPE_CASES)
def test_rotary_scaling_is_read(tmp_path: Path, case: str) -> None:
    keys, expected = ROPE_CASES[case]
    files = gguf_files(target_files())
    files.metadata |= {f"llama.rope.scaling.{key}": value for key, value in keys.items()}
    assert load(files, tmp_path).config.rope == expected


def test_old_key_of_linear_scaling_is_read(tmp_path: Path) -> None:
    files = gguf_files(target_files())
    files.metadata["llama.rope.scale_linear"] = 2.0
    assert load(files, tmp_path).config.rope == RopeConfig(5000.0, "linear", 2.0)


def test_llama3_scaling_arrives_as_its_factors(tmp_path: Path) -> None:
    files = gguf_files(target_files())
    files.tensors["rope_freqs.weight"] = np.array([1.0, 2.5, 8.0], dtype=np.float32)
    target = load(files, tmp_path)
    assert target.config.rope == RopeConfig(theta=5000.0, frequency_factors=(1.0, 2.5, 8.0))
    assert "rope_freqs.weight" not in target.tensors


@pytest.mark.parametrize("factors", [[1.0, 2.0], [1.0, 0.0, 1.0], [1.0, -2.0, 1.0], [1.0, float("nan"), 1.0]], ids=repr)
def test_wrong_frequency_factors_are_refused(tmp_path: Path, factors: list[float]) -> None:
    files = gguf_files(target_files())
    files.tensors["rope_freqs.weight"] = np.array(factors, dtype=np.float32)
    assert "rope_freqs.weight" in refusal(lambda: load(files, tmp_path))


def test_ends_of_an_answer_are_united(tmp_path: Path) -> None:
    files = gguf_files(target_files())
    files.metadata |= {"tokenizer.ggml.eot_token_id": 5, "tokenizer.ggml.eom_token_id": 2}
    assert load(files, tmp_path).config.eos_token_ids == (2, 5)


def test_width_of_heads_defaults_to_their_share(tmp_path: Path) -> None:
    files = wide_files("F32")
    for key in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
        del files.metadata[f"llama.{key}"]
    assert load(files, tmp_path).config.head_dim == WIDE // HEADS


def test_sizes_given_for_each_layer_may_agree(tmp_path: Path) -> None:
    files = gguf_files(target_files())
    files.metadata["llama.attention.head_count_kv"] = [2, 2]
    assert load(files, tmp_path).config.num_kv_heads == 2
    files.metadata["llama.attention.head_count_kv"] = [2, 1]
    assert "llama.attention.head_count_kv" in refusal(lambda: load(files, tmp_path))


def test_notes_of_other_makers_are_left_alone(tmp_path: Path) -> None:
    files = gguf_files(target_files())
    files.metadata |= {"quantize.imatrix.file": "some.dat", "maker.version": 2, "general.quantization_version": 2}
    assert load(files, tmp_path).config == load_target(tmp_path / "model.gguf", torch.float32).config


WRONG_METADATA: dict[str, tuple[Any, ...]] = {
    "llama.block_count": (None, 0, 1, 3, 2**31, "2", 2.0),
    "llama.context_length": (None, 0, "128"),
    "llama.embedding_length": (None, 0, 32),
    "llama.feed_forward_length": (None, 0, 32, [28, 30]),
    "llama.attention.head_count": (None, 0, 8),
    "llama.attention.head_count_kv": (0, 3, 1),
    "llama.attention.key_length": (0, 5, 8),
    "llama.attention.value_length": (8,),
    "llama.attention.layer_norm_rms_epsilon": (None, 0.0, -1e-5, float("nan"), "small"),
    "llama.attention.sliding_window": (1024,),
    "llama.expert_count": (8,),
    "llama.rope.dimension_count": (4, 0),
    "llama.rope.freq_base": (0.5, -1.0, float("inf")),
    "llama.rope.scaling.type": ("longrope", 3),
    "llama.rope.scaling.factor": (0.5, -1.0),
    "llama.rope.scaling.attn_factor": (1.5,),
    "llama.vocab_size": (VOCAB + 1, 0),
    "llama.logit_scale": (0.5,),
    "tokenizer.ggml.tokens": (["a", "b"],),
    "tokenizer.ggml.eos_token_id": (VOCAB, -1.0, "end"),
    "tokenizer.ggml.bos_token_id": (VOCAB,),
    "general.type": ("adapter",),
    "split.count": (2,),
    "adapter.type": ("lora",),
}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in WRONG_METADATA.items() for value in values], ids=repr
)
def test_wrong_metadata_is_refused_by_name(tmp_path: Path, key: str, value: Any) -> None:
    files = gguf_files(target_files())
    if value is None:
        del files.metadata[key]
    else:
        files.metadata[key] = value
    message = refusal(lambda: load(files, tmp_path))
    # A size that only the tensors contradict is told by the tensor and the sizes it was compared with.
    assert key in message or "blk." in message or "the settings ask for" in message


@pytest.mark.parametrize("architecture", ["qwen2", "llama4"])
def test_other_architecture_is_refused_by_name(tmp_path: Path, architecture: str) -> None:
    files = gguf_files(target_files())
    files.architecture = architecture
    assert architecture in refusal(lambda: load(files, tmp_path))


def spoil(tensors: dict[str, np.ndarray[Any, Any]], name: str, mutation: str) -> None:
    values = tensors[name]
    if mutation == "delete":
        del tensors[name]
    elif mutation == "rename":
        tensors[f"{name}_2"] = tensors.pop(name)
    elif mutation == "reshape":
        tensors[name] = np.ascontiguousarray(values.T) if values.ndim == 2 else values.reshape(1, -1)
    elif mutation == "retype":
        tensors[name] = values.astype(np.int32)
    elif mutation == "nan":
        tensors[name] = np.full_like(values, np.nan)
    elif mutation == "add":
        tensors[f"{name}_2"] = values


@pytest.mark.parametrize("mutation", ["delete", "rename", "reshape", "retype", "nan", "add"])
def test_spoiled_tensors_are_refused_by_name(tmp_path: Path, mutation: str) -> None:
    whole = gguf_files(target_files(num_layers=1))
    unnamed = []
    for name in whole.tensors:
        # Without a head of its own the model is tied, which is a model as well.
        if name == "output.weight" and mutation == "delete":
            continue
        files = GgufFiles(whole.metadata, dict(whole.tensors))
        spoil(files.tensors, name, mutation)
        message = refusal(lambda f=files: load(f, tmp_path))  # type: ignore[misc]
        if name not in message:
            unnamed.append((name, message))
    assert unnamed == []


@pytest.mark.parametrize(
    "name", ["blk.0.ffn_gate_inp.weight", "blk.0.ffn_up_exps.weight", "blk.0.attn_rot_embd.weight"]
)
def test_tensor_of_another_kind_of_model_is_refused_by_name(tmp_path: Path, name: str) -> None:
    files = gguf_files(target_files())
    files.tensors[name] = np.zeros((4, HIDDEN), dtype=np.float32)
    assert name in refusal(lambda: load(files, tmp_path))


@pytest.mark.parametrize("content", [b"", b"GGU", b"GGUF", b"PK\x03\x04" + bytes(100), b"GGUF" + b"\x09\0\0\0" * 9])
def test_file_that_is_no_gguf_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    assert "model.gguf" in refusal(lambda: load_target(path, torch.float32))


def test_truncated_file_is_refused_by_name_wherever_it_ends(tmp_path: Path) -> None:
    path = gguf_files(target_files(num_layers=1)).write(tmp_path / "model.gguf")
    whole = path.read_bytes()
    for length in {*range(0, len(whole), 97), *range(64), len(whole) - 33}:
        path.write_bytes(whole[:length])
        assert "model.gguf" in refusal(lambda: load_target(path, torch.float32)), length


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_flipped_bytes_never_raise_anything_else(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("flipped")
    path = gguf_files(target_files(num_layers=1)).write(folder / "model.gguf")
    content = bytearray(path.read_bytes())
    position = data.draw(st.integers(0, 3500))
    content[position] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        load_target(path, torch.float32)
    except UserError as error:
        assert "\n" not in str(error)


@pytest.mark.model
def test_quickstart_model_loads() -> None:
    model_store = pytest.importorskip("aquiline.model_store")
    path = model_store.resolve_model("smollm2-135m")
    if not path.exists():
        pytest.skip("the quickstart model is not on disk; run the pull command first")
    target = load_target(path, torch.bfloat16)
    assert (target.config.num_layers, target.config.hidden_size, target.config.vocab_size) == (30, 576, 49152)
    assert target.config.rope == RopeConfig(theta=100000.0)
    assert target.config.tie_word_embeddings and target.config.eos_token_ids == (2,)
    assert target.config.rms_norm_eps == 1e-5
    assert 0.01 < float(target.tensors["model.embed_tokens.weight"].float().std()) < 1.0
