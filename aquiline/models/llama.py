"""The target: a Llama decoder that also hands out the hidden states a draft wants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aquiline import kernels
from aquiline.kernels import AttentionInputs
from aquiline.kernels.reference.keyed_step import ReferenceSampling
from aquiline.kernels.sampling_kernels import SamplingKernels
from aquiline.models.decoder_layer import DecoderLayer, LayerRows
from aquiline.models.kv_layer import KVLayer
from aquiline.models.model_config import LlamaConfig
from aquiline.models.rope import RotaryEmbedding


@dataclass(frozen=True)
class ForwardRows:
    """The rows of one forward."""

    token_ids: Tensor  # [num_rows]
    positions: Tensor  # [num_rows]
    slots: Tensor  # [num_rows]
    attention: AttentionInputs


@dataclass(frozen=True)
class TargetStates:
    """What a forward of the target leaves behind."""

    hidden_states: Tensor  # [num_rows, hidden] after the final norm
    features: Tensor  # [num_rows, feature_size] for the draft


class LlamaModel:
    """A Llama decoder over slot-addressed K/V memory.

    Args:
        tensors: as `aquiline.models.loading.load_target` names them.
        aux_layer_ids: layers whose output (residual stream, not normalised) is concatenated to the features, counted
            from 0; empty: the features are the hidden states after the final norm (EAGLE-1).
    """

    def __init__(self, config: LlamaConfig, tensors: Mapping[str, Tensor], aux_layer_ids: Sequence[int] = ()) -> None:
        self.config = config
        self.sampling: SamplingKernels = ReferenceSampling()
        self.embedding = tensors["model.embed_tokens.weight"]
        self.feature_dtype = self.embedding.dtype
        self.device = self.embedding.device
        self.head = self.embedding if config.tie_word_embeddings else tensors["lm_head.weight"]
        self._norm = tensors["model.norm.weight"]
        self._aux_layer_ids = tuple(aux_layer_ids)
        prefixes = [f"model.layers.{index}." for index in range(config.num_layers)]
        self._layers = [DecoderLayer(config, tensors, prefix) for prefix in prefixes]
        self._input_norms = [tensors[f"{prefix}input_layernorm.weight"] for prefix in prefixes]
        self._rotary = RotaryEmbedding(config.rope, config.head_dim, self.embedding.device)

    def forward(self, rows: ForwardRows, memory: Sequence[KVLayer]) -> TargetStates:
        """Run every row through all layers, writing its K and V to its slot in each."""
        shared = LayerRows(*self._rotary.angles(rows.positions), rows.slots, rows.attention)
        hidden = self.embedding[rows.token_ids]
        captured = []
        for index, (layer, norm, kv) in enumerate(zip(self._layers, self._input_norms, memory, strict=True)):
            hidden = hidden + layer.attend(kernels.rms_norm(hidden, norm, self.config.rms_norm_eps), shared, kv)
            hidden = layer.feed_forward(hidden)
            if index in self._aux_layer_ids:
                captured.append(hidden)
        final = kernels.rms_norm(hidden, self._norm, self.config.rms_norm_eps)
        return TargetStates(final, torch.cat(captured, dim=-1) if captured else final)

    def logits(self, hidden_states: Tensor) -> Tensor:
        """Next-token logits, float32 [num_rows, vocab], of hidden states after the final norm."""
        return kernels.linear(hidden_states, self.head).float()
