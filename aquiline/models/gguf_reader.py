"""Targets in GGUF files, the format of llama.cpp.

Weights are dequantised one tensor at a time, a few rows at a time, straight into the type they are kept in.

llama.cpp rotates neighbouring numbers, Hugging Face numbers half a head apart, so a GGUF file holds the rows of q and k
of each head interleaved. Worked example, a head of width 4 with rows a b c d in Hugging Face's order:

    rotated pairs      (a, c) and (b, d)
    rows in the file   a c b d
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType
from torch import Tensor

from aquiline.errors import ModelFormatError, UnsupportedFeatureError
from aquiline.gguf_file import reading_gguf
from aquiline.models.gguf_blocks import KEPT_TYPES, GgufBlocks
from aquiline.models.gguf_config import ARCHITECTURE, TOKENS, GgufLayout, check_architecture, read_gguf_config
from aquiline.models.model_config import LlamaConfig
from aquiline.models.tensor_checks import check_finite, describe_sizes
from aquiline.models.tensor_shapes import expected_target_tensors

EMBEDDING, HEAD, FREQUENCY_FACTORS = "token_embd.weight", "output.weight", "rope_freqs.weight"

WHOLE_MODEL_NAMES = {
    EMBEDDING: "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    HEAD: "lm_head.weight",
}

LAYER_PART_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

STORAGE_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")

# Numbers that are dequantised to float32 at once.
CHUNK_SIZE = 2**24


def read_gguf(path: Path, dtype: torch.dtype) -> tuple[LlamaConfig, dict[str, Tensor]]:
    """Settings and tensors of a target, by the names and in the shapes of `expected_target_tensors(config)`.

    Args:
        dtype: of the tensors in memory.

    Raises:
        ModelFormatError: not a GGUF file, damaged, or metadata and tensors do not fit each other.
        UnsupportedFeatureError: another architecture, a storage type or a feature that Aquiline does not run.
    """
    config, stored = _open_model(path)
    names = {file_name: _canonical_name(file_name) for file_name in stored if file_name != FREQUENCY_FACTORS}
    expected = expected_target_tensors(config)
    _check_names(path, names, expected)
    tensors = {}
    for file_name, name in names.items():
        assert name is not None
        if _shape(stored[file_name]) != expected[name]:
            raise ModelFormatError(
                f"{path}: {file_name} has shape {list(_shape(stored[file_name]))}; the settings ask for "
                f"{list(expected[name])} ({describe_sizes(config)})"
            )
        tensors[name] = _read_tensor(path, stored[file_name], dtype)
        num_heads = _num_rotated_heads(name, config)
        if num_heads:
            tensors[name] = unpermute(tensors[name], num_heads)
    return config, tensors


def read_gguf_blocks(path: Path) -> dict[str, GgufBlocks]:
    """The matrices of a target, by the names of `read_gguf`, as the file stores them; rows of q and k in our order.

    Only those of a type that native kernels keep as it is.

    Raises:
        ModelFormatError, UnsupportedFeatureError: as for `read_gguf`, which has to have accepted the file.
    """
    config, stored = _open_model(path)
    found = {}
    for file_name, tensor in stored.items():
        name, storage, shape = _canonical_name(file_name), GGMLQuantizationType(tensor.tensor_type).name, _shape(tensor)
        if name is None or storage not in KEPT_TYPES or len(shape) != 2:
            continue
        blocks = np.ascontiguousarray(tensor.data).reshape(shape[0], -1)
        num_heads = _num_rotated_heads(name, config)
        if num_heads:
            blocks = np.ascontiguousarray(unpermute(torch.from_numpy(blocks.copy()), num_heads).numpy())
        found[name] = GgufBlocks(blocks, storage, (shape[0], shape[1]))
    return found


def unpermute(tensor: Tensor, num_heads: int) -> Tensor:
    """Rows of a q or k projection [num_heads * head_dim, ...] from llama.cpp's order to Hugging Face's."""
    pairs = tensor.view(num_heads, -1, 2, *tensor.shape[1:])  # [num_heads, head_dim / 2, 2, ...]
    return pairs.transpose(1, 2).reshape(tensor.shape)


def _open_model(path: Path) -> tuple[LlamaConfig, dict[str, Any]]:
    """Settings of the model in a file, and its stored tensors by the file's own names."""
    reader, metadata = _open(path)
    check_architecture(metadata, str(path))
    stored = {tensor.name: tensor for tensor in reader.tensors}
    tokens = reader.get_field(TOKENS)
    layout = _read_layout(path, stored, None if tokens is None else len(tokens.data))
    config = read_gguf_config(metadata, layout, str(path))
    return config, stored


def _open(path: Path) -> tuple[gguf.GGUFReader, dict[str, Any]]:
    """The file's directory of tensors, and its metadata without the tokenizer's lists."""
    with reading_gguf(path) as reader:
        metadata = {
            name: _field_value(field)
            for name, field in reader.fields.items()
            if not name.startswith("tokenizer.") or name.endswith("_id")
        }
    return reader, metadata


def _field_value(field: Any) -> Any:
    """A metadata value; a float32 becomes the shortest decimal that it stands for, so that 1e-5 stays 1e-5."""
    value = field.contents()
    if field.types == [gguf.GGUFValueType.FLOAT32]:
        return float(str(np.float32(value)))
    return value


def _read_layout(path: Path, stored: Mapping[str, Any], num_tokens: int | None) -> GgufLayout:
    if EMBEDDING not in stored or len(_shape(stored[EMBEDDING])) != 2:
        raise ModelFormatError(f"{path} lacks {EMBEDDING}, a matrix with a row for each token; fetch it again")
    factors = None
    if FREQUENCY_FACTORS in stored:
        factors = tuple(_read_tensor(path, stored[FREQUENCY_FACTORS], torch.float32).flatten().tolist())
        if min(factors) <= 0:
            raise ModelFormatError(f"{path}: {FREQUENCY_FACTORS} holds {min(factors):g}; its factors must be positive")
    return GgufLayout(
        vocab_size=_shape(stored[EMBEDDING])[0],
        num_tokens=num_tokens,
        has_head=HEAD in stored,
        has_attention_bias=_has_bias(stored, "attn_q", "attn_k", "attn_v"),
        has_attention_output_bias=_has_bias(stored, "attn_output"),
        has_mlp_bias=_has_bias(stored, "ffn_gate", "ffn_up", "ffn_down"),
        frequency_factors=factors,
    )


def _has_bias(stored: Mapping[str, Any], *parts: str) -> bool:
    return any(re.fullmatch(rf"blk\.\d+\.({'|'.join(parts)})\.bias", name) for name in stored)


def _canonical_name(file_name: str) -> str | None:
    """Hugging Face's name of a GGUF tensor; None where it has none."""
    layer = re.fullmatch(r"blk\.(0|[1-9]\d*)\.(\w+)\.(weight|bias)", file_name)
    if layer is None or layer[2] not in LAYER_PART_NAMES:
        return WHOLE_MODEL_NAMES.get(file_name)
    return f"model.layers.{layer[1]}.{LAYER_PART_NAMES[layer[2]]}.{layer[3]}"


def _file_name(name: str) -> str:
    """The GGUF name of a tensor with a Hugging Face name."""
    for file_name, whole_model_name in WHOLE_MODEL_NAMES.items():
        if name == whole_model_name:
            return file_name
    _, _, index, rest = name.split(".", 3)
    part, _, kind = rest.rpartition(".")
    file_parts = {hf_part: file_part for file_part, hf_part in LAYER_PART_NAMES.items()}
    return f"blk.{index}.{file_parts[part]}.{kind}"


def _check_names(path: Path, names: Mapping[str, str | None], expected: Mapping[str, Any]) -> None:
    found = set(names.values())
    missing = [_file_name(name) for name in expected if name not in found]
    unexpected = sorted(file_name for file_name, name in names.items() if name not in expected)
    if any("_exps" in name or "gate_inp" in name for name in unexpected):
        raise UnsupportedFeatureError(f"{path} has {unexpected[0]}: a mixture of experts; Aquiline runs dense models")
    if missing:
        raise ModelFormatError(f"{path} lacks {', '.join(missing[:4])}, which its metadata asks for; fetch it again")
    if unexpected:
        raise ModelFormatError(
            f"{path} has {', '.join(unexpected[:4])}, which a {ARCHITECTURE} model has no place for; "
            "use a file without them"
        )


def _shape(stored: Any) -> tuple[int, ...]:
    """Shape as Hugging Face writes it: GGUF lists the fastest dimension first."""
    return tuple(int(size) for size in reversed(stored.shape))


def _read_tensor(path: Path, stored: Any, dtype: torch.dtype) -> Tensor:
    storage = GGMLQuantizationType(stored.tensor_type).name
    if storage not in STORAGE_TYPES:
        raise UnsupportedFeatureError(
            f"{path}: {stored.name} is stored as {storage}; Aquiline reads {', '.join(STORAGE_TYPES)}"
        )
    shape = _shape(stored)
    packed = stored.data.reshape(-1, stored.data.shape[-1])  # [num_rows, packed width]
    tensor = torch.empty((len(packed), shape[-1]), dtype=dtype)  # [num_rows, width]
    num_rows = max(1, CHUNK_SIZE // max(1, shape[-1]))
    with np.errstate(all="ignore"):
        for start in range(0, len(packed), num_rows):
            rows = gguf.quants.dequantize(packed[start : start + num_rows], stored.tensor_type)
            tensor[start : start + num_rows] = torch.from_numpy(np.require(rows, np.float32, ["W"]))
    check_finite(tensor, stored.name, str(path))
    return tensor.view(shape)


def _num_rotated_heads(name: str, config: LlamaConfig) -> int:
    """How many heads the rows of a q or k projection hold; 0 for everything else."""
    if ".q_proj." in name:
        return config.num_heads
    return config.num_kv_heads if ".k_proj." in name else 0
