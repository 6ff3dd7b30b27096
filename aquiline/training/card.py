"""The best head of a run as a folder to hand on: weights, figures, and a card to read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from aquiline.atomic_file import write_atomically
from aquiline.models.draft_metadata import AcceptanceFigures, DraftMetadata, read_draft_metadata
from aquiline.models.draft_writer import write_draft
from aquiline.models.loading import load_draft
from aquiline.models.model_config import EagleConfig, LlamaConfig
from aquiline.training.export import layout_for
from aquiline.training.history import Record

CARD = "README.md"
PROMPTS = "held-out prompts of the run"


def write_head(folder: Path, checkpoint: Path, target: LlamaConfig, record: Record) -> None:
    """Write the draft of a checkpoint with its figures in config.json, and its card.

    Args:
        folder: is made where it does not exist; a head in it is replaced.
        checkpoint: the draft folder of a checkpoint.
        record: the checkpoint's evaluation, or the result of the run.
    """
    draft = load_draft(checkpoint, target, torch.bfloat16)
    origin = read_draft_metadata(checkpoint)
    counts = record["served"].get("chain") or record["predicted"]["chain"]
    metadata = DraftMetadata(
        target=origin.target,
        num_target_layers=target.num_layers,
        acceptance=(AcceptanceFigures(PROMPTS, 0.0, tuple(counts["conditional_acceptance_per_position"])),),
        acceptance_prior=tuple(map(tuple, record["acceptance_prior"]["depth_rank"])),
        quantization=origin.quantization,
        provenance=origin.provenance,
    )
    write_draft(folder, draft.config, draft.tensors, metadata, layout_for(draft.config, target.num_layers))
    card = card_text(draft.config, metadata, record)
    write_atomically(folder / CARD, card.encode())


def card_text(config: EagleConfig, metadata: DraftMetadata, record: Record) -> str:
    """The card, in Markdown."""
    data, recipe = metadata.provenance.get("data", {}), metadata.provenance.get("settings", {})
    counts = record["served"].get("chain") or record["predicted"]["chain"]
    how = "served" if record["served"] else "counted along the target's answers"
    rows = [
        ("Target", metadata.target),
        ("Kind", f"{config.kind.upper().replace('EAGLE', 'EAGLE-')}, layers: {config.num_layers}"),
        ("Draft vocabulary", f"{config.draft_vocab_size} of {config.layers.vocab_size} tokens"),
        ("Features", _features(config)),
        ("Trained to be served in", metadata.quantization or "any quantization"),
        ("Trained tokens", f"{record['num_tokens']:,}, each visit counted"),
        ("Answer tokens in the data", f"{data.get('num_answer_tokens', 0):,}"),
        ("Stages", "; ".join(map(_stage, recipe.get("stages", ())))),
    ]
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    positions = " ".join(f"{rate:.2f}" for rate in counts["conditional_acceptance_per_position"])
    return (
        f"# {config.kind.upper().replace('EAGLE', 'EAGLE-')} head for {metadata.target}\n\n"
        f"| | |\n|---|---|\n{table}\n\n"
        f"Acceptance at temperature 0, {how}, {counts['num_verify_steps']} steps on held-out prompts: length "
        f"{counts['acceptance_length']:.2f} with a chain of {len(counts['conditional_acceptance_per_position'])}; "
        f"conditional by position {positions}.\n\n"
        f"| prompts | {' | '.join(_names(record))} |\n|---|{'---|' * len(_names(record))}\n{_categories(record)}\n\n"
        f"One request on that machine: {record['time_per_committed_token_ms']:.2f} ms per committed token "
        f"with `--speculate {record['best_shape']}`, {record['plain_time_per_token_ms']:.2f} ms decoded plainly.\n"
    )


def _features(config: EagleConfig) -> str:
    if config.kind == "eagle1":
        return "the target's hidden state after its final norm"
    return f"outputs of target layers {', '.join(map(str, config.aux_layer_ids))}, counted from 0"


def _stage(stage: dict[str, Any]) -> str:
    return (
        f"{stage['ttt_steps']} self-fed steps, {stage['epochs']:g} epochs, learning rate {stage['learning_rate']:g}, "
        f"loss {stage['loss']}"
    )


def _names(record: Record) -> Sequence[str]:
    return list(record["predicted"])


def _categories(record: Record) -> str:
    return "\n".join(
        f"| {category} | {' | '.join(f'{lengths[name]:.2f}' for name in _names(record))} |"
        for category, lengths in record["categories"].items()
    )
