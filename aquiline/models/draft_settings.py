"""config.json of a draft in each layout that Aquiline writes: the inverse of `draft_reader.py`.

    layout        first layer    captured layers                              made for
    eagle1        layers.0       none: one feature                            SafeAILab EAGLE-1 and 2, vLLM
    eagle3        midlayer       not named, so only the default ones          SafeAILab EAGLE-3, SGLang, vLLM, llama.cpp
    specforge     midlayer       in eagle_config, as outputs                  SpecForge, SGLang
    speculators   layers.0       at top level, as the layers they enter       vLLM, llama.cpp

vLLM reads the numbers of `eagle_config` as layers that are entered, SGLang as outputs; so a draft of other layers than
the default ones works in both only when each gets its own layout. Worked example, outputs of the layers 2, 14 and 26:

    specforge      2   14   26
    speculators    3   15   27
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch

from aquiline.errors import InvalidParameterError, UnsupportedFeatureError
from aquiline.models.draft_metadata import METADATA_KEY, DraftMetadata, metadata_settings
from aquiline.models.draft_reader import AUX_LAYERS
from aquiline.models.model_config import EagleConfig, LlamaConfig, RopeConfig, default_aux_layer_ids

DraftLayout = Literal["eagle1", "eagle3", "specforge", "speculators"]
DRAFT_LAYOUTS: tuple[DraftLayout, ...] = get_args(DraftLayout)
OPTIONS = ("norm_before_residual", "fc_norm", "norm_before_fc", "norm_output")
# What engines draft that find no other number.
SPECULATIVE_TOKENS = 3


def draft_settings(
    config: EagleConfig, metadata: DraftMetadata, layout: DraftLayout, dtype: torch.dtype
) -> dict[str, Any]:
    """What config.json holds.

    Args:
        dtype: in which the weights are stored.

    Raises:
        InvalidParameterError: an unknown layout, or a layout of EAGLE-1 for an EAGLE-3 head or the other way round.
        UnsupportedFeatureError: a setting that the layout has no place for.
    """
    if layout not in DRAFT_LAYOUTS:
        raise InvalidParameterError(f"the layout is {layout!r}; it must be one of {', '.join(DRAFT_LAYOUTS)}")
    if (config.kind == "eagle1") != (layout == "eagle1"):
        fitting = [name for name in DRAFT_LAYOUTS if (name == "eagle1") == (config.kind == "eagle1")]
        raise InvalidParameterError(
            f"this draft is an EAGLE-{config.kind[-1]} head and the layout {layout} is not for those; "
            f"use {' or '.join(fitting)}"
        )
    if config.fc_norm and config.norm_before_fc:
        raise InvalidParameterError("fc_norm and norm_before_fc are both true; a draft has at most one of them")
    about = metadata_settings(metadata)
    settings: dict[str, Any] = {METADATA_KEY: about} if about else {}
    if layout == "eagle1":
        return settings | _eagle1_settings(config, dtype)
    if layout == "speculators":
        return settings | _speculators_settings(config, metadata, dtype)
    settings |= layer_settings(config.layers, dtype)
    settings["architectures"] = ["LlamaForCausalLMEagle3"]
    if config.has_own_head or config.draft_vocab_size < config.layers.vocab_size:
        settings["draft_vocab_size"] = config.draft_vocab_size
    if config.target_hidden_size != config.layers.hidden_size:
        settings["target_hidden_size"] = config.target_hidden_size
    settings |= {name: True for name in OPTIONS if getattr(config, name)}
    if config.fc_bias:
        settings["bias"] = True
    if layout == "specforge":
        settings["eagle_config"] = {AUX_LAYERS: list(config.aux_layer_ids), "use_aux_hidden_state": True}
    else:
        _check_default_layers(config, metadata)
    return settings


def layer_settings(layers: LlamaConfig, dtype: torch.dtype) -> dict[str, Any]:
    """The keys of a Llama config.json; token ids are the target's and left out.

    Raises:
        UnsupportedFeatureError: a setting that config.json has no place for.
    """
    if layers.attention_output_bias != layers.attention_bias:
        raise UnsupportedFeatureError(
            "the draft has biases on only some of q, k, v and o; config.json can say only all or none"
        )
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": layers.vocab_size,
        "hidden_size": layers.hidden_size,
        "intermediate_size": layers.intermediate_size,
        "num_hidden_layers": layers.num_layers,
        "num_attention_heads": layers.num_heads,
        "num_key_value_heads": layers.num_kv_heads,
        "head_dim": layers.head_dim,
        "rms_norm_eps": layers.rms_norm_eps,
        "max_position_embeddings": layers.max_position,
        "attention_bias": layers.attention_bias,
        "mlp_bias": layers.mlp_bias,
        "tie_word_embeddings": False,
        "torch_dtype": str(dtype).removeprefix("torch."),
        **_rope_settings(layers.rope, layers.max_position),
    }


def _eagle1_settings(config: EagleConfig, dtype: torch.dtype) -> dict[str, Any]:
    if config.target_hidden_size != config.layers.hidden_size:
        raise UnsupportedFeatureError(
            f"the draft is {config.layers.hidden_size} wide and its target {config.target_hidden_size}; "
            "the layout eagle1 has no place for two widths"
        )
    return layer_settings(config.layers, dtype) | {"bias": config.fc_bias}


def _speculators_settings(config: EagleConfig, metadata: DraftMetadata, dtype: torch.dtype) -> dict[str, Any]:
    if config.fc_bias:
        raise UnsupportedFeatureError("fc has a bias, which the layout speculators has no place for; use specforge")
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": SPECULATIVE_TOKENS,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.3.0",
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        **{name: getattr(config, name) for name in OPTIONS},
        AUX_LAYERS: [layer_id + 1 for layer_id in config.aux_layer_ids],
        "tie_word_embeddings": False,
        "torch_dtype": str(dtype).removeprefix("torch."),
        "transformer_layer_config": layer_settings(config.layers, dtype),
        "speculators_config": {
            "algorithm": "eagle3",
            "proposal_methods": [proposal],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": metadata.target or None, "architectures": ["LlamaForCausalLM"]},
        },
    }


def _check_default_layers(config: EagleConfig, metadata: DraftMetadata) -> None:
    """The layout names no layers: readers take the default ones of the target they find."""
    if metadata.num_target_layers is None:
        raise InvalidParameterError(
            "the layout eagle3 names no captured layers, so num_target_layers of the metadata must say how many the "
            "target has; or use specforge or speculators"
        )
    default = default_aux_layer_ids(metadata.num_target_layers)
    if config.aux_layer_ids != default:
        raise UnsupportedFeatureError(
            f"the draft reads the outputs of layers {list(config.aux_layer_ids)}; the layout eagle3 has a place only "
            f"for the default ones, {list(default)}: use specforge or speculators"
        )


def _rope_settings(rope: RopeConfig, max_position: int) -> dict[str, Any]:
    if rope.frequency_factors is not None:
        raise UnsupportedFeatureError("rotary frequency factors of a GGUF file have no place in config.json")
    settings: dict[str, Any] = {"rope_theta": rope.theta}
    if rope.kind == "default":
        return settings
    scaling: dict[str, Any] = {"rope_type": rope.kind, "factor": rope.factor}
    if rope.kind == "dynamic" and rope.original_max_position != max_position:
        raise UnsupportedFeatureError(
            f"dynamic rotary scaling from {rope.original_max_position} tokens in a draft of {max_position} has no "
            "place in config.json; they must be equal"
        )
    if rope.kind in ("llama3", "yarn"):
        scaling["original_max_position_embeddings"] = rope.original_max_position
    if rope.kind == "llama3":
        scaling |= {"low_freq_factor": rope.low_freq_factor, "high_freq_factor": rope.high_freq_factor}
    if rope.kind == "yarn":
        names = ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate")
        given = {name: getattr(rope, name) for name in names}
        scaling |= {name: value for name, value in given.items() if value is not None}
    return settings | {"rope_scaling": scaling}
