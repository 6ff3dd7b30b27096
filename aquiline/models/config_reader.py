"""config.json of a Llama model: what is read, what must have one value, and what may be there without effect."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from aquiline.errors import UnsupportedFeatureError
from aquiline.models.config_fields import ConfigFields, read_json_object
from aquiline.models.model_config import LlamaConfig
from aquiline.models.rope_reader import read_rope

MAX_LAYERS = 10_000

TARGET_ARCHITECTURES = ("LlamaForCausalLM", "LLaMAForCausalLM", "MistralForCausalLM")

# Keys that would change the mathematics, with the only values that leave it as it is built here.
FIXED_VALUES: Mapping[str, Collection[Any]] = {
    "add_cross_attention": (False,),
    "attention_multiplier": (),
    "auto_map": (),
    "compression_config": (),
    "hidden_act": ("silu", "swish"),
    "is_encoder_decoder": (False,),
    "partial_rotary_factor": (1.0,),
    "pretraining_tp": (1,),
    "pruned_heads": ({},),
    "quantization_config": (),
    "rope_interleaved": (False,),
    "sliding_window": (),
    "tie_encoder_decoder": (False,),
    "use_sliding_window": (False,),
}

# Provenance, training, storage and sampling defaults: nothing that a forward pass reads.
HARMLESS_WORDS = """
_attn_implementation _attn_implementation_autoset _name_or_path attention_dropout attn_implementation
bad_words_ids begin_suppress_tokens chunk_size_feed_forward cross_attention_hidden_size decoder_start_token_id
diversity_penalty do_sample dtype early_stopping encoder_no_repeat_ngram_size exponential_decay_length_penalty
finetuning_task forced_bos_token_id forced_eos_token_id gradient_checkpointing id2label initializer_range
is_decoder is_llama_config label2id length_penalty max_length max_window_layers min_length name_or_path
no_repeat_ngram_size num_beam_groups num_beams num_labels num_return_sequences output_attentions
output_hidden_states output_scores
pad_token_id prefix problem_type remove_invalid_values repetition_penalty return_dict return_dict_in_generate
sep_token_id suppress_tokens task_specific_params temperature tf_legacy_loss tokenizer_class top_k top_p
torch_dtype torchscript transformers.js_config transformers_version typical_p unsloth_fixed unsloth_version
use_bfloat16 use_cache
"""
HARMLESS_KEYS = frozenset(HARMLESS_WORDS.split())


def read_target_config(folder: Path) -> LlamaConfig:
    """Settings of the target in a Hugging Face folder.

    Token ids that end an answer are those of config.json and of generation_config.json together.

    Raises:
        ModelFormatError: a key missing, unknown, of another type, out of range, or at odds with another one.
        UnsupportedFeatureError: an architecture or feature that Aquiline does not run.
    """
    values = read_json_object(folder / "config.json")
    fields = ConfigFields(values, str(folder / "config.json"))
    model_type = check_model_type(fields, ("llama", "mistral"))
    check_architectures(fields, TARGET_ARCHITECTURES)
    if model_type == "mistral":
        _check_mistral(values, fields)
    config = read_llama_fields(fields)
    eos_token_ids = read_token_ids(fields, "eos_token_id", config.vocab_size)
    bos_token_ids = read_token_ids(fields, "bos_token_id", config.vocab_size)
    fields.refuse_unread(HARMLESS_KEYS)
    generation_path = folder / "generation_config.json"
    if generation_path.exists():
        generation = ConfigFields(read_json_object(generation_path), str(generation_path))
        eos_token_ids += read_token_ids(generation, "eos_token_id", config.vocab_size)
    return replace(
        config,
        bos_token_id=bos_token_ids[0] if bos_token_ids else None,
        eos_token_ids=tuple(dict.fromkeys(eos_token_ids)),
    )


def read_llama_fields(fields: ConfigFields) -> LlamaConfig:
    """Sizes and constants of Llama layers, for targets and drafts alike; token ids are left out.

    In this layout `attention_bias` covers the q, k, v and o projections.
    """
    fields.demand(FIXED_VALUES)
    num_layers = fields.integer("num_hidden_layers", highest=MAX_LAYERS)
    layer_types = fields.texts("layer_types")
    if layer_types and set(layer_types) != {"full_attention"}:
        raise UnsupportedFeatureError(f"{fields.source}: layer_types names others than full_attention, which runs here")
    hidden_size, num_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    num_kv_heads = fields.integer("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise fields.wrong("num_key_value_heads", f"it must divide num_attention_heads, which is {num_heads}")
    if not fields.has("head_dim") and hidden_size % num_heads:
        raise fields.wrong(
            "num_attention_heads", f"without head_dim it must divide hidden_size, which is {hidden_size}"
        )
    head_dim = fields.integer("head_dim", max(1, hidden_size // num_heads))
    if head_dim % 2:
        raise fields.wrong("head_dim", f"heads of width {head_dim} cannot be rotated; the width must be even")
    max_position = fields.integer("max_position_embeddings")
    attention_bias = fields.boolean("attention_bias", False)
    return LlamaConfig(
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=fields.number("rms_norm_eps"),
        max_position=max_position,
        rope=read_rope(fields, max_position),
        tie_word_embeddings=fields.boolean("tie_word_embeddings", False),
        attention_bias=attention_bias,
        attention_output_bias=attention_bias,
        mlp_bias=fields.boolean("mlp_bias", False),
    )


def read_token_ids(fields: ConfigFields, name: str, vocab_size: int) -> tuple[int, ...]:
    """Token ids of a key that holds one, a list, or none; each must be in the vocabulary."""
    token_ids = fields.integers(name)
    if any(not 0 <= token_id < vocab_size for token_id in token_ids):
        raise fields.wrong(name, f"token ids go from 0 to {vocab_size - 1}")
    return token_ids


def check_model_type(fields: ConfigFields, allowed: tuple[str, ...]) -> str:
    """The model type; UnsupportedFeatureError when it is not among `allowed`."""
    rule = f"Aquiline runs model_type {' and '.join(allowed)}"
    if not fields.has("model_type"):
        raise fields.wrong("model_type", rule)
    model_type = fields.text("model_type")
    if model_type not in allowed:
        raise UnsupportedFeatureError(f"{fields.source}: model_type is {model_type!r}; {rule}")
    return model_type


def check_architectures(fields: ConfigFields, allowed: tuple[str, ...]) -> None:
    """Raise UnsupportedFeatureError when an architecture is named that is not among `allowed`."""
    unknown = [name for name in fields.texts("architectures") if name not in allowed]
    if unknown:
        raise UnsupportedFeatureError(
            f"{fields.source}: architectures names {', '.join(unknown)}; Aquiline runs {', '.join(allowed)}"
        )


def _check_mistral(values: Mapping[str, Any], fields: ConfigFields) -> None:
    """Refuse what a mistral model means and a Llama model does not; a key left out has another meaning there."""
    for name, meaning in (("sliding_window", 4096), ("num_key_value_heads", 8)):
        if name not in values:
            raise fields.wrong(name, f"a mistral model without it means {meaning}, so it must be spelt out")
    fields.demand({"attention_bias": (False,), "mlp_bias": (False,)})
