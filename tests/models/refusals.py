"""How the loading tests spoil files, and what they demand of the refusal."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from aquiline.errors import UserError


def refusal(load: Callable[[], object]) -> str:
    """The message with which loading is refused: one line of a UserError."""
    with pytest.raises(UserError) as caught:
        load()
    message = str(caught.value)
    assert "\n" not in message
    return message


def spoiled_tensors(tensors: dict[str, Tensor], mutation: str) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """For each tensor: its name, and all tensors with that one spoiled."""
    for name, tensor in tensors.items():
        changed = dict(tensors)
        if mutation == "delete":
            del changed[name]
        elif mutation == "rename":
            del changed[name]
            changed[f"{name}_2"] = tensor
        elif mutation == "reshape":
            changed[name] = tensor.T if tensor.ndim == 2 else tensor.unsqueeze(0)
        elif mutation == "retype":
            changed[name] = tensor.to(torch.float32 if tensor.dtype == torch.int64 else torch.int32)
        elif mutation == "nan":
            if not tensor.is_floating_point():
                continue
            changed[name] = torch.full_like(tensor, torch.nan)
        elif mutation == "add":
            changed[f"{name}_2"] = tensor.clone()
        yield name, changed


TENSOR_MUTATIONS = ("delete", "rename", "reshape", "retype", "nan", "add")
