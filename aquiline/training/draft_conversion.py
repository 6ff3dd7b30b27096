"""A draft from one layout to another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from aquiline.models.draft_settings import DraftLayout
from aquiline.models.draft_tensors import open_draft_tensors
from aquiline.models.draft_writer import write_draft
from aquiline.models.loading import open_draft, open_target

WEIGHT_TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def convert_draft(draft_path: Path, target_path: Path, target_name: str, output: Path, layout: DraftLayout) -> None:
    """Write the draft of a folder into another one; weights keep their numbers and their type.

    Args:
        target_name: of the model it drafts for, written down where the draft does not say it yet.

    Raises:
        UserError: a draft that cannot be read or is not for this target, a setting that the layout has no place for,
            or a folder that cannot be written.
    """
    target = open_target(target_path, torch.float32).config
    draft = open_draft(draft_path, target, _stored_type(draft_path))
    metadata = replace(draft.metadata, target=draft.metadata.target or target_name, num_target_layers=target.num_layers)
    write_draft(output, draft.config, dict(draft.tensors), metadata, layout)


def _stored_type(folder: Path) -> torch.dtype:
    """The type of the weights; float32 where they are of several."""
    dtypes = {tensor.dtype for tensor in open_draft_tensors(folder).values() if "int" not in tensor.dtype}
    floating = dtypes - {"bool"}
    return WEIGHT_TYPES.get(next(iter(floating)), torch.float32) if len(floating) == 1 else torch.float32
