"""From files to a model's settings and tensors: the front door of everything that reads weights."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from aquiline.errors import DraftMismatchError, ModelFormatError, ModelNotFoundError
from aquiline.models.checkpoint import StoredTensor, is_rotary_table, open_checkpoint
from aquiline.models.config_reader import read_target_config
from aquiline.models.draft_metadata import DraftMetadata, read_draft_metadata
from aquiline.models.draft_reader import read_draft_config
from aquiline.models.draft_tensors import draft_tensors, open_draft_tensors
from aquiline.models.gguf_blocks import KEPT_TYPES, GgufBlocks
from aquiline.models.gguf_reader import open_gguf
from aquiline.models.model_config import EagleConfig, LlamaConfig
from aquiline.models.stored_weights import ReadCallback
from aquiline.models.tensor_checks import check_names, check_shapes, describe_sizes, stored_tensors
from aquiline.models.tensor_shapes import EMBEDDING, HEAD, expected_draft_tensors, expected_target_tensors

__all__ = [
    "LoadedDraft",
    "LoadedTarget",
    "expected_draft_tensors",
    "expected_target_tensors",
    "load_draft",
    "load_target",
    "open_draft",
    "open_target",
]


@dataclass(frozen=True)
class LoadedTarget:
    """A target as its file gives it.

    Attributes:
        tensors: by the names and in the shapes of `expected_target_tensors(config)`.
        blocks: those of a GGUF file that stay as they are stored for native kernels.
    """

    config: LlamaConfig
    tensors: Mapping[str, Tensor]
    blocks: Mapping[str, GgufBlocks] = field(default_factory=dict)


@dataclass(frozen=True)
class LoadedDraft:
    """A draft as its file gives it.

    Attributes:
        tensors: by the names and in the shapes of `expected_draft_tensors(config)`; `draft_to_target_ids` is int64
            and holds the target's id of every draft id.
        metadata: what the file says about the draft's origin and worth.
    """

    config: EagleConfig
    tensors: Mapping[str, Tensor]
    metadata: DraftMetadata = field(default_factory=DraftMetadata)


def load_target(path: Path, dtype: torch.dtype) -> LoadedTarget:
    """Read a target into memory; otherwise as `open_target`."""
    target = open_target(path, dtype)
    return LoadedTarget(target.config, dict(target.tensors))


def open_target(
    path: Path, dtype: torch.dtype, on_read: ReadCallback | None = None, kept_types: Collection[str] = KEPT_TYPES
) -> LoadedTarget:
    """A target in a Hugging Face folder or a GGUF file, whose tensors are read each time one is looked up.

    Where `tie_word_embeddings` is true, a head in the file must equal the embedding: versions of transformers disagree
    about which of two different ones counts.

    Args:
        dtype: of the tensors in memory; each is converted on its own.
        on_read: called with the name of a tensor after it was read.
        kept_types: storage types of a GGUF file that stay as they are for native kernels, in `blocks`.

    Raises:
        ModelNotFoundError: nothing is there.
        ModelFormatError: a file is damaged, or settings and tensors do not fit each other; the message names what.
            Looking up a tensor raises it too, where the file holds other things than finite numbers.
        UnsupportedFeatureError: a model that Aquiline does not run.
    """
    if not os.path.exists(path):
        raise ModelNotFoundError(f"{path} does not exist; give a Hugging Face folder or a .gguf file")
    if not path.is_dir():
        model = open_gguf(path, dtype, on_read, kept_types)
        return LoadedTarget(model.config, model.tensors, model.blocks)
    config = read_target_config(path)
    stored = {name: tensor for name, tensor in open_checkpoint(path).items() if not is_rotary_table(name)}
    expected = expected_target_tensors(config)
    allowed = {*expected, HEAD} if HEAD in stored and config.tie_word_embeddings else set(expected)
    check_names(path, stored, allowed)
    check_shapes(stored, expected, describe_sizes(config))
    if HEAD not in expected and HEAD in stored:
        _check_tied_head(stored[HEAD], stored[EMBEDDING])
    return LoadedTarget(config, stored_tensors(stored, expected, dtype, on_read))


def load_draft(path: Path, target: LlamaConfig, dtype: torch.dtype) -> LoadedDraft:
    """Read a draft into memory; otherwise as `open_draft`."""
    draft = open_draft(path, target, dtype)
    return LoadedDraft(draft.config, dict(draft.tensors), draft.metadata)


def open_draft(path: Path, target: LlamaConfig, dtype: torch.dtype, on_read: ReadCallback | None = None) -> LoadedDraft:
    """A draft in a folder, whose tensors are read each time one is looked up.

    The layouts are those of SafeAILab, early vLLM, SpecForge, speculators and NeMo; `write_draft` writes them.

    Args:
        target: the model it drafts for; what the draft does not bring itself is the target's.
        dtype: of the tensors in memory.
        on_read: called with the name of a tensor after it was read.

    Raises:
        ModelNotFoundError: nothing is there.
        ModelFormatError: a file is damaged, or settings and tensors do not fit each other; the message names what.
        DraftMismatchError: the draft was made for another target; the message names both sizes.
        UnsupportedFeatureError: a draft that Aquiline does not run.
    """
    if not os.path.exists(path):
        raise ModelNotFoundError(f"{path} does not exist; a draft is a folder with config.json and its weights")
    if not path.is_dir():
        raise ModelFormatError(f"{path} is a file; a draft is a folder with config.json and its weights")
    stored = open_draft_tensors(path)
    metadata = read_draft_metadata(path)
    if metadata.num_target_layers not in (None, target.num_layers):
        raise DraftMismatchError(
            f"{path / 'config.json'}: the draft was made for a target of {metadata.num_target_layers} layers, this one "
            f"has {target.num_layers}; use a draft made for it"
        )
    config = read_draft_config(path, stored.keys(), target)
    return LoadedDraft(config, draft_tensors(path, config, stored, dtype, on_read), metadata)


def _check_tied_head(head: StoredTensor, embedding: StoredTensor) -> None:
    same_kind = (head.shape, head.dtype) == (embedding.shape, embedding.dtype)
    if not same_kind or not torch.equal(head.read(), embedding.read()):
        raise ModelFormatError(
            f"{head.location}: {HEAD} differs from {EMBEDDING} though tie_word_embeddings is true; "
            "set tie_word_embeddings to false to use it, or remove it"
        )
