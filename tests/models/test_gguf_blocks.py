"""Matrices of a GGUF file that keep its precision: their bytes, their rows, and that nothing is read in vain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from aquiline.config import Quantization
from aquiline.gguf_file import GgufTensor
from aquiline.kernels import cpu
from aquiline.kernels.cpu import PackedLinear
from aquiline.models import gguf_reader
from aquiline.models.assemble import ModelSettings, assemble_models
from aquiline.models.loading import load_target, open_target
from tests.models.refusals import refusal
from tests.models.test_gguf import wide_files

SETTINGS = ModelSettings(torch.bfloat16, "cpu", "auto", 1)
needs_native = pytest.mark.skipif(not cpu.is_available(), reason=cpu.why_not() or "native kernels are there")


@needs_native
@pytest.mark.parametrize("storage", ["Q8_0", "Q4_0", "Q4_1"])
def test_blocks_hold_the_numbers_of_the_file(tmp_path: Path, storage: str) -> None:
    path = wide_files(storage).write(tmp_path / "model.gguf")
    blocks, dense = open_target(path, torch.bfloat16).blocks, load_target(path, torch.float32).tensors
    assert set(blocks) == {name for name, tensor in dense.items() if tensor.dim() == 2}
    for name, stored in blocks.items():
        packed = PackedLinear.from_gguf(stored.blocks, stored.storage, stored.shape)
        assert torch.equal(packed.unpack(), dense[name]), name


@pytest.mark.parametrize("storage", ["F16", "BF16", "Q5_0", "Q6_K"])
def test_other_types_have_no_blocks(tmp_path: Path, storage: str) -> None:
    assert not open_target(wide_files(storage).write(tmp_path / "model.gguf"), torch.bfloat16).blocks


@needs_native
def test_what_stays_in_blocks_is_not_dequantised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = wide_files("Q4_1")
    name = "blk.0.ffn_down.weight"
    mixed = wide_files("Q6_K")
    files.tensors[name], files.storage[name] = mixed.tensors[name], mixed.storage[name]
    path = files.write(tmp_path / "model.gguf")
    dequantised = []
    dequantise = gguf_reader.dequantise

    def recorded(tensor: GgufTensor, dtype: torch.dtype) -> torch.Tensor:
        dequantised.append(tensor.name)
        return dequantise(tensor, dtype)

    monkeypatch.setattr(gguf_reader, "dequantise", recorded)
    assemble_models(path, None, SETTINGS)
    untied_embedding = "token_embd.weight"
    norms = [name for name, values in files.tensors.items() if values.ndim == 1]
    assert sorted(dequantised) == sorted([name, untied_embedding, *norms])


@pytest.mark.parametrize("storage", ["Q8_0", "Q4_0", "Q4_1"])
@pytest.mark.parametrize("scale", [np.nan, np.inf])
def test_a_scale_that_is_no_number_is_refused_by_name(tmp_path: Path, storage: str, scale: float) -> None:
    files = wide_files(storage)
    spoiled = files.tensors["blk.0.ffn_up.weight"].copy()
    spoiled[3, :2] = np.array([scale], dtype=np.float16).view(np.uint8)
    files.tensors["blk.0.ffn_up.weight"] = spoiled
    blocks = open_target(files.write(tmp_path / "model.gguf"), torch.bfloat16).blocks
    assert "blk.0.ffn_up.weight" in refusal(lambda: blocks["model.layers.0.mlp.up_proj.weight"])


def test_a_file_that_shrinks_after_it_was_opened_is_refused(tmp_path: Path) -> None:
    path = wide_files("F16").write(tmp_path / "model.gguf")
    tensors = open_target(path, torch.bfloat16).tensors
    path.write_bytes(path.read_bytes()[:1000])
    assert "model.gguf" in refusal(lambda: tensors["model.embed_tokens.weight"])
    path.unlink()
    assert "model.gguf" in refusal(lambda: tensors["model.embed_tokens.weight"])


# Kinds of packed matrices of the quantised model below: its head is in Q8_0, the query in Q4_0, gates in Q6_K.
KINDS = {
    "auto": {"Q8_0", "Q4_0", "bf16"},
    "none": {"bf16"},
    "int8": {"Q8_0", "int8"},
    "int4": {"Q4_0", "int4"},
}


@needs_native
@pytest.mark.parametrize("quantization", KINDS)
def test_what_already_is_as_asked_for_is_not_quantised_again(
    tmp_path: Path, quantization: Quantization, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = wide_files("Q6_K")
    for name, storage in (("output.weight", "Q8_0"), ("blk.0.attn_q.weight", "Q4_0")):
        smaller = wide_files(storage)
        files.tensors[name], files.storage[name] = smaller.tensors[name], smaller.storage[name]
    kinds = set()
    make = PackedLinear.__init__

    def recorded(self: PackedLinear, handle: Any, kind: str, out_features: int, in_features: int) -> None:
        kinds.add(kind)
        make(self, handle, kind, out_features, in_features)

    monkeypatch.setattr(PackedLinear, "__init__", recorded)
    assemble_models(files.write(tmp_path / "model.gguf"), None, replace(SETTINGS, quantization=quantization))
    assert kinds == KINDS[quantization]
