"""Folders that transformers itself writes load, with the same settings and tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from aquiline.models.loading import load_target
from aquiline.models.model_config import RopeConfig
from tests.files import HEAD_DIM, HEADS, HIDDEN, INTERMEDIATE, KV_HEADS, VOCAB

CASES: dict[str, tuple[dict[str, Any], RopeConfig]] = {
    "plain": ({}, RopeConfig(theta=10000.0)),
    "tied": ({"tie_word_embeddings": True}, RopeConfig(theta=10000.0)),
    "biases": ({"attention_bias": True, "mlp_bias": True}, RopeConfig(theta=10000.0)),
    "all_heads": ({"num_key_value_heads": None, "head_dim": None}, RopeConfig(theta=10000.0)),
    "linear": (
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}},
        RopeConfig(500.0, "linear", 2.0),
    ),
    "dynamic": (
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 500.0}},
        RopeConfig(500.0, "dynamic", 2.0, 128),
    ),
    "llama3": (
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "factor": 8.0,
                "rope_theta": 500.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
        RopeConfig(500.0, "llama3", 8.0, 64, 1.0, 4.0),
    ),
    "yarn": (
        {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}},
        RopeConfig(10000.0, "yarn", 2.0, 64),
    ),
}


@pytest.mark.parametrize("max_shard_size", ["1GB", "20KB"], ids=["one_file", "sharded"])
@pytest.mark.parametrize("case", CASES)
def test_folder_written_by_transformers_loads(tmp_path: Path, case: str, max_shard_size: str) -> None:
    changes, rope = CASES[case]
    sizes: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": 128,
        "eos_token_id": [2, 3],
    }
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**(sizes | changes)))
    model.save_pretrained(tmp_path, max_shard_size=max_shard_size)
    assert (tmp_path / "model.safetensors").exists() == (max_shard_size == "1GB")
    target = load_target(tmp_path, torch.float32)
    tensors = model.state_dict()
    if target.config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    assert target.config.rope == rope
    assert target.config.eos_token_ids == (2, 3)
    assert target.config.rms_norm_eps == model.config.rms_norm_eps
    assert target.config.head_dim == model.config.head_dim
    assert target.tensors.keys() == tensors.keys()
    assert all(torch.equal(target.tensors[name], tensor) for name, tensor in tensors.items())
