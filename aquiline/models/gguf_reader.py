"""Targets in GGUF files, the format of llama.cpp.

Weights are read one tensor at a time: as they are stored, or dequantised a few rows at a time, straight into the type
they are kept in.

llama.cpp rotates neighbouring numbers, Hugging Face numbers half a head apart, so a GGUF file holds the rows of q and k
of each head interleaved. Worked example, a head of width 4 with rows a b c d in Hugging Face's order:

    rotated pairs      (a, c) and (b, d)
    rows in the file   a c b d
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType
from torch import Tensor

from aquiline.errors import ModelFormatError, UnsupportedFeatureError
from aquiline.gguf_file import GgufTensor, read_gguf_directory
from aquiline.kernels.cpu.packed import scales_of
from aquiline.models.gguf_blocks import KEPT_TYPES, GgufBlocks
from aquiline.models.gguf_config import ARCHITECTURE, TOKENS, GgufLayout, check_architecture, read_gguf_config
from aquiline.models.model_config import LlamaConfig
from aquiline.models.stored_weights import ReadCallback, StoredWeights
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
CHUNK_SIZE = 2**20


@dataclass(frozen=True)
class GgufModel:
    """A target in a GGUF file; no weight is read before it is looked up.

    Attributes:
        tensors: by the names and in the shapes of `expected_target_tensors(config)`.
        blocks: the matrices among them that stay as they are stored for native kernels; rows of q and k in our order.
            Reading one raises ModelFormatError where a scale is not finite.
    """

    config: LlamaConfig
    tensors: Mapping[str, Tensor]
    blocks: Mapping[str, GgufBlocks]


def open_gguf(
    path: Path, dtype: torch.dtype, on_read: ReadCallback | None = None, kept_types: Collection[str] = KEPT_TYPES
) -> GgufModel:
    """Settings and tensors of a target.

    Args:
        dtype: of `tensors` in memory.
        kept_types: storage types that `blocks` is limited to, some of `KEPT_TYPES`.
        on_read: called with the name of a tensor after it was read, as numbers or as blocks.

    Raises:
        ModelFormatError: not a GGUF file, damaged, or metadata and tensors do not fit each other; also raised by
            `tensors`, for one that holds NaN or infinite values.
        UnsupportedFeatureError: another architecture, a storage type or a feature that Aquiline does not run.
    """
    directory = read_gguf_directory(path)
    metadata = {
        name: value
        for name, value in directory.metadata.items()
        if not name.startswith("tokenizer.") or name.endswith("_id")
    }
    check_architecture(metadata, str(path))
    tokens = directory.metadata.get(TOKENS)
    layout = _read_layout(path, directory.tensors, len(tokens) if isinstance(tokens, list) else None)
    config = read_gguf_config(metadata, layout, str(path))
    stored = _checked_tensors(path, config, directory.tensors)

    def read_tensor(name: str) -> Tensor:
        tensor = dequantise(stored[name], dtype)
        num_heads = _num_rotated_heads(name, config)
        return unpermute(tensor, num_heads) if num_heads else tensor

    def read_blocks(name: str) -> GgufBlocks:
        return _read_blocks(stored[name], _num_rotated_heads(name, config))

    kept = [name for name, tensor in stored.items() if tensor.storage in kept_types and len(tensor.shape) == 2]
    return GgufModel(
        config,
        StoredWeights({name: partial(read_tensor, name) for name in stored}, on_read),
        StoredWeights({name: partial(read_blocks, name) for name in kept}, on_read),
    )


def unpermute(tensor: Tensor, num_heads: int) -> Tensor:
    """Rows of a q or k projection [num_heads * head_dim, ...] from llama.cpp's order to Hugging Face's."""
    pairs = tensor.view(num_heads, -1, 2, *tensor.shape[1:])  # [num_heads, head_dim / 2, 2, ...]
    return pairs.transpose(1, 2).reshape(tensor.shape)


def _checked_tensors(path: Path, config: LlamaConfig, tensors: Mapping[str, GgufTensor]) -> dict[str, GgufTensor]:
    """The tensors of a model by Hugging Face's names, each of a type and shape that can be read."""
    names = {file_name: _canonical_name(file_name) for file_name in tensors if file_name != FREQUENCY_FACTORS}
    expected = expected_target_tensors(config)
    _check_names(path, names, expected)
    stored = {}
    for file_name, name in names.items():
        assert name is not None
        tensor = tensors[file_name]
        _check_storage(tensor)
        if tensor.shape != expected[name]:
            raise ModelFormatError(
                f"{path}: {file_name} has shape {list(tensor.shape)}; the settings ask for {list(expected[name])} "
                f"({describe_sizes(config)})"
            )
        stored[name] = tensor
    return stored


def _read_layout(path: Path, stored: Mapping[str, GgufTensor], num_tokens: int | None) -> GgufLayout:
    if EMBEDDING not in stored or len(stored[EMBEDDING].shape) != 2:
        raise ModelFormatError(f"{path} lacks {EMBEDDING}, a matrix with a row for each token; fetch it again")
    factors = None
    if FREQUENCY_FACTORS in stored:
        factors = tuple(dequantise(stored[FREQUENCY_FACTORS], torch.float32).flatten().tolist())
        if min(factors) <= 0:
            raise ModelFormatError(f"{path}: {FREQUENCY_FACTORS} holds {min(factors):g}; its factors must be positive")
    return GgufLayout(
        vocab_size=stored[EMBEDDING].shape[0],
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


def _check_storage(tensor: GgufTensor) -> None:
    if tensor.storage not in STORAGE_TYPES:
        raise UnsupportedFeatureError(
            f"{tensor.path}: {tensor.name} is stored as {tensor.storage}; Aquiline reads {', '.join(STORAGE_TYPES)}"
        )


def dequantise(tensor: GgufTensor, dtype: torch.dtype) -> Tensor:
    """The numbers of a tensor.

    Raises:
        ModelFormatError: the file cannot be read, or holds NaN or infinite values.
        UnsupportedFeatureError: a storage type that Aquiline does not read.
    """
    _check_storage(tensor)
    kind, width = GGMLQuantizationType[tensor.storage], tensor.shape[-1]
    stored = tensor.read()  # [num_rows, bytes of a row]
    numbers = torch.empty((len(stored), width), dtype=dtype)  # [num_rows, width]
    num_rows = max(1, CHUNK_SIZE // width)
    with np.errstate(all="ignore"):
        for start in range(0, len(stored), num_rows):
            rows = gguf.quants.dequantize(stored[start : start + num_rows], kind)
            numbers[start : start + num_rows] = torch.from_numpy(np.require(rows, np.float32, ["W"]))
    check_finite(numbers, tensor.name, str(tensor.path))
    return numbers.view(tensor.shape)


def _read_blocks(tensor: GgufTensor, num_heads: int) -> GgufBlocks:
    """The bytes of a matrix; with `num_heads` above 0, rows are brought into our order."""
    blocks = tensor.read()
    if not np.isfinite(scales_of(blocks, tensor.storage)).all():
        raise ModelFormatError(f"{tensor.path}: {tensor.name} holds NaN or infinite scales; fetch the file again")
    if num_heads:
        blocks = unpermute(torch.from_numpy(blocks), num_heads).numpy()
    return GgufBlocks(blocks, tensor.storage, (tensor.shape[0], tensor.shape[1]))


def _num_rotated_heads(name: str, config: LlamaConfig) -> int:
    """How many heads the rows of a q or k projection hold; 0 for everything else."""
    if ".q_proj." in name:
        return config.num_heads
    return config.num_kv_heads if ".k_proj." in name else 0
