"""Packed weights of decoder layers for the native forwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from aquiline.errors import InvalidParameterError
from aquiline.kernels.cpu.extension import native
from aquiline.kernels.cpu.packed import PackedLinear, Packing, Threads
from aquiline.models.gguf_blocks import GgufBlocks
from aquiline.models.model_config import LlamaConfig

if TYPE_CHECKING:
    from aquiline.kernels.cpu import _native

KINDS: dict[str, str] = {"none": "bf16", "auto": "bf16", "int8": "int8", "int4": "int4"}


class EmbeddingRows:
    """Rows that tokens start from, made by `of_tensor` or `of_head`."""

    def __init__(self, handle: _native.EmbeddingTable, table: Tensor | None) -> None:
        self.handle = handle
        self._table = table  # the extension module holds its address only

    @classmethod
    def of_tensor(cls, table: Tensor) -> EmbeddingRows:
        """The rows of a float32 or bfloat16 matrix [vocab, hidden]."""
        table = table.contiguous()
        is_bfloat16 = table.dtype == torch.bfloat16
        return cls(native().plain_embedding(table.data_ptr(), is_bfloat16, table.shape[0], table.shape[1]), table)

    @classmethod
    def of_head(cls, head: PackedLinear) -> EmbeddingRows:
        """The rows of a packed head, which serves both ends of a tied model."""
        return cls(native().packed_embedding(head.handle), None)


@dataclass
class WeightPacker:
    """Packs the matrices of a model, each once.

    Attributes:
        tensors: every tensor of the model by name, float32 or bfloat16.
        kind: how matrices without blocks are packed: bf16, int8 or int4.
        threads: share out the packing.
        blocks: matrices that are packed at the precision of their file instead.
        num_bytes: memory of what was packed up to now.
    """

    tensors: Mapping[str, Tensor]
    kind: str
    threads: Threads
    blocks: Mapping[str, GgufBlocks] = field(default_factory=dict)
    num_bytes: int = 0

    def __post_init__(self) -> None:
        self._packing = Packing.together(self.threads)

    def matrices(self, *names: str) -> list[PackedLinear]:
        """Packed linear layers that read the same rows, in order; one where all are stored alike."""
        keys = [f"{name}.weight" for name in names]
        if not any(key in self.blocks for key in keys):
            weights = [self.tensors[key] for key in keys]
            linear = PackedLinear.from_tensor(_joined(weights), self.kind, self._packing)
            return [self._with_bias(linear, names, [len(weight) for weight in weights])]
        if not all(key in self.blocks for key in keys):
            return [linear for name in names for linear in self.matrices(name)]
        parts = [self.blocks[key] for key in keys]
        if len({part.storage for part in parts}) > 1:
            return [self._from_blocks([part], [name]) for part, name in zip(parts, names, strict=True)]
        return [self._from_blocks(parts, names)]

    def stack(self, *names: str) -> _native.LinearStack:
        """The matrices of `names` side by side."""
        stack: _native.LinearStack = native().LinearStack([part.handle for part in self.matrices(*names)])
        return stack

    def norm(self, name: str) -> Tensor:
        """A norm's weights in float32; the caller keeps them alive until they are copied."""
        return self.tensors[name].float().contiguous()

    def embedding(self, name: str) -> EmbeddingRows:
        """An embedding of its own memory, in the type of its tensor."""
        return EmbeddingRows.of_tensor(self.tensors[f"{name}.weight"])

    def layer(self, prefix: str, has_input_norm: bool = True) -> _native.LayerWeights:
        """A decoder layer; `prefix` is its name with a dot behind it."""
        attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
        input_norm = self.norm(f"{prefix}input_layernorm.weight") if has_input_norm else None
        post_attention_norm = self.norm(f"{prefix}post_attention_layernorm.weight")
        weights: _native.LayerWeights = native().layer_weights(
            self.stack(*(f"{attention}{name}_proj" for name in "qkv")),
            self.stack(f"{attention}o_proj"),
            self.stack(f"{mlp}gate_proj", f"{mlp}up_proj"),
            self.stack(f"{mlp}down_proj"),
            0 if input_norm is None else input_norm.data_ptr(),
            post_attention_norm.data_ptr(),
        )
        return weights

    def _from_blocks(self, parts: Sequence[GgufBlocks], names: Sequence[str]) -> PackedLinear:
        """One layer of matrices of the same storage type."""
        sizes = [part.shape[0] for part in parts]
        rows = parts[0].blocks if len(parts) == 1 else np.concatenate([part.blocks for part in parts])
        linear = PackedLinear.from_gguf(rows, parts[0].storage, (sum(sizes), parts[0].shape[1]), self._packing)
        return self._with_bias(linear, names, sizes)

    def _with_bias(self, linear: PackedLinear, names: Sequence[str], sizes: Sequence[int]) -> PackedLinear:
        self.num_bytes += linear.num_bytes
        biases = [self.tensors.get(f"{name}.bias") for name in names]
        if any(bias is not None for bias in biases):
            linear.set_bias(
                torch.cat(
                    [
                        torch.zeros(size) if bias is None else bias.float()
                        for bias, size in zip(biases, sizes, strict=True)
                    ]
                )
            )
        return linear


def layer_shape(config: LlamaConfig) -> _native.LayerShape:
    """The extension module's view of a decoder layer's sizes."""
    shape: _native.LayerShape = native().layer_shape(
        config.num_heads,
        config.num_kv_heads,
        config.head_dim,
        config.hidden_size,
        config.intermediate_size,
        config.rms_norm_eps,
    )
    return shape


def kind_of(quantization: str) -> str:
    """How a matrix without a precision of its own is packed.

    Raises:
        InvalidParameterError: an unknown quantization.
    """
    if quantization not in KINDS:
        raise InvalidParameterError(f"quantization is {quantization!r}; it can be {', '.join(KINDS)}")
    return KINDS[quantization]


def _joined(weights: list[Tensor]) -> Tensor:
    return weights[0].contiguous() if len(weights) == 1 else torch.cat(weights)
