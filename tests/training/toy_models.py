"""A tiny target and heads for it as folders, opened by `LLM`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from aquiline.config import EngineConfig, SchedulerConfig, SpeculativeConfig
from aquiline.llm import LLM
from aquiline.models.model_config import EagleConfig
from aquiline.speculation import parse_speculation
from tests.checkpoints import write_draft, write_target
from tests.tiny import tiny_eagle_config, tiny_llama_config
from tests.tiny_tokenizers import train_byte_level

TOY_TARGET = replace(tiny_llama_config(), vocab_size=train_byte_level().get_vocab_size(), max_position=192)
TOY_HEAD = replace(tiny_eagle_config(TOY_TARGET), draft_vocab_size=TOY_TARGET.vocab_size)


def write_toys(folder: Path) -> Path:
    """`target` and `head` below a folder."""
    write_target(folder / "target", TOY_TARGET)
    write_draft(folder / "head", TOY_HEAD)
    return folder


def write_head(folder: Path, **changes: object) -> Path:
    """A head that differs from the usual one."""
    config: EagleConfig = replace(TOY_HEAD, **changes)  # type: ignore[arg-type]
    return write_draft(folder, config)


def open_toy(folder: Path, speculate: str = "chain:2", draft: str | None = "head") -> LLM:
    """The toy target in float32 on PyTorch."""
    config = EngineConfig(
        dtype="float32",
        speculative=SpeculativeConfig(parse_speculation(speculate), draft_check="off"),
        scheduler=SchedulerConfig(max_num_seqs=4),
    )
    return LLM(str(folder / "target"), draft=str(folder / draft) if draft else None, config=config)
