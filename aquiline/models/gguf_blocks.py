"""Matrices of a GGUF file that keep the file's own precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from aquiline.kernels.cpu.packed import GGUF_GROUP_BYTES

# The types whose weights native kernels multiply as they are.
KEPT_TYPES = tuple(GGUF_GROUP_BYTES)


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
