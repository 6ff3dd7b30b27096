"""GGUF files, opened without trusting them: for the weights and for the tokenizer alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGUFValueType

from aquiline.errors import ModelFormatError

# No vocabulary or list of merges comes near. Each entry is read by itself, so a wrong length costs time and memory.
MAX_ARRAY_LENGTH = 2**22

# What the gguf package is known to raise on damaged input.
READING_FAULTS = (ValueError, LookupError, OverflowError, TypeError, MemoryError, RecursionError)


class _StrictReader(gguf.GGUFReader):
    """A reader that stops where the file does, instead of handing out fewer numbers than asked for.

    Without that, a length that is too large has the base class read nothing, over and over, until memory is full.
    """

    data: Any

    def _get(self, offset: int, dtype: Any, count: int = 1, *args: Any, **kwargs: Any) -> Any:
        # A slice of a memmap costs many times what a slice of a plain array over the same bytes costs.
        self.data = self.data.view(np.ndarray)
        numbers = super()._get(offset, dtype, count, *args, **kwargs)
        if len(numbers) < int(count):
            raise ValueError(f"it ends before byte {int(offset) + int(count)}")
        return numbers

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        if raw_type == GGUFValueType.ARRAY:
            # An array begins with the type of its entries, in 4 bytes, and their number.
            length = int(self._get(orig_offs + 4, np.uint64)[0])
            if length > MAX_ARRAY_LENGTH:
                raise ValueError(f"it lists {length} values under one key, more than {MAX_ARRAY_LENGTH}")
        return super()._get_field_parts(orig_offs, raw_type)


@contextmanager
def reading_gguf(path: Path) -> Iterator[gguf.GGUFReader]:
    """The directory of a GGUF file; damage that shows while the caller reads from it is reported as well.

    Raises:
        ModelFormatError: not a GGUF file, damaged, or made for another kind of machine.
    """
    try:
        with np.errstate(all="ignore"):
            reader = _StrictReader(path)
            if reader.byte_order != "I":
                raise ModelFormatError(f"{path} has the byte order of another kind of machine; convert it for this one")
            yield reader
    except OSError as error:
        raise ModelFormatError(f"{path} cannot be read: {error.strerror or error}") from None
    except READING_FAULTS as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelFormatError(f"{path} is damaged or not a GGUF file ({reason}); fetch it again") from None
