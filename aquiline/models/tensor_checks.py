"""From tensors in files to tensors in memory: the right names, shapes and types, and finite values."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from aquiline.errors import ModelFormatError
from aquiline.models.checkpoint import StoredTensor
from aquiline.models.model_config import LlamaConfig
from aquiline.models.stored_weights import ReadCallback, StoredWeights

WEIGHT_DTYPES = ("float16", "bfloat16", "float32", "float64")


def check_names(path: Path, stored: Mapping[str, StoredTensor], expected: Collection[str], spelling: str = "") -> None:
    """Raise ModelFormatError when a tensor is missing or unexpected; the message names it.

    Args:
        spelling: added to the message where the file's names may differ from the expected ones.
    """
    missing, unexpected = sorted(set(expected) - set(stored)), sorted(set(stored) - set(expected))
    problems = []
    if missing:
        problems.append(f"lacks {_some(missing)}, which the settings ask for")
    if unexpected:
        problems.append(f"has {_some(stored[name].name for name in unexpected)}, which the settings leave no place for")
    if problems:
        raise ModelFormatError(
            f"{path} {' and '.join(problems)}{spelling}; check that settings and weights are of the same model"
        )


def check_shapes(stored: Mapping[str, StoredTensor], expected: Mapping[str, tuple[int, ...]], sizes: str) -> None:
    """Raise ModelFormatError when a tensor has another shape than expected.

    Args:
        sizes: the settings that the shapes come from, for the message.
    """
    for name, shape in expected.items():
        found = stored[name]
        if found.shape != shape:
            raise ModelFormatError(
                f"{found.location}: {found.name} has shape {list(found.shape)}; the settings ask for {list(shape)} "
                f"({sizes})"
            )


def read_weight(stored: StoredTensor, dtype: torch.dtype) -> Tensor:
    """The values as a tensor of its own memory in `dtype`.

    Raises:
        ModelFormatError: the file holds no floating-point numbers, or ones that are NaN or infinite in `dtype`.
    """
    if stored.dtype not in WEIGHT_DTYPES:
        raise ModelFormatError(
            f"{stored.location}: {stored.name} is stored as {stored.dtype}; weights must be {', '.join(WEIGHT_DTYPES)}"
        )
    tensor = stored.read().to(dtype, copy=True, memory_format=torch.contiguous_format)
    check_finite(tensor, stored.name, stored.location)
    return tensor


def stored_tensors(
    stored: Mapping[str, StoredTensor], names: Iterable[str], dtype: torch.dtype, on_read: ReadCallback | None
) -> StoredWeights[Tensor]:
    """The weights of `names` in `dtype`; looking one up raises as `read_weight` does."""
    return StoredWeights({name: partial(read_weight, stored[name], dtype) for name in names}, on_read)


def check_finite(tensor: Tensor, name: str, location: str) -> None:
    """Raise ModelFormatError when a value is NaN or infinite."""
    # A finite sum has finite terms, and is cheaper than a look at each; a sum of finite terms may still overflow.
    if not math.isfinite(float(tensor.sum(dtype=torch.float32))) and not bool(torch.isfinite(tensor).all()):
        kind = str(tensor.dtype).removeprefix("torch.")
        raise ModelFormatError(f"{location}: {name} holds NaN or infinite values in {kind}; fetch the file again")


def describe_sizes(config: LlamaConfig) -> str:
    """The settings that decide shapes, as config.json spells them."""
    return (
        f"vocab_size {config.vocab_size}, hidden_size {config.hidden_size}, "
        f"intermediate_size {config.intermediate_size}, num_attention_heads {config.num_heads}, "
        f"num_key_value_heads {config.num_kv_heads}, head_dim {config.head_dim}"
    )


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:4]) + (f" and {len(listed) - 4} more" if len(listed) > 4 else "")
