"""Tiny checkpoints on disk: settings and tensors that a test can spoil before they are written.

Sizes are chosen so that no two dimensions of a matrix are equal: a transposed matrix never fits by accident.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import save_file
from torch import Tensor

from aquiline.models.model_config import LlamaConfig, RopeConfig

Shapes = dict[str, tuple[int, ...]]
Layout = Literal["one_file", "sharded", "pickle", "sharded_pickle"]
LAYOUTS: tuple[Layout, ...] = ("one_file", "sharded", "pickle", "sharded_pickle")

VOCAB, HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 40, 16, 28, 8, 4, 2, 6
DRAFT_VOCAB = 10

LLAMA_SETTINGS: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 128,
    "rope_theta": 5000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
    "use_cache": True,
}

TARGET = LlamaConfig(
    vocab_size=VOCAB,
    hidden_size=HIDDEN,
    intermediate_size=INTERMEDIATE,
    num_layers=LAYERS,
    num_heads=HEADS,
    num_kv_heads=KV_HEADS,
    head_dim=HEAD_DIM,
    rms_norm_eps=1e-5,
    max_position=128,
    rope=RopeConfig(theta=5000.0),
    bos_token_id=1,
    eos_token_ids=(2,),
)


@dataclass
class ModelFiles:
    """A checkpoint before it is written; tests change it freely."""

    settings: dict[str, Any]
    tensors: dict[str, Tensor]

    def copy(self) -> ModelFiles:
        return ModelFiles(copy.deepcopy(self.settings), {name: t.clone() for name, t in self.tensors.items()})

    def write(self, folder: Path, layout: Layout = "one_file") -> Path:
        """Write config.json and the weights; what a former call left in the folder goes."""
        folder.mkdir(exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        (folder / "config.json").write_text(json.dumps(self.settings))
        stem, suffix = ("model", "safetensors") if layout in ("one_file", "sharded") else ("pytorch_model", "bin")
        if layout in ("one_file", "pickle"):
            _write_tensors(folder / f"{stem}.{suffix}", self.tensors)
            return folder
        names = sorted(self.tensors)
        shards = (names[::2], names[1::2])
        weight_map: dict[str, str] = {}
        for number, shard in enumerate(shards, start=1):
            file_name = f"{stem}-0000{number}-of-00002.{suffix}"
            _write_tensors(folder / file_name, {name: self.tensors[name] for name in shard})
            weight_map |= dict.fromkeys(shard, file_name)
        index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
        (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps(index))
        return folder


def random_tensors(shapes: Mapping[str, tuple[int, ...]], seed: int = 0) -> dict[str, Tensor]:
    """Small random float32 tensors that bfloat16 holds exactly, so that conversions can be compared bit for bit."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (torch.randn(shape, generator=generator) * 0.1).bfloat16().float()
        for name, shape in sorted(shapes.items())
    }


def layer_shapes(prefix: str, input_size: int = HIDDEN) -> Shapes:
    """The tensors of one decoder layer, its input norm left out."""
    return {
        f"{prefix}self_attn.q_proj.weight": (HEADS * HEAD_DIM, input_size),
        f"{prefix}self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, input_size),
        f"{prefix}self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, input_size),
        f"{prefix}self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
        f"{prefix}mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
        f"{prefix}mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
        f"{prefix}mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
        f"{prefix}post_attention_layernorm.weight": (HIDDEN,),
    }


def target_files(num_layers: int = 2, **changes: Any) -> ModelFiles:
    """An untied target; `changes` are settings, where None leaves one out. Biases follow the settings."""
    settings = {**LLAMA_SETTINGS, "num_hidden_layers": num_layers, **changes}
    settings = {key: value for key, value in settings.items() if value is not None}
    shapes: Shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    if not settings.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (VOCAB, HIDDEN)
    for index in range(num_layers):
        prefix = f"model.layers.{index}."
        shapes |= layer_shapes(prefix)
        shapes[f"{prefix}input_layernorm.weight"] = (HIDDEN,)
    for key, part in (("attention_bias", "self_attn"), ("mlp_bias", "mlp")):
        if settings.get(key):
            weights = [name for name in shapes if f".{part}." in name]
            shapes |= {f"{name.removesuffix('weight')}bias": shapes[name][:1] for name in weights}
    return ModelFiles(settings, random_tensors(shapes))


def eagle1_files(num_layers: int = 1, has_bias: bool = False) -> ModelFiles:
    """SafeAILab's layout of an EAGLE-1 or 2 head."""
    shapes: Shapes = {"embed_tokens.weight": (VOCAB, HIDDEN), "fc.weight": (HIDDEN, 2 * HIDDEN)}
    if has_bias:
        shapes["fc.bias"] = (HIDDEN,)
    for index in range(num_layers):
        shapes |= layer_shapes(f"layers.{index}.")
        if index:
            shapes[f"layers.{index}.input_layernorm.weight"] = (HIDDEN,)
    settings = {**LLAMA_SETTINGS, "num_hidden_layers": num_layers, "bias": has_bias}
    return ModelFiles(settings, random_tensors(shapes))


def wrapped_files() -> ModelFiles:
    """Early vLLM's layout of an EAGLE-1 head."""
    files = eagle1_files(has_bias=True)
    del files.settings["bias"]
    wrapped = {"model_type": "eagle", "architectures": ["EAGLEModel"], "model": files.settings, "eagle_fc_bias": True}
    return ModelFiles(wrapped, files.tensors)


def eagle3_files(first_layer: str = "midlayer.", num_layers: int = 1) -> ModelFiles:
    """SafeAILab's layout of an EAGLE-3 head over every fourth token, with the default layers."""
    shapes: Shapes = {
        "fc.weight": (HIDDEN, 3 * HIDDEN),
        "norm.weight": (HIDDEN,),
        "lm_head.weight": (DRAFT_VOCAB, HIDDEN),
        f"{first_layer}hidden_norm.weight": (HIDDEN,),
    }
    for index in range(num_layers):
        prefix = f"layers.{index}." if index else first_layer
        shapes |= layer_shapes(prefix, HIDDEN if index else 2 * HIDDEN)
        shapes[f"{prefix}input_layernorm.weight"] = (HIDDEN,)
    settings = {**LLAMA_SETTINGS, "num_hidden_layers": num_layers, "draft_vocab_size": DRAFT_VOCAB}
    del settings["rope_theta"]
    return ModelFiles(settings, {**random_tensors(shapes), **draft_map()})


def draft_map() -> dict[str, Tensor]:
    """Draft ids 0, 1, 2, ... stand for target ids 0, 4, 8, ...: d2t holds the offsets 0, 3, 6, ..."""
    is_drafted = torch.zeros(VOCAB, dtype=torch.bool)
    is_drafted[:: VOCAB // DRAFT_VOCAB] = True
    return {"d2t": torch.arange(DRAFT_VOCAB) * 3, "t2d": is_drafted}


def specforge_files() -> ModelFiles:
    """SpecForge's layout, which counts layer outputs."""
    files = eagle3_files()
    files.settings["architectures"] = ["LlamaForCausalLMEagle3"]
    files.settings["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [0, 3, 5], "use_aux_hidden_state": True}
    return files


def speculators_files() -> ModelFiles:
    """The speculators layout with two layers, per-feature norms and an own embedding; it counts layer inputs."""
    files = eagle3_files("layers.0.", num_layers=2)
    layer_settings = {key: value for key, value in files.settings.items() if key != "draft_vocab_size"}
    files.settings = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.3.0",
        "draft_vocab_size": DRAFT_VOCAB,
        "target_hidden_size": None,
        "norm_before_residual": False,
        "fc_norm": True,
        "norm_output": True,
        "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
        "transformer_layer_config": layer_settings,
        "speculators_config": {
            "algorithm": "eagle3",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": "some/target", "architectures": ["LlamaForCausalLM"]},
        },
    }
    shapes = {f"fc_norm.{i}.weight": (HIDDEN,) for i in range(3)} | {"embed_tokens.weight": (VOCAB, HIDDEN)}
    files.tensors |= random_tensors(shapes, seed=1)
    return files


def nemo_files() -> ModelFiles:
    """NeMo's layout: everything but head and map under `model.`"""
    files = eagle3_files("layers.0.")
    outside = ("lm_head.weight", "d2t", "t2d")
    files.tensors = {name if name in outside else f"model.{name}": tensor for name, tensor in files.tensors.items()}
    return files


@dataclass
class GgufFiles:
    """A GGUF file before it is written: metadata, and tensors as stored (bytes of a storage type, or float32)."""

    metadata: dict[str, Any]
    tensors: dict[str, np.ndarray[Any, Any]]
    storage: dict[str, GGMLQuantizationType] = field(default_factory=dict)
    architecture: str = "llama"

    def write(self, path: Path) -> Path:
        writer = gguf.GGUFWriter(path, self.architecture)
        for key, value in self.metadata.items():
            if isinstance(value, bool):
                writer.add_bool(key, value)
            elif isinstance(value, int):
                writer.add_uint32(key, value)
            elif isinstance(value, float):
                writer.add_float32(key, value)
            elif isinstance(value, str):
                writer.add_string(key, value)
            else:
                writer.add_array(key, value)
        for name, values in self.tensors.items():
            writer.add_tensor(name, values, raw_dtype=self.storage.get(name))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


GGUF_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """What llama.cpp calls a tensor of Hugging Face's."""
    whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem, _, kind = name.rpartition(".")
    if stem in whole:
        return f"{whole[stem]}.{kind}"
    _, _, index, part = stem.split(".", 3)
    return f"blk.{index}.{GGUF_PARTS[part]}.{kind}"


def interleave_heads(tensor: Tensor, head_dim: int = HEAD_DIM) -> Tensor:
    """Rows of q or k in llama.cpp's order: row i of the second half of a head follows row i of the first."""
    order = [
        head + half * head_dim // 2 + i
        for head in range(0, len(tensor), head_dim)
        for i in range(head_dim // 2)
        for half in range(2)
    ]
    return tensor[torch.tensor(order)]


def gguf_files(files: ModelFiles) -> GgufFiles:
    """The same target as a GGUF file in float32."""
    tensors = {}
    for name, tensor in files.tensors.items():
        is_rotated = ".q_proj." in name or ".k_proj." in name
        tensors[gguf_name(name)] = (interleave_heads(tensor) if is_rotated else tensor).numpy()
    settings = files.settings
    metadata: dict[str, Any] = {
        "general.name": "tiny",
        "llama.block_count": settings["num_hidden_layers"],
        "llama.context_length": settings["max_position_embeddings"],
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": INTERMEDIATE,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.key_length": HEAD_DIM,
        "llama.attention.value_length": HEAD_DIM,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 5000.0,
        "llama.rope.dimension_count": HEAD_DIM,
        "llama.vocab_size": VOCAB,
        "tokenizer.ggml.tokens": [f"<{i}>" for i in range(VOCAB)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    return GgufFiles(metadata, tensors)


def _write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    if path.suffix == ".safetensors":
        save_file(contiguous, path)
    else:
        torch.save(contiguous, path)
