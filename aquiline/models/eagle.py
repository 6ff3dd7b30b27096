"""Draft models: EAGLE-1/2 (arXiv 2401.15077) and EAGLE-3 (arXiv 2503.01840) heads.

A draft row pairs a hidden state of position i with the embedding of token i + 1; its output proposes token i + 2.

Worked example, committed tokens t0..t3 and root r at position 4, features h0..h3 from the target:

    row in slot        1      2      3      4
    hidden of          h0     h1     h2     h3
    embedding of       t1     t2     t3     r
    rotary position    0      1      2      3
    proposes token     2      3      4      5      (its position)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aquiline import kernels
from aquiline.models.decoder_layer import DecoderLayer, LayerRows, Projection
from aquiline.models.kv_layer import KVLayer
from aquiline.models.llama import ForwardRows
from aquiline.models.model_config import EagleConfig
from aquiline.models.rope import RotaryEmbedding


@dataclass(frozen=True)
class DraftStates:
    """What a draft forward leaves behind."""

    head_inputs: Tensor  # [num_rows, hidden] what the head turns into logits
    hidden_states: Tensor  # [num_rows, hidden] what takes the place of a feature in the next self-fed row


class EagleModel:
    """A draft model over slot-addressed K/V memory.

    Args:
        tensors: as `aquiline.models.loading.load_draft` names them.
        target_embedding, target_head: used where the draft file has none of its own; [vocab, hidden].
    """

    def __init__(
        self, config: EagleConfig, tensors: Mapping[str, Tensor], target_embedding: Tensor, target_head: Tensor
    ) -> None:
        self.config = config
        self.draft_to_target_ids = tensors["draft_to_target_ids"]  # [draft_vocab]
        self.embedding = tensors["embed_tokens.weight"] if config.has_own_embedding else target_embedding
        self.head = tensors["lm_head.weight"] if config.has_own_head else target_head
        self._combine = Projection(tensors, "fc")
        self._feature_norms = [tensors[name] for name in config.feature_norms]
        prefixes = [f"layers.{index}." for index in range(config.num_layers)]
        self._layers = [DecoderLayer(config.layers, tensors, prefix) for prefix in prefixes]
        self._input_norms = [tensors.get(f"{prefix}input_layernorm.weight") for prefix in prefixes]
        self._hidden_norm = tensors.get("layers.0.hidden_norm.weight")
        self._norm = tensors.get("norm.weight")
        self._rotary = RotaryEmbedding(config.layers.rope, config.layers.head_dim, self.embedding.device)

    def combine_features(self, features: Tensor) -> Tensor:
        """Bring target features [num_rows, feature_size] to the draft's width [num_rows, hidden].

        EAGLE-1 takes its single feature as it is.
        """
        if self.config.kind == "eagle1":
            return features
        if self._feature_norms:
            parts = features.chunk(len(self._feature_norms), dim=-1)
            features = torch.cat([self._normalise(p, w) for p, w in zip(parts, self._feature_norms, strict=True)], -1)
        return self._combine(features)

    def forward(self, rows: ForwardRows, hidden_states: Tensor, memory: Sequence[KVLayer]) -> DraftStates:
        """Run draft rows: `rows.token_ids` are the tokens one position ahead of `hidden_states`.

        Args:
            hidden_states: combined features, or `DraftStates.hidden_states` of the parent row; [num_rows, hidden].
        """
        shared = LayerRows(*self._rotary.angles(rows.positions), rows.slots, rows.attention)
        embedded = self.embedding[rows.token_ids]
        if self.config.kind == "eagle1":
            hidden = self._combine(torch.cat((embedded, hidden_states), dim=-1))
            for layer, norm, kv in zip(self._layers, self._input_norms, memory, strict=True):
                hidden = layer.feed_forward(hidden + layer.attend(self._normalise(hidden, norm), shared, kv))
            return DraftStates(hidden, hidden)
        hidden = self._first_layer(embedded, hidden_states, shared, memory[0])
        for layer, norm, kv in zip(self._layers[1:], self._input_norms[1:], memory[1:], strict=True):
            hidden = layer.feed_forward(hidden + layer.attend(self._normalise(hidden, norm), shared, kv))
        head_inputs = self._normalise(hidden, self._norm)
        return DraftStates(head_inputs, head_inputs if self.config.norm_output else hidden)

    def logits(self, head_inputs: Tensor) -> Tensor:
        """Logits over the draft vocabulary, float32 [num_rows, draft_vocab]."""
        return kernels.linear(head_inputs, self.head).float()

    def _first_layer(self, embedded: Tensor, hidden_states: Tensor, shared: LayerRows, memory: KVLayer) -> Tensor:
        """Layer 0 of an EAGLE-3 head: attention reads embedding and hidden side by side (section 3.1)."""
        layer = self._layers[0]
        normalised = self._normalise(hidden_states, self._hidden_norm)
        residual = normalised if self.config.norm_before_residual else hidden_states
        both = torch.cat((self._normalise(embedded, self._input_norms[0]), normalised), dim=-1)
        return layer.feed_forward(residual + layer.attend(both, shared, memory))

    def _normalise(self, rows: Tensor, weight: Tensor | None) -> Tensor:
        """RMSNorm; rows pass unchanged where the model has no norm (layer 0 of an EAGLE-1 head)."""
        return rows if weight is None else kernels.rms_norm(rows, weight, self.config.layers.rms_norm_eps)
