"""Weight files of a Hugging Face folder, opened without trusting them.

The first of these is used, in the order in which transformers looks: `model.safetensors`,
`model.safetensors.index.json`, `pytorch_model.bin`, `pytorch_model.bin.index.json`. Pickled files are read by torch's
restricted unpickler, which runs no code.
"""

from __future__ import annotations

import pickle
import reprlib
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from aquiline.errors import ModelFormatError
from aquiline.models.config_fields import read_json_object

MAX_NAME_LENGTH = 100
ONE_FILE_NAMES = ("model.safetensors", "pytorch_model.bin")

SAFETENSORS_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "BOOL": "bool",
}

# What torch.load is known to raise on damaged input besides UnpicklingError.
UNPICKLING_FAULTS = (
    pickle.UnpicklingError,
    zipfile.BadZipFile,
    OSError,
    EOFError,
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    AssertionError,
    OverflowError,
    MemoryError,
    ImportError,
)


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file, not read yet.

    Attributes:
        dtype: name as in torch, without its prefix; the file's own word where torch has none.
        location: the file, for messages.
        read: fetches the values, on the CPU, perhaps still backed by the file.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    location: str
    read: Callable[[], Tensor]


def open_checkpoint(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of a folder's weight files, by name.

    Raises:
        ModelFormatError: no weight file, one damaged, a tensor in two shards, or an index that its shards contradict.
    """
    for name in ONE_FILE_NAMES:
        if (folder / name).exists():
            return _open_file(folder / name)
        index = folder / f"{name}.index.json"
        if index.exists():
            return _open_shards(folder, index)
    hint = "; it has a .gguf file: name that file itself" if any(folder.glob("*.gguf")) else ""
    raise ModelFormatError(f"{folder} has neither {' nor '.join(ONE_FILE_NAMES)}, nor an index of one{hint}")


def is_rotary_table(name: str) -> bool:
    """Whether a tensor only repeats what the rotary settings say; old checkpoints carry one per layer."""
    return name.endswith("rotary_emb.inv_freq")


def _open_shards(folder: Path, index: Path) -> dict[str, StoredTensor]:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFormatError(f"{index} has no weight_map from tensor names to files; fetch the checkpoint again")
    suffix = index.name.removesuffix(".index.json").rpartition(".")[2]
    tensors: dict[str, StoredTensor] = {}
    for file_name in sorted(set(map(str, weight_map.values()))):
        is_name = Path(file_name).name == file_name and len(file_name) <= MAX_NAME_LENGTH
        if not is_name or not file_name.endswith(f".{suffix}"):
            raise ModelFormatError(
                f"{index} names the file {reprlib.repr(file_name)}; it must be a .{suffix} file in that folder"
            )
        if not (folder / file_name).exists():
            raise ModelFormatError(f"{folder / file_name} is missing, and {index.name} names it; fetch it again")
        shard = _open_file(folder / file_name)
        twice = sorted(set(shard) & set(tensors))
        if twice:
            raise ModelFormatError(f"{twice[0]} is both in {tensors[twice[0]].location} and in {folder / file_name}")
        tensors |= shard
    _compare_with_index(index, weight_map, tensors)
    return tensors


def _compare_with_index(index: Path, weight_map: Mapping[str, object], tensors: Mapping[str, StoredTensor]) -> None:
    for name, file_name in weight_map.items():
        if name not in tensors or Path(tensors[name].location).name != file_name:
            raise ModelFormatError(f"{index} says that {name} is in {file_name}, where it is not; fetch both again")
    extra = sorted(set(tensors) - set(weight_map))
    if extra:
        raise ModelFormatError(f"{tensors[extra[0]].location} has {extra[0]}, which {index} does not list")


def _open_file(path: Path) -> dict[str, StoredTensor]:
    return _open_safetensors(path) if path.suffix == ".safetensors" else _open_pickle(path)


def _open_safetensors(path: Path) -> dict[str, StoredTensor]:
    try:
        file: Any = safe_open(path, framework="pt")
        return {name: _stored_in_safetensors(file, name, path) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, AttributeError) as error:
        raise _damaged(path, error) from None


def _stored_in_safetensors(file: Any, name: str, path: Path) -> StoredTensor:
    header = file.get_slice(name)
    dtype = header.get_dtype()

    def read() -> Tensor:
        try:
            # Pages of a file that stays open would count as this process's memory until the last tensor is read.
            with safe_open(path, framework="pt") as reopened:
                tensor = reopened.get_tensor(name)
        except (SafetensorError, OSError, ValueError, AttributeError) as error:
            raise _damaged(path, error) from None
        assert isinstance(tensor, Tensor)
        return tensor

    return StoredTensor(name, tuple(header.get_shape()), SAFETENSORS_DTYPES.get(dtype, dtype), str(path), read)


def _open_pickle(path: Path) -> dict[str, StoredTensor]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except UNPICKLING_FAULTS as error:
        raise _damaged(path, error) from None
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in content.items()
    ):
        raise ModelFormatError(f"{path} must hold tensors by name and nothing else; save the model's state dict alone")
    return {name: _stored_in_memory(name, tensor, path) for name, tensor in content.items()}


def _stored_in_memory(name: str, tensor: Tensor, path: Path) -> StoredTensor:
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
        raise ModelFormatError(f"{path}: {name} is sparse, quantised or empty; it must be an ordinary tensor")
    dtype = str(tensor.dtype).removeprefix("torch.")
    return StoredTensor(name, tuple(tensor.shape), dtype, str(path), tensor.detach)


def _damaged(path: Path, error: BaseException) -> ModelFormatError:
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return ModelFormatError(f"{path} is damaged or not a weight file ({reason}); fetch it again")
