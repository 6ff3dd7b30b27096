"""Tiny training runs: a random target, random conversations, and everything else real."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from aquiline.models.llama import LlamaModel
from aquiline.models.loading import expected_target_tensors
from aquiline.training.examples import TrainingExample
from aquiline.training.settings import DraftSettings, StageSettings, TrainingSettings
from aquiline.training.target import FrozenTarget
from aquiline.training.trainer import Trainer, TrainingData
from tests.tiny import EOS, random_tensors, tiny_llama_config

AUX_LAYER_IDS = (0, 1, 3)
DRAFT_IDS = tuple(i for i in range(61) if i % 3 != 1)


def toy_target(kind: str = "eagle3") -> FrozenTarget:
    """The tiny target of `tests.tiny`, with the features that a kind of draft wants."""
    config = tiny_llama_config()
    tensors = random_tensors(expected_target_tensors(config), seed=0)
    aux_layer_ids = AUX_LAYER_IDS if kind == "eagle3" else ()
    return FrozenTarget(LlamaModel(config, tensors, aux_layer_ids), tensors, "toy")


def toy_examples(num_examples: int = 5, seed: int = 0) -> list[TrainingExample]:
    """Conversations of 12 to 40 tokens; every other one has two answers."""
    generator = torch.Generator().manual_seed(seed)
    examples = []
    for index in range(num_examples):
        length = int(torch.randint(12, 40, (), generator=generator))
        token_ids = torch.randint(0, EOS, (length,), generator=generator).tolist()
        second_prompt = range(length - 5, length - 3) if index % 2 else ()
        is_answer = [position >= 4 and position not in second_prompt for position in range(length)]
        examples.append(TrainingExample(tuple(token_ids), tuple(is_answer)))
    return examples


def toy_settings(kind: str = "eagle3", **changes: object) -> TrainingSettings:
    """Two short stages in float32."""
    is_eagle3 = kind == "eagle3"
    draft = DraftSettings(
        kind="eagle3" if is_eagle3 else "eagle1",
        draft_vocab_size=len(DRAFT_IDS) if is_eagle3 else None,
        intermediate_size=40,
        aux_layer_ids=AUX_LAYER_IDS if is_eagle3 else None,
    )
    loss = "kl" if is_eagle3 else "eagle1"
    settings = TrainingSettings(
        draft=draft,
        stages=(StageSettings(1, 1e-2, 1.0, loss), StageSettings(3, 5e-3, 1.5, loss)),  # type: ignore[arg-type]
        tokens_per_step=15,
        rows_per_pack=64,
        dtype="float32",
        checkpoint_every=40,
    )
    return replace(settings, **changes)  # type: ignore[arg-type]


def toy_trainer(
    output: Path, settings: TrainingSettings | None = None, examples: list[TrainingExample] | None = None
) -> Trainer:
    """A trainer at its beginning, or where the folder's run stands."""
    settings = settings or toy_settings()
    target = toy_target(settings.draft.kind)
    vocabulary = DRAFT_IDS if settings.draft.kind == "eagle3" else range(target.config.vocab_size)
    return Trainer(settings, target, TrainingData(examples or toy_examples(), vocabulary), output)
