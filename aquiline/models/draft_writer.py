"""Drafts as files: a folder with config.json and model.safetensors that Aquiline and other engines load."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from aquiline.atomic_file import put_in_place
from aquiline.errors import InvalidParameterError
from aquiline.models.draft_metadata import DraftMetadata
from aquiline.models.draft_settings import DraftLayout, draft_settings
from aquiline.models.draft_tensors import MASK, OFFSETS
from aquiline.models.model_config import EagleConfig
from aquiline.models.tensor_shapes import ID_MAP, expected_draft_tensors

WEIGHTS = "model.safetensors"
SETTINGS = "config.json"
# SafeAILab's and SpecForge's name of the first layer.
FIRST_LAYER = "midlayer."


def write_draft(
    folder: Path,
    config: EagleConfig,
    tensors: Mapping[str, Tensor],
    metadata: DraftMetadata,
    layout: DraftLayout,
) -> None:
    """Write a draft; `open_draft` reads back the same config and tensors.

    Each file appears whole or not at all, config.json last: a folder without it is no draft. Files of an earlier draft
    are replaced, everything else in the folder stays.

    Args:
        folder: is made where it does not exist.
        tensors: by the names and in the shapes of `expected_draft_tensors(config)`, of one floating type, which they
            keep; `draft_to_target_ids` int64.
        metadata: goes into config.json under `aquiline`.

    Raises:
        InvalidParameterError: tensors that are missing, too many, misshapen, not finite or of several types; a map
            whose ids do not ascend; a layout that is not for this kind of draft; a folder that cannot be written.
        UnsupportedFeatureError: a setting that the layout has no place for.
    """
    _check_tensors(config, tensors)
    weights = {name: tensors[name] for name in expected_draft_tensors(config) if name != ID_MAP}
    settings = draft_settings(config, metadata, layout, next(iter(weights.values())).dtype)
    stored = {_stored_name(name, layout): _own_copy(tensor) for name, tensor in weights.items()}
    if config.draft_vocab_size < config.layers.vocab_size:
        stored |= _stored_map(tensors[ID_MAP].cpu(), config.layers.vocab_size)
    content = json.dumps(settings, indent=1, allow_nan=False) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with put_in_place(folder / WEIGHTS) as path:
            save_file(stored, path, metadata={"format": "pt"})
        with put_in_place(folder / SETTINGS) as path:
            path.write_text(content, encoding="utf-8")
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidParameterError(
            f"the draft cannot be written to {folder}: {reason}; name a folder that can be written, with room"
        ) from None


def _own_copy(tensor: Tensor) -> Tensor:
    """On the CPU and in its own memory: the file format refuses tensors that share theirs."""
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _stored_name(name: str, layout: DraftLayout) -> str:
    if layout in ("eagle3", "specforge") and name.startswith("layers.0."):
        return FIRST_LAYER + name.removeprefix("layers.0.")
    return name


def _stored_map(target_ids: Tensor, vocab_size: int) -> dict[str, Tensor]:
    """The vocabulary map as files hold it.

    Worked example, draft tokens 0, 1, 2 standing for target ids 0, 2, 5 of 7:

        d2t    0  1  3              target id minus draft id
        t2d    1  0  1  0  0  1  0  whether a target id is drafted
    """
    is_drafted = torch.zeros(vocab_size, dtype=torch.bool)
    is_drafted[target_ids] = True
    return {OFFSETS: target_ids - torch.arange(len(target_ids)), MASK: is_drafted}


def _check_tensors(config: EagleConfig, tensors: Mapping[str, Tensor]) -> None:
    expected = expected_draft_tensors(config)
    wrong = sorted(set(expected) ^ set(tensors))
    if wrong:
        side = "missing from" if wrong[0] in expected else "unexpected among"
        raise InvalidParameterError(f"{wrong[0]} is {side} the draft's tensors; give those that its config asks for")
    for name, shape in expected.items():
        if tuple(tensors[name].shape) != shape:
            raise InvalidParameterError(
                f"{name} has shape {list(tensors[name].shape)}; the draft's config asks for {list(shape)}"
            )
        if not bool(torch.isfinite(tensors[name]).all()):
            raise InvalidParameterError(f"{name} holds NaN or infinite values; write a checkpoint that is sound")
    dtypes = {str(tensor.dtype).removeprefix("torch.") for name, tensor in tensors.items() if name != ID_MAP}
    if len(dtypes) > 1 or not dtypes <= {"float32", "bfloat16", "float16"}:
        raise InvalidParameterError(
            f"the draft's weights are {' and '.join(sorted(dtypes))}; they must all be float32, bfloat16 or float16"
        )
    _check_map(tensors[ID_MAP], config.layers.vocab_size)


def _check_map(target_ids: Tensor, vocab_size: int) -> None:
    is_sound = target_ids.dtype == torch.int64 and bool((target_ids.diff() > 0).all())
    if not is_sound or int(target_ids[0]) < 0 or int(target_ids[-1]) >= vocab_size:
        raise InvalidParameterError(f"{ID_MAP} must be int64 and ascend from 0 or more to at most {vocab_size - 1}")
