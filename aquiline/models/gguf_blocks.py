"""Matrices of a GGUF file that keep the file's own precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from aquiline.kernels.cpu.packed import GGUF_GROUP_BYTES

# The types whose weights native kernels multiply as they are.
KEPT_TYPES = tuple(GGUF_GROUP_BYTES)

# Which of them stay as they are under each quantization: all where the user leaves the choice to the file, else those
# that already are what is asked for.
KEPT_UNDER: dict[str, tuple[str, ...]] = {
    "auto": KEPT_TYPES,
    "none": (),
    "int8": ("Q8_0",),
    "int4": ("Q4_0", "Q4_1"),
}


@dataclass(frozen=True)
class GgufBlocks:
    """A matrix as its GGUF file stores it.

    Attributes:
        blocks: # [out_features, bytes of a row] uint8
        storage: name of the GGUF type, one of `KEPT_TYPES`.
        shape: (out_features, in_features)
    """

    blocks: np.ndarray[Any, np.dtype[np.uint8]]
    storage: str
    shape: tuple[int, int]
