"""Tiny models as folders that `LLM` can open: settings, random weights and a byte-level tokenizer."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from aquiline.models.loading import expected_draft_tensors, expected_target_tensors
from aquiline.models.model_config import EagleConfig, LlamaConfig
from tests.tiny import random_tensors
from tests.tiny_tokenizers import train_byte_level, write_hf_folder


def settings_of(config: LlamaConfig) -> dict[str, Any]:
    """A Hugging Face config.json of a tiny model."""
    plain = {name: value for name, value in asdict(config).items() if name in ("vocab_size", "hidden_size")}
    return plain | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_norm_eps,
        "max_position_embeddings": config.max_position,
        "rope_theta": config.rope.theta,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "eos_token_id": 2,
    }


def write_target(folder: Path, config: LlamaConfig) -> Path:
    write_hf_folder(folder, train_byte_level())
    (folder / "config.json").write_text(json.dumps(settings_of(config)))
    save_file(random_tensors(expected_target_tensors(config), seed=0), folder / "model.safetensors")
    return folder


def write_draft(folder: Path, config: EagleConfig) -> Path:
    folder.mkdir()
    settings = settings_of(config.layers)
    if config.kind == "eagle3":
        layer_ids = list(config.aux_layer_ids)
        settings |= {
            "draft_vocab_size": config.draft_vocab_size,
            "architectures": ["LlamaForCausalLMEagle3"],
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": layer_ids, "use_aux_hidden_state": True},
        }
    else:
        settings["bias"] = config.fc_bias
    (folder / "config.json").write_text(json.dumps(settings))
    shapes = {name: s for name, s in expected_draft_tensors(config).items() if name != "draft_to_target_ids"}
    save_file(random_tensors(shapes, seed=1), folder / "model.safetensors")
    return folder
