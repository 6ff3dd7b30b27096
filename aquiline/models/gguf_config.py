"""Metadata of a GGUF file with a Llama model: what is read, and what is refused.

Keys under `llama.` describe the model, and each must be known. Keys in the name spaces of other makers are notes that
no engine reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aquiline.errors import ModelFormatError, UnsupportedFeatureError
from aquiline.models.config_fields import ConfigFields
from aquiline.models.config_reader import MAX_LAYERS, read_token_ids
from aquiline.models.model_config import LlamaConfig, RopeConfig
from aquiline.models.rope_reader import DEFAULT_THETA

ARCHITECTURE = "llama"
TOKENS = "tokenizer.ggml.tokens"
END_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")

# Name spaces that an engine reads, besides the architecture's own: all of theirs is known or refused.
REFUSED_PREFIXES = ("adapter.", "clip.", "split.")

FIXED_VALUES: Mapping[str, tuple[Any, ...]] = {
    "general.type": ("model",),
    "split.count": (0, 1),
    "llama.attention.causal": (True,),
    "llama.attention.sliding_window": (0,),
    "llama.expert_count": (0,),
    "llama.expert_used_count": (0,),
    "llama.rope.scaling.yarn_attn_factor": (1.0,),
    "llama.rope.scaling.yarn_ext_factor": (1.0,),
    "llama.rope.scaling.yarn_log_multiplier": (0.0,),
    "llama.use_parallel_residual": (False,),
}

HARMLESS_KEYS = frozenset(
    {"split.no", "split.tensors.count", "llama.rope.scaling.finetuned", "llama.tensor_data_layout"}
)


@dataclass(frozen=True)
class GgufLayout:
    """What the tensors of a GGUF file say about the model, where the metadata does not.

    Attributes:
        vocab_size: rows of the embedding.
        num_tokens: entries of the tokenizer's list; None where the file has no tokenizer.
        frequency_factors: divisors of the rotary frequencies, as llama3 scaling is stored; None where there are none.
    """

    vocab_size: int
    num_tokens: int | None
    has_head: bool
    has_attention_bias: bool
    has_attention_output_bias: bool
    has_mlp_bias: bool
    frequency_factors: tuple[float, ...] | None


def check_architecture(metadata: Mapping[str, Any], source: str) -> None:
    """Raise UnsupportedFeatureError when the file is not one whole Llama model."""
    fields = ConfigFields(metadata, source)
    fields.text("general.architecture")
    fields.demand({"general.architecture": (ARCHITECTURE,)})
    fields.demand(FIXED_VALUES)


def read_gguf_config(metadata: Mapping[str, Any], layout: GgufLayout, source: str) -> LlamaConfig:
    """Settings of the model.

    Args:
        metadata: the keys and values of the file.

    Raises:
        ModelFormatError: a key missing, unknown, of another type, out of range, or at odds with the tensors.
        UnsupportedFeatureError: experts, sliding windows and other things that Aquiline does not run.
    """
    fields = ConfigFields({key: value for key, value in metadata.items() if _has_meaning(key)}, source)
    fields.demand(FIXED_VALUES)
    _check_vocab_size(fields, layout)
    hidden_size = fields.integer("llama.embedding_length")
    num_layers = fields.integer("llama.block_count", highest=MAX_LAYERS)
    num_heads = _read_uniform(fields, "llama.attention.head_count")
    num_kv_heads = _read_uniform(fields, "llama.attention.head_count_kv", num_heads)
    if num_heads % num_kv_heads:
        raise fields.wrong("llama.attention.head_count_kv", f"it must divide the head count, which is {num_heads}")
    max_position = fields.integer("llama.context_length")
    head_dim = _read_head_dim(fields, hidden_size, num_heads)
    end_ids = [token_id for key in END_KEYS for token_id in read_token_ids(fields, key, layout.vocab_size)]
    bos_ids = read_token_ids(fields, "tokenizer.ggml.bos_token_id", layout.vocab_size)
    config = LlamaConfig(
        vocab_size=layout.vocab_size,
        hidden_size=hidden_size,
        intermediate_size=_read_uniform(fields, "llama.feed_forward_length"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=fields.number("llama.attention.layer_norm_rms_epsilon"),
        max_position=max_position,
        rope=_read_rope(fields, max_position, head_dim, layout.frequency_factors),
        tie_word_embeddings=not layout.has_head,
        attention_bias=layout.has_attention_bias,
        attention_output_bias=layout.has_attention_output_bias,
        mlp_bias=layout.has_mlp_bias,
        bos_token_id=bos_ids[0] if bos_ids else None,
        eos_token_ids=tuple(dict.fromkeys(end_ids)),
    )
    fields.refuse_unread(HARMLESS_KEYS)
    return config


def _has_meaning(key: str) -> bool:
    names_token = key in END_KEYS or key == "tokenizer.ggml.bos_token_id"
    return names_token or key == "general.type" or key.startswith((f"{ARCHITECTURE}.", *REFUSED_PREFIXES))


def _check_vocab_size(fields: ConfigFields, layout: GgufLayout) -> None:
    if fields.integer("llama.vocab_size", layout.vocab_size) != layout.vocab_size:
        raise fields.wrong("llama.vocab_size", f"token_embd.weight has {layout.vocab_size} rows; they must agree")
    if layout.num_tokens not in (None, layout.vocab_size):
        raise ModelFormatError(
            f"{fields.source}: {TOKENS} lists {layout.num_tokens} tokens, and token_embd.weight has "
            f"{layout.vocab_size} rows; they must agree"
        )


def _read_uniform(fields: ConfigFields, name: str, default: int | None = None) -> int:
    """An integer that may be given once for each layer, where all must agree."""
    value = fields.value(name)
    if isinstance(value, list) and value:
        if len(set(value)) > 1:
            raise UnsupportedFeatureError(f"{fields.source}: {name} differs by layer; Aquiline runs one for all layers")
        return ConfigFields({name: value[0]}, fields.source).integer(name)
    return fields.integer(name, default)


def _read_head_dim(fields: ConfigFields, hidden_size: int, num_heads: int) -> int:
    name = "llama.attention.key_length"
    if not fields.has(name) and hidden_size % num_heads:
        raise fields.wrong(name, f"it is needed where {num_heads} heads do not divide the width {hidden_size}")
    head_dim = fields.integer(name, hidden_size // num_heads, lowest=2)
    if head_dim % 2:
        raise fields.wrong(name, f"heads of width {head_dim} cannot be rotated; the width must be even")
    for equal_name in ("llama.attention.value_length", "llama.rope.dimension_count"):
        if fields.integer(equal_name, head_dim) != head_dim:
            raise UnsupportedFeatureError(
                f"{fields.source}: {equal_name} is {fields.value(equal_name)} and {name} (or the share of a head) "
                f"{head_dim}; Aquiline runs only models where they are equal"
            )
    return head_dim


def _read_rope(
    fields: ConfigFields, max_position: int, head_dim: int, frequency_factors: tuple[float, ...] | None
) -> RopeConfig:
    """The rotary settings; as in llama.cpp, a scaling factor without a scaling type is linear."""
    prefix = "llama.rope.scaling."
    theta = fields.number("llama.rope.freq_base", DEFAULT_THETA, above=1.0)
    old_factor = fields.optional_number("llama.rope.scale_linear")
    factor = fields.number(f"{prefix}factor", old_factor or 1.0)
    kind = fields.text(f"{prefix}type", "linear" if factor != 1.0 else "none")
    fields.demand({f"{prefix}type": ("none", "linear", "yarn")})
    if kind != "none" and factor < 1:
        raise fields.wrong(f"{prefix}factor", "it must be at least 1")
    if kind != "none" and frequency_factors is not None:
        raise UnsupportedFeatureError(
            f"{fields.source}: rope_freqs.weight together with {prefix}type {kind}; Aquiline runs only one of them"
        )
    if frequency_factors is not None and len(frequency_factors) != head_dim // 2:
        raise fields.wrong(
            "rope_freqs.weight", f"it has {len(frequency_factors)} factors; {head_dim // 2} are needed, one a frequency"
        )
    original_length = fields.integer(f"{prefix}original_context_length", max_position)
    beta_fast = fields.number(f"{prefix}yarn_beta_fast", 32.0)
    beta_slow = fields.number(f"{prefix}yarn_beta_slow", 1.0)
    fields.demand({f"{prefix}attn_factor": (1.0,)})
    if kind == "linear":
        return RopeConfig(theta=theta, kind="linear", factor=factor)
    if kind == "yarn":
        return RopeConfig(
            theta=theta,
            kind="yarn",
            factor=factor,
            original_max_position=original_length,
            beta_fast=beta_fast,
            beta_slow=beta_slow,
        )
    return RopeConfig(theta=theta, frequency_factors=frequency_factors)
