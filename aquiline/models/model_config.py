"""Shapes and constants of target and draft models, whatever file they come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RopeType = Literal["default", "linear", "dynamic", "llama3", "yarn"]


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding.

    Attributes:
        theta: base of the frequencies.
        kind: which scaling applies; the fields below belong to the kinds named beside them.
        factor: linear, dynamic, llama3, yarn.
        original_max_position: context length before scaling; dynamic, llama3, yarn.
        low_freq_factor, high_freq_factor: llama3.
        beta_fast, beta_slow, attention_factor, mscale, mscale_all_dim, truncate: yarn.
        frequency_factors: one divisor per frequency, as GGUF files store llama3 scaling; None divides by nothing.
    """

    theta: float = 10000.0
    kind: RopeType = "default"
    factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    frequency_factors: tuple[float, ...] | None = None


@dataclass(frozen=True)
class LlamaConfig:
    """A Llama model, or the decoder layers of a draft.

    Attributes:
        max_position: context length the model was made for, in tokens.
        attention_bias, attention_output_bias: whether q, k, v / o projections have biases.
        eos_token_ids: ids that end an answer (config and generation config together).
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position: int
    rope: RopeConfig
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class EagleConfig:
    """A draft model.

    Attributes:
        kind: `eagle3` (fuses several target layers) or `eagle1` (EAGLE-1 and EAGLE-2 heads: one feature, the target's
            hidden state after its final norm).
        layers: the decoder layers' own shapes; `layers.vocab_size` is the target's vocabulary.
        draft_vocab_size: rows of the draft's own head; equals the vocabulary where there is no reduced one.
        target_hidden_size: width of one target hidden state.
        aux_layer_ids: target layers whose OUTPUT is captured, counted from 0, low to high; () for eagle1.
            A 30-layer target has the default (1, 14, 26): one less than the numbers of engines that name the layer
            the state enters.
        norm_before_residual: the residual stream starts from the normalised hidden state (eagle3).
        has_own_embedding, has_own_head: the file brings its own; otherwise the target's is used.
        fc_bias: bias of the projection that takes features (and, for eagle1, the embedding) in.
        fc_norm: one RMSNorm per captured layer before fc (EAGLE-3.1).
        norm_before_fc: one RMSNorm over all captured layers together before fc; not beside fc_norm.
        norm_output: the hidden state fed to the next step is the one after the final norm (EAGLE-3.1).
    """

    kind: Literal["eagle1", "eagle3"]
    layers: LlamaConfig
    draft_vocab_size: int
    target_hidden_size: int
    aux_layer_ids: tuple[int, ...] = ()
    norm_before_residual: bool = False
    has_own_embedding: bool = False
    has_own_head: bool = True
    fc_bias: bool = False
    fc_norm: bool = False
    norm_before_fc: bool = False
    norm_output: bool = False

    @property
    def num_layers(self) -> int:
        return self.layers.num_layers

    @property
    def feature_size(self) -> int:
        """Width of what the target hands to the draft per token."""
        return self.target_hidden_size * max(1, len(self.aux_layer_ids))

    @property
    def feature_norms(self) -> tuple[str, ...]:
        """Names of the norms that equal parts of the features go through before fc; () where there is none."""
        if self.norm_before_fc:
            return ("input_norm.weight",)
        return tuple(f"fc_norm.{i}.weight" for i in range(len(self.aux_layer_ids))) if self.fc_norm else ()


def default_aux_layer_ids(num_target_layers: int) -> tuple[int, int, int]:
    """Layers captured when a draft names none, as layer outputs counted from 0 (method: n=32 gives 1, 15, 28)."""
    return (1, num_target_layers // 2 - 1, num_target_layers - 4)
