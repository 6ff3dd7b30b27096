"""EAGLE heads once more, slow and plain: full causal attention over whole sequences, in float64.

Written from the papers (EAGLE-1, arXiv 2401.15077, section 3; EAGLE-3, arXiv 2503.01840, section 3.1). Nothing is
cached: a chain of guesses is the sequence with the guesses appended, computed anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aquiline.models.model_config import EagleConfig, LlamaConfig


@dataclass(frozen=True)
class OracleOutput:
    """What each pair of a sequence gives."""

    logits: Tensor  # [num_pairs, draft_vocab]
    next_hidden: Tensor  # [num_pairs, hidden] what takes the feature's place one step later


class EagleOracle:
    """A draft head.

    Args:
        target_embedding, target_head: used where the head has none of its own.
    """

    def __init__(
        self, config: EagleConfig, tensors: Mapping[str, Tensor], target_embedding: Tensor, target_head: Tensor
    ) -> None:
        self.config = config
        self.weights = {name: tensor.double() for name, tensor in tensors.items() if tensor.is_floating_point()}
        self.embedding = self.weights.get("embed_tokens.weight", target_embedding.double())
        self.head = self.weights.get("lm_head.weight", target_head.double())

    def fuse(self, features: Tensor) -> Tensor:
        """From target features [num_pairs, feature_size] to the hidden of each pair [num_pairs, hidden]."""
        features = features.double()
        if self.config.kind == "eagle1":
            return features
        size = self.config.target_hidden_size
        parts = [features[:, start : start + size] for start in range(0, features.shape[1], size)]
        if self.config.fc_norm:
            parts = [self.norm(part, f"fc_norm.{number}") for number, part in enumerate(parts)]
        fused = torch.cat(parts, dim=1)
        return self.project(self.norm(fused, "input_norm") if self.config.norm_before_fc else fused, "fc")

    def run(self, hidden: Tensor, token_ids: Sequence[int]) -> OracleOutput:
        """Pair number i: hidden of position i, and the token at position i + 1."""
        embedded = self.embedding[list(token_ids)]
        is_eagle3 = self.config.kind == "eagle3"
        stream = hidden if is_eagle3 else self.project(torch.cat([embedded, hidden], dim=1), "fc")
        for layer in range(self.config.num_layers):
            prefix = f"layers.{layer}"
            if is_eagle3 and layer == 0:
                normal_hidden = self.norm(stream, f"{prefix}.hidden_norm")
                seen = torch.cat([self.norm(embedded, f"{prefix}.input_layernorm"), normal_hidden], dim=1)
                if self.config.norm_before_residual:
                    stream = normal_hidden
            elif layer == 0:
                seen = stream
            else:
                seen = self.norm(stream, f"{prefix}.input_layernorm")
            stream = stream + self.attention(seen, f"{prefix}.self_attn")
            stream = stream + self.mlp(self.norm(stream, f"{prefix}.post_attention_layernorm"), f"{prefix}.mlp")
        if not is_eagle3:
            return OracleOutput(stream @ self.head.T, stream)
        normal = self.norm(stream, "norm")
        return OracleOutput(normal @ self.head.T, normal if self.config.norm_output else stream)

    def norm(self, rows: Tensor, name: str) -> Tensor:
        mean_square = (rows * rows).mean(dim=1, keepdim=True)
        return rows / torch.sqrt(mean_square + self.config.layers.rms_norm_eps) * self.weights[f"{name}.weight"]

    def project(self, rows: Tensor, name: str) -> Tensor:
        bias = self.weights.get(f"{name}.bias")
        product = rows @ self.weights[f"{name}.weight"].T
        return product if bias is None else product + bias

    def mlp(self, rows: Tensor, prefix: str) -> Tensor:
        gate, up = self.project(rows, f"{prefix}.gate_proj"), self.project(rows, f"{prefix}.up_proj")
        return self.project(gate * torch.sigmoid(gate) * up, f"{prefix}.down_proj")

    def attention(self, rows: Tensor, prefix: str) -> Tensor:
        layers = self.config.layers
        query = rotated(self.project(rows, f"{prefix}.q_proj"), layers.num_heads, layers)
        key = rotated(self.project(rows, f"{prefix}.k_proj"), layers.num_kv_heads, layers)
        value = self.project(rows, f"{prefix}.v_proj").unflatten(1, (layers.num_kv_heads, layers.head_dim))
        is_later = torch.ones(len(rows), len(rows)).triu(1).bool()
        mixed = []
        for head in range(layers.num_heads):
            shared = head * layers.num_kv_heads // layers.num_heads
            scores = (query[:, head] @ key[:, shared].conj().T).real / layers.head_dim**0.5
            mixed.append(scores.masked_fill(is_later, -torch.inf).softmax(dim=1) @ value[:, shared])
        return self.project(torch.cat(mixed, dim=1), f"{prefix}.o_proj")


def rotated(rows: Tensor, num_heads: int, layers: LlamaConfig) -> Tensor:
    """Heads as complex numbers [num_rows, num_heads, head_dim / 2], row i turned by i times each frequency."""
    half = layers.head_dim // 2
    heads = rows.unflatten(1, (num_heads, 2, half))
    frequency = layers.rope.theta ** -(torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(len(rows), dtype=torch.float64)[:, None, None] * frequency
    return torch.complex(heads[:, :, 0], heads[:, :, 1]) * torch.polar(torch.ones_like(angle), angle)
