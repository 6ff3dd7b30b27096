"""The directory of a GGUF file, read without trusting it: for the weights and for the tokenizer alike.

The format is described in `docs/gguf.md` of ggml. All numbers are little-endian:

    "GGUF", version, number of tensors, number of keys
    keys        name, type, value; an array's value begins with the type of its entries and their number
    tensors     name, sizes (the fastest first), storage type, place behind the start of the data
    data        from the next multiple of `general.alignment` on
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from aquiline.errors import ModelFormatError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32

# No vocabulary or list of merges comes near.
MAX_ARRAY_LENGTH = 2**22
MAX_DIMENSIONS = 4

UINT32, UINT64 = struct.Struct("<I"), struct.Struct("<Q")

NUMBER_FORMATS = {
    GGUFValueType.UINT8: "u1",
    GGUFValueType.INT8: "i1",
    GGUFValueType.UINT16: "<u2",
    GGUFValueType.INT16: "<i2",
    GGUFValueType.UINT32: "<u4",
    GGUFValueType.INT32: "<i4",
    GGUFValueType.FLOAT32: "<f4",
    GGUFValueType.BOOL: "u1",
    GGUFValueType.UINT64: "<u8",
    GGUFValueType.INT64: "<i8",
    GGUFValueType.FLOAT64: "<f8",
}

# What damaged input makes the reader raise; RecursionError comes of arrays within arrays without end.
READING_FAULTS = (ValueError, LookupError, OverflowError, MemoryError, RecursionError)


@dataclass(frozen=True)
class GgufTensor:
    """A tensor in a GGUF file.

    Attributes:
        storage: name of its type in ggml, such as Q8_0.
        shape: as Hugging Face writes it, the fastest dimension last.
        offset: of its first byte in the file.
    """

    path: Path
    name: str
    storage: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int

    def read(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Its bytes, row after row: [product of all dimensions but the last, bytes of a row].

        Raises:
            ModelFormatError: the file cannot be read, or has changed since it was opened.
        """
        try:
            stored = np.fromfile(self.path, np.uint8, self.num_bytes, offset=self.offset)
        except OSError as error:
            raise ModelFormatError(f"{self.path} cannot be read: {error.strerror or error}") from None
        if len(stored) != self.num_bytes:
            raise ModelFormatError(f"{self.path} ends within {self.name}; fetch it again")
        num_rows = 1
        for size in self.shape[:-1]:
            num_rows *= size
        return stored.reshape(num_rows, -1)


@dataclass(frozen=True)
class GgufDirectory:
    """What a GGUF file holds.

    Attributes:
        metadata: values by key. A float32 is the shortest decimal that it stands for, so that 1e-5 stays 1e-5.
        tensors: by the file's own names, in its order.
    """

    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]


def read_gguf_directory(path: Path) -> GgufDirectory:
    """The keys and tensors of a GGUF file; no weight is read.

    Raises:
        ModelFormatError: not a GGUF file, damaged, or made for another kind of machine.
    """
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise ValueError("it is empty")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content, np.errstate(all="ignore"):
                return _Reader(path, content).directory()
    except OSError as error:
        raise ModelFormatError(f"{path} cannot be read: {error.strerror or error}") from None
    except READING_FAULTS as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelFormatError(f"{path} is damaged or not a GGUF file ({reason}); fetch it again") from None


class _Reader:
    """Reads one thing after the other, and stops where the file does."""

    def __init__(self, path: Path, content: mmap.mmap) -> None:
        self._path = path
        self._content = content
        self._at = 0

    def directory(self) -> GgufDirectory:
        if self._take(len(MAGIC)) != MAGIC:
            raise ValueError("it does not begin with GGUF")
        version = self._uint32()
        if version & 0xFFFF == 0:
            raise ModelFormatError(
                f"{self._path} has the byte order of another kind of machine; convert it for this one"
            )
        if version not in VERSIONS:
            raise ValueError(f"its version is {version}; Aquiline reads {' and '.join(map(str, VERSIONS))}")
        num_tensors, num_keys = self._uint64(), self._uint64()
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._text()
            if key in metadata:
                raise ValueError(f"it has the key {key!r} twice")
            metadata[key] = self._value(GGUFValueType(self._uint32()))
        return GgufDirectory(metadata, self._tensors(num_tensors, metadata))

    def _tensors(self, num_tensors: int, metadata: Mapping[str, Any]) -> dict[str, GgufTensor]:
        found: dict[str, tuple[GGMLQuantizationType, tuple[int, ...], int]] = {}
        for _ in range(num_tensors):
            name, num_dimensions = self._text(), self._uint32()
            if name in found or not 1 <= num_dimensions <= MAX_DIMENSIONS:
                raise ValueError(f"it has {name!r} twice, or with {num_dimensions} dimensions")
            shape = tuple(self._uint64() for _ in range(num_dimensions))[::-1]
            if 0 in shape:
                raise ValueError(f"{name} has shape {list(shape)}")
            found[name] = GGMLQuantizationType(self._uint32()), shape, self._uint64()
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"general.alignment is {alignment!r}")
        start = -(-self._at // alignment) * alignment
        return {name: self._tensor(name, kind, shape, start + offset) for name, (kind, shape, offset) in found.items()}

    def _tensor(self, name: str, kind: GGMLQuantizationType, shape: tuple[int, ...], offset: int) -> GgufTensor:
        numbers_per_block, bytes_per_block = GGML_QUANT_SIZES[kind]
        if shape[-1] % numbers_per_block:
            raise ValueError(f"{name} has rows of {shape[-1]}, and {kind.name} has blocks of {numbers_per_block}")
        num_bytes = bytes_per_block
        for size in (*shape[:-1], shape[-1] // numbers_per_block):
            num_bytes *= size
        self._check_end(offset + num_bytes)
        return GgufTensor(self._path, name, kind.name, shape, offset, num_bytes)

    def _value(self, kind: GGUFValueType) -> Any:
        if kind == GGUFValueType.STRING:
            return self._text()
        if kind == GGUFValueType.ARRAY:
            kind, length = GGUFValueType(self._uint32()), self._uint64()
            if length > MAX_ARRAY_LENGTH:
                raise ValueError(f"it lists {length} values under one key, more than {MAX_ARRAY_LENGTH}")
            if kind == GGUFValueType.STRING:
                return self._texts(length)
            if kind == GGUFValueType.ARRAY:
                return [self._value(kind) for _ in range(length)]
            return self._numbers(kind, length)
        (number,) = self._numbers(kind, 1)
        return float(str(np.float32(number))) if kind == GGUFValueType.FLOAT32 else number

    def _numbers(self, kind: GGUFValueType, length: int) -> list[Any]:
        number_type = np.dtype(NUMBER_FORMATS[kind])
        numbers = np.frombuffer(self._take(length * number_type.itemsize), number_type)
        listed: list[Any] = (numbers != 0 if kind == GGUFValueType.BOOL else numbers).tolist()
        return listed

    def _texts(self, length: int) -> list[str]:
        # A vocabulary and its merges are hundreds of thousands of these; a call for each would be half of a load.
        content, at, end_of_file, texts = self._content, self._at, len(self._content), []
        for _ in range(length):
            start = at + UINT64.size
            if start > end_of_file:
                self._check_end(start)
            at = start + UINT64.unpack_from(content, at)[0]
            if at > end_of_file:
                self._check_end(at)
            texts.append(str(content[start:at], "utf-8"))
        self._at = at
        return texts

    def _text(self) -> str:
        return str(self._take(self._uint64()), "utf-8")

    def _uint32(self) -> int:
        (number,) = UINT32.unpack(self._take(UINT32.size))
        return int(number)

    def _uint64(self) -> int:
        (number,) = UINT64.unpack(self._take(UINT64.size))
        return int(number)

    def _take(self, num_bytes: int) -> bytes:
        end = self._at + num_bytes
        self._check_end(end)
        taken = self._content[self._at : end]
        self._at = end
        return taken

    def _check_end(self, end: int) -> None:
        if end > len(self._content):
            raise ValueError(f"it ends before byte {end}")
