"""One Llama decoder layer, shared by the target and the draft."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from aquiline import kernels
from aquiline.kernels import AttentionInputs
from aquiline.models.kv_layer import KVLayer
from aquiline.models.model_config import LlamaConfig


@dataclass(frozen=True)
class LayerRows:
    """What the rows of a forward share over all layers."""

    cos: Tensor  # [num_rows, head_dim / 2]
    sin: Tensor  # [num_rows, head_dim / 2]
    slots: Tensor  # [num_rows] where each row's K and V go
    attention: AttentionInputs


class Projection:
    """A linear layer; several of the file's matrices may be stacked in one."""

    def __init__(self, tensors: Mapping[str, Tensor], *names: str) -> None:
        self.weight = _stack([tensors[f"{name}.weight"] for name in names])
        biases = [tensors.get(f"{name}.bias") for name in names]
        self.bias = self._stack_biases(biases, [tensors[f"{name}.weight"].shape[0] for name in names])

    def __call__(self, rows: Tensor) -> Tensor:
        return kernels.linear(rows, self.weight, self.bias)

    def _stack_biases(self, biases: list[Tensor | None], sizes: list[int]) -> Tensor | None:
        if all(bias is None for bias in biases):
            return None
        zero = self.weight.new_zeros
        return _stack([zero(size) if bias is None else bias for bias, size in zip(biases, sizes, strict=True)])


class DecoderLayer:
    """Attention and MLP of one layer.

    Args:
        prefix: name of the layer in `tensors`, with its dot.
    """

    def __init__(self, config: LlamaConfig, tensors: Mapping[str, Tensor], prefix: str) -> None:
        self._config = config
        attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
        self.query_key_value = Projection(tensors, *(f"{attention}{name}_proj" for name in "qkv"))
        self.output = Projection(tensors, f"{attention}o_proj")
        self.gate_up = Projection(tensors, f"{mlp}gate_proj", f"{mlp}up_proj")
        self.down = Projection(tensors, f"{mlp}down_proj")
        self.post_attention_norm = tensors[f"{prefix}post_attention_layernorm.weight"]

    def attend(self, rows: Tensor, shared: LayerRows, memory: KVLayer) -> Tensor:
        """Self-attention of normalised rows [num_rows, width]: writes their K/V, returns [num_rows, hidden]."""
        config = self._config
        sizes = [config.num_heads * config.head_dim] + 2 * [config.num_kv_heads * config.head_dim]
        parts = torch.split(self.query_key_value(rows), sizes, dim=-1)
        query, key, value = (part.view(len(rows), -1, config.head_dim) for part in parts)
        query = kernels.rotate(query, shared.cos, shared.sin)
        memory.write(shared.slots, kernels.rotate(key, shared.cos, shared.sin), value)
        mixed = kernels.attention(
            query, memory.keys, memory.values, shared.attention, memory.key_scales, memory.value_scales
        )
        return self.output(mixed.flatten(1))

    def feed_forward(self, hidden: Tensor) -> Tensor:
        """The second half of the layer: hidden + MLP(norm(hidden))."""
        rows = kernels.rms_norm(hidden, self.post_attention_norm, self._config.rms_norm_eps)
        gate, up = self.gate_up(rows).chunk(2, dim=-1)
        return hidden + self.down(kernels.silu_multiply(gate, up))


def _stack(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
