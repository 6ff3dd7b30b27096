"""A target whose next token depends on the last one alone, and an EAGLE-1 head that knows it; as folders.

All layers are silent, so a hidden state is the embedding of its token, and the head is the embedding in another order.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from aquiline.models.draft_metadata import DraftMetadata
from aquiline.models.draft_writer import write_draft
from aquiline.models.loading import expected_draft_tensors, expected_target_tensors
from aquiline.models.model_config import EagleConfig, LlamaConfig
from tests.checkpoints import settings_of
from tests.tiny import tiny_llama_config
from tests.tiny_tokenizers import train_byte_level, write_hf_folder


def bigram_config() -> LlamaConfig:
    return tiny_llama_config(vocab_size=train_byte_level().get_vocab_size(), max_position=600)


def write_bigram_target(folder: Path) -> LlamaConfig:
    config = bigram_config()
    tensors = silent(expected_target_tensors(config))
    embedding = torch.randn(config.vocab_size, config.hidden_size, generator=torch.Generator().manual_seed(0))
    embedding = torch.nn.functional.normalize(embedding)
    order = torch.randperm(config.vocab_size, generator=torch.Generator().manual_seed(1))
    tensors |= {"model.embed_tokens.weight": embedding, "lm_head.weight": embedding[order].contiguous()}
    write_hf_folder(folder, train_byte_level())
    (folder / "config.json").write_text(json.dumps(settings_of(config)))
    save_file(tensors, folder / "model.safetensors")
    return config


def write_bigram_draft(folder: Path, metadata: DraftMetadata | None = None, is_right: bool = True) -> None:
    """The draft; a wrong one looks at the feature instead of the token, and so is one token behind."""
    layers = replace(bigram_config(), num_layers=1)
    config = EagleConfig("eagle1", layers, layers.vocab_size, layers.hidden_size, has_own_head=False)
    tensors = silent(expected_draft_tensors(config))
    first = 0 if is_right else layers.hidden_size
    tensors["fc.weight"][:, first : first + layers.hidden_size] = torch.eye(layers.hidden_size)
    tensors["draft_to_target_ids"] = torch.arange(layers.vocab_size)
    write_draft(folder, config, tensors, metadata or DraftMetadata(), "eagle1")


def silent(shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Zero weights, and norms of weight 1."""
    return {name: torch.ones(shape) if "norm" in name else torch.zeros(shape) for name, shape in shapes.items()}
