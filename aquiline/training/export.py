"""Writes a draft in training as a folder that Aquiline and other engines load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from aquiline.models.draft_metadata import DraftMetadata
from aquiline.models.draft_settings import DraftLayout
from aquiline.models.draft_writer import write_draft
from aquiline.models.model_config import EagleConfig, default_aux_layer_ids
from aquiline.models.tensor_shapes import ID_MAP


def export_draft(
    folder: Path,
    config: EagleConfig,
    weights: Mapping[str, Tensor],
    target_ids: Sequence[int],
    metadata: DraftMetadata,
) -> None:
    """Write a draft in bfloat16.

    Args:
        weights: of the names of `expected_draft_tensors(config)` but the id map.
        target_ids: the target's id of every draft id.
        metadata: its `num_target_layers` decides whether the layers to capture have to be named.
    """
    tensors = {name: tensor.detach().to("cpu", torch.bfloat16) for name, tensor in weights.items()}
    tensors[ID_MAP] = torch.tensor(target_ids, dtype=torch.long)
    write_draft(folder, config, tensors, metadata, layout_for(config, metadata.num_target_layers))


def layout_for(config: EagleConfig, num_target_layers: int | None) -> DraftLayout:
    """The layout that most engines read rightly, among those with a place for the draft's settings.

    The numbers of SpecForge's `eagle_config` mean other layers to vLLM, so it is left to what nothing else can say.
    """
    if config.kind == "eagle1":
        return "eagle1"
    if num_target_layers is not None and config.aux_layer_ids == default_aux_layer_ids(num_target_layers):
        return "eagle3"
    return "specforge" if config.fc_bias else "speculators"
