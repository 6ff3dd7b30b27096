"""A draft model that can be trained: the computation of `aquiline.models.eagle`, differentiable, over whole packs.

The weights that are trained are float32, by the names of `expected_draft_tensors`; a forward uses copies in the dtype
of the run. Embedding, and the head of an EAGLE-1 draft, are the target's and stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from aquiline import kernels
from aquiline.models.eagle import DraftStates
from aquiline.models.model_config import EagleConfig
from aquiline.models.rope import RotaryEmbedding
from aquiline.models.tensor_shapes import HEAD, ID_MAP, expected_draft_tensors
from aquiline.training.fake_quantization import fake_quantized
from aquiline.training.settings import ServedQuantization
from aquiline.training.unrolled_attention import AttentionPlan, unrolled_attention

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class FrozenWeights:
    """What a draft borrows from its target."""

    embedding: Tensor  # [vocab, hidden]
    head: Tensor  # [vocab, hidden]


@dataclass(frozen=True)
class UnrolledRows:
    """The draft rows of one step of training-time test.

    Attributes:
        outputs: rows whose output is wanted, of those given; None: all.
        plan: what all rows see; used by the layers before the last.
        output_plan: what the rows of `outputs` see.
    """

    next_token_ids: Tensor  # [num_rows]
    positions: Tensor  # [num_rows] rotary
    plan: AttentionPlan
    outputs: Tensor | None = None
    output_plan: AttentionPlan | None = None


@dataclass
class LayerKeys:
    """Keys and values of one layer that later steps see: all rows of step 0, and each row's own of later steps."""

    keys: Tensor | None = None  # [num_rows, num_kv_heads, head_dim]
    values: Tensor | None = None  # [num_rows, num_kv_heads, head_dim]
    own_keys: list[Tensor] = field(default_factory=list)  # each [num_queries, num_kv_heads, head_dim]
    own_values: list[Tensor] = field(default_factory=list)

    def keep(self, rows: Tensor) -> None:
        """Drop the own keys of rows that no later step asks for; `rows` counts among the rows of the step before."""
        self.own_keys = [keys[rows] for keys in self.own_keys]
        self.own_values = [values[rows] for values in self.own_values]


def trained_names(config: EagleConfig, freeze_head: bool) -> list[str]:
    """Names of the tensors that training changes."""
    fixed = {ID_MAP, *([HEAD] if freeze_head else [])}
    return [name for name in expected_draft_tensors(config) if name not in fixed]


class DraftNetwork:
    """A trainable draft.

    Args:
        weights: of the names of `expected_draft_tensors(config)` but the id map; float32.
        frozen: in the dtype of the run.
        trained: names of the weights that are trained; the others stay.
        quantization: in which the draft will be served, for its matrices are used as they will be then, those that stay
            too.

    Attributes:
        parameters: the weights that are trained, exact.
        fixed: those that stay, exact.
    """

    def __init__(
        self,
        config: EagleConfig,
        weights: Weights,
        frozen: FrozenWeights,
        trained: list[str],
        quantization: ServedQuantization = "none",
    ) -> None:
        self.config = config
        self.dtype = frozen.embedding.dtype
        self.frozen = frozen
        self.parameters = {name: weights[name].detach().float().clone().requires_grad_() for name in trained}
        self.fixed = {name: tensor.to(self.dtype) for name, tensor in weights.items() if name not in self.parameters}
        self._quantization: ServedQuantization = quantization
        self._used_fixed = {name: self._as_used(tensor) for name, tensor in self.fixed.items()}
        self._rotary = RotaryEmbedding(config.layers.rope, config.layers.head_dim, frozen.embedding.device)

    def used_weights(self) -> dict[str, Tensor]:
        """All weights in the dtype of the run, tied to the parameters for the backward pass."""
        return {name: self._as_used(tensor) for name, tensor in self.parameters.items()} | self._used_fixed

    def _as_used(self, weight: Tensor) -> Tensor:
        return fake_quantized(weight, self._quantization).to(self.dtype)

    def head(self, weights: Weights) -> Tensor:
        """The matrix from head inputs to logits [draft_vocab, hidden]."""
        return weights.get(HEAD, self.frozen.head)

    def new_memory(self) -> list[LayerKeys]:
        """Memory of one unrolling, a part for each layer."""
        return [LayerKeys() for _ in range(self.config.num_layers)]

    def combine_features(self, weights: Weights, features: Tensor) -> Tensor:
        """As `EagleModel.combine_features`: [num_rows, feature_size] to [num_rows, hidden]."""
        if self.config.kind == "eagle1":
            return features
        if self.config.fc_norm:
            parts = features.chunk(len(self.config.aux_layer_ids), dim=-1)
            features = torch.cat(
                [self._normalise(part, weights[f"fc_norm.{i}.weight"]) for i, part in enumerate(parts)], dim=-1
            )
        return _linear(weights, "fc", features)

    def run(self, weights: Weights, rows: UnrolledRows, hidden_states: Tensor, memory: list[LayerKeys]) -> DraftStates:
        """One step: as `EagleModel.forward`, with keys and values in `memory`.

        Args:
            hidden_states: combined features, or `DraftStates.hidden_states` of the step before; [num_rows, hidden].

        Returns:
            States of the rows that `rows.outputs` asks for.
        """
        is_eagle3 = self.config.kind == "eagle3"
        embedded = self.frozen.embedding[rows.next_token_ids]
        if is_eagle3:
            normalised = self._normalise(hidden_states, weights["layers.0.hidden_norm.weight"])
            inputs = torch.cat((self._normalise(embedded, weights["layers.0.input_layernorm.weight"]), normalised), -1)
            hidden = normalised if self.config.norm_before_residual else hidden_states
        else:
            inputs = hidden = _linear(weights, "fc", torch.cat((embedded, hidden_states), dim=-1))
        last = self.config.num_layers - 1
        for index, keys in enumerate(memory):
            if index > 0:
                inputs = self._normalise(hidden, weights[f"layers.{index}.input_layernorm.weight"])
            outputs = rows.outputs if index == last else None
            mixed = self._attend(weights, index, inputs, rows, keys)
            hidden = self._feed_forward(weights, index, (hidden if outputs is None else hidden[outputs]) + mixed)
        if not is_eagle3:
            return DraftStates(hidden, hidden)
        head_inputs = self._normalise(hidden, weights["norm.weight"])
        return DraftStates(head_inputs, head_inputs if self.config.norm_output else hidden)

    def _attend(self, weights: Weights, index: int, inputs: Tensor, rows: UnrolledRows, memory: LayerKeys) -> Tensor:
        """Self-attention of layer `index`; remembers its keys and values."""
        prefix = f"layers.{index}.self_attn."
        is_last = index == self.config.num_layers - 1
        outputs = rows.outputs if is_last else None
        plan = rows.output_plan if outputs is not None else rows.plan
        assert plan is not None
        cos, sin = self._rotary.angles(rows.positions)
        asking = inputs if outputs is None else inputs[outputs]
        angles = (cos, sin) if outputs is None else (cos[outputs], sin[outputs])
        query = kernels.rotate(self._heads(weights, f"{prefix}q_proj", asking), *angles)
        key = kernels.rotate(self._heads(weights, f"{prefix}k_proj", inputs), cos, sin)
        value = self._heads(weights, f"{prefix}v_proj", inputs)
        if memory.keys is None:
            memory.keys, memory.values = key, value
            own_shape = (len(query), 0, *key.shape[1:])
            own_keys, own_values = key.new_empty(own_shape), value.new_empty(own_shape)
        else:
            memory.own_keys.append(key)
            memory.own_values.append(value)
            own_keys, own_values = torch.stack(memory.own_keys, dim=1), torch.stack(memory.own_values, dim=1)
        assert memory.values is not None
        mixed = unrolled_attention(query, memory.keys, memory.values, own_keys, own_values, plan)
        return _linear(weights, f"{prefix}o_proj", mixed.flatten(1))

    def _heads(self, weights: Weights, name: str, rows: Tensor) -> Tensor:
        """A projection split into heads [num_rows, num_heads, head_dim]."""
        return _linear(weights, name, rows).view(len(rows), -1, self.config.layers.head_dim)

    def _feed_forward(self, weights: Weights, index: int, hidden: Tensor) -> Tensor:
        prefix = f"layers.{index}."
        inputs = self._normalise(hidden, weights[f"{prefix}post_attention_layernorm.weight"])
        gate, up = (_linear(weights, f"{prefix}mlp.{name}_proj", inputs) for name in ("gate", "up"))
        return hidden + _linear(weights, f"{prefix}mlp.down_proj", functional.silu(gate) * up)

    def _normalise(self, rows: Tensor, weight: Tensor) -> Tensor:
        return kernels.rms_norm(rows, weight, self.config.layers.rms_norm_eps)


def _linear(weights: Weights, name: str, rows: Tensor) -> Tensor:
    return functional.linear(rows, weights[f"{name}.weight"], weights.get(f"{name}.bias"))
