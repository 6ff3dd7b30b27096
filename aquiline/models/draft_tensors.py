"""Tensors of a draft model: the names of each layout brought to one, and the vocabulary map."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from aquiline.errors import ModelFormatError
from aquiline.models.checkpoint import StoredTensor, is_rotary_table, open_checkpoint
from aquiline.models.model_config import EagleConfig
from aquiline.models.stored_weights import ReadCallback, StoredWeights
from aquiline.models.tensor_checks import check_names, check_shapes, describe_sizes, read_weight
from aquiline.models.tensor_shapes import ID_MAP, expected_draft_tensors

OFFSETS, MASK = "d2t", "t2d"


def open_draft_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of a draft's weight files, by canonical name; `d2t` and `t2d` keep theirs.

    NeMo's `model.` prefix goes, and `midlayer.` of SafeAILab, SpecForge and SGLang is `layers.0.`.

    Raises:
        ModelFormatError: no weight file, one damaged, or two tensors of one canonical name.
    """
    tensors: dict[str, StoredTensor] = {}
    for name, stored in open_checkpoint(folder).items():
        if is_rotary_table(name):
            continue
        canonical = name.removeprefix("model.")
        if canonical.startswith("midlayer."):
            canonical = f"layers.0.{canonical.removeprefix('midlayer.')}"
        if canonical in tensors:
            raise ModelFormatError(f"{stored.location}: {tensors[canonical].name} and {name} are the same tensor")
        tensors[canonical] = stored
    return tensors


def draft_tensors(
    folder: Path,
    config: EagleConfig,
    stored: Mapping[str, StoredTensor],
    dtype: torch.dtype,
    on_read: ReadCallback | None = None,
) -> Mapping[str, Tensor]:
    """The tensors of `expected_draft_tensors(config)`, weights in `dtype`, read each time one is looked up.

    Args:
        stored: what `open_draft_tensors` found.
        on_read: called with the name of a tensor after it was read.

    Raises:
        ModelFormatError: a tensor missing, unexpected, misshapen, of another type, not finite, or a map that is wrong.
    """
    maps = {name: stored[name] for name in (OFFSETS, MASK) if name in stored and config.kind == "eagle3"}
    expected = expected_draft_tensors(config)
    del expected[ID_MAP]
    weights = {name: tensor for name, tensor in stored.items() if name not in maps}
    check_names(folder, weights, expected, " (a file may spell layers.0 as midlayer)")
    sizes = f"{describe_sizes(config.layers)}, draft_vocab_size {config.draft_vocab_size}"
    check_shapes(weights, expected, f"{sizes}, {len(config.aux_layer_ids)} auxiliary layers")
    id_map = _read_id_map(folder, config, maps)
    readers = {name: partial(read_weight, weights[name], dtype) for name in expected}
    return StoredWeights({**readers, ID_MAP: lambda: id_map}, on_read)


def _read_id_map(folder: Path, config: EagleConfig, maps: Mapping[str, StoredTensor]) -> Tensor:
    """The target's id of every draft id, int64 [draft_vocab_size].

    The file stores offsets. Worked example, draft tokens 0, 1, 2 standing for target ids 0, 2, 5:

        d2t        0    1    3
        draft id   0    1    2
        sum        0    2    5
    """
    vocab_size, draft_vocab_size = config.layers.vocab_size, config.draft_vocab_size
    draft_ids = torch.arange(draft_vocab_size)  # [draft_vocab_size]
    if OFFSETS not in maps:
        if draft_vocab_size < vocab_size:
            raise ModelFormatError(
                f"{folder} lacks {OFFSETS}: draft_vocab_size {draft_vocab_size} of vocab_size {vocab_size} needs the "
                "map to the target's ids; add it to the weights"
            )
        target_ids = draft_ids
    else:
        stored = maps[OFFSETS]
        check_shapes(maps, {OFFSETS: (draft_vocab_size,)}, f"draft_vocab_size {draft_vocab_size}")
        if stored.dtype not in ("int64", "int32"):
            raise ModelFormatError(f"{stored.location}: {OFFSETS} is stored as {stored.dtype}; it must be int64")
        target_ids = draft_ids + stored.read().to(torch.int64)
        _check_target_ids(target_ids, vocab_size, stored.location)
    if MASK in maps:
        _check_mask(maps, target_ids, vocab_size)
    return target_ids


def _check_target_ids(target_ids: Tensor, vocab_size: int, location: str) -> None:
    if bool((target_ids < 0).any()) or bool((target_ids >= vocab_size).any()):
        raise ModelFormatError(
            f"{location}: {OFFSETS} leads to target ids {int(target_ids.min())} to {int(target_ids.max())}, outside 0 "
            f"to {vocab_size - 1}; it must hold offsets (target id minus draft id)"
        )
    if bool((target_ids.diff() <= 0).any()):
        first = int((target_ids.diff() <= 0).nonzero()[0])
        raise ModelFormatError(
            f"{location}: {OFFSETS} leads draft ids {first} and {first + 1} to target ids {int(target_ids[first])} and "
            f"{int(target_ids[first + 1])}; target ids must ascend"
        )


def _check_mask(maps: Mapping[str, StoredTensor], target_ids: Tensor, vocab_size: int) -> None:
    stored = maps[MASK]
    check_shapes(maps, {MASK: (vocab_size,)}, f"vocab_size {vocab_size}")
    if stored.dtype != "bool":
        raise ModelFormatError(f"{stored.location}: {MASK} is stored as {stored.dtype}; it must be bool")
    reached = torch.zeros(vocab_size, dtype=torch.bool)  # [vocab_size]
    reached[target_ids] = True
    differs = (reached != stored.read()).nonzero()
    if len(differs):
        raise ModelFormatError(
            f"{stored.location}: {MASK} and {OFFSETS} disagree about target id {int(differs[0])}; "
            f"{OFFSETS} must hold offsets (target id minus draft id)"
        )
