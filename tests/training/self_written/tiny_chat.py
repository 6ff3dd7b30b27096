"""A tiny random chat model: one that ends its answers now and then, as one with sense does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from aquiline.config import EngineConfig, SchedulerConfig
from aquiline.llm import LLM
from tests.checkpoints import write_target
from tests.tiny import tiny_llama_config
from tests.tiny_tokenizers import train_byte_level


def write_chat_model(folder: Path, max_position: int = 4096) -> Path:
    """The model as a folder; many of its tokens end an answer."""
    config = replace(tiny_llama_config(), vocab_size=train_byte_level().get_vocab_size(), max_position=max_position)
    write_target(folder, config)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"eos_token_id": [2, *range(60, 90)]}))
    return folder


def open_chat_model(folder: Path, max_position: int = 4096) -> LLM:
    """The model, ready to answer."""
    config = EngineConfig(dtype="float32", scheduler=SchedulerConfig(max_num_seqs=16))
    return LLM(str(write_chat_model(folder, max_position)), draft=None, config=config)
