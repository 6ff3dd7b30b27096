"""Where training begins: weights copied from the target, small noise, or a draft that is there already.

Copied: the draft's layers are the target's last ones. Layer 0 of an EAGLE-3 head reads embedding and
hidden state side by side: the embedding's half of its q, k and v is small noise, the other half is the target's. fc is
small noise, plus the identity on the highest captured layer (on the feature for EAGLE-1). Head rows and final norm are
the target's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from aquiline.errors import InvalidParameterError
from aquiline.models.model_config import EagleConfig, LlamaConfig, default_aux_layer_ids
from aquiline.models.tensor_shapes import EMBEDDING, HEAD, ID_MAP, expected_draft_tensors
from aquiline.training.earlier_draft import take_over
from aquiline.training.settings import START_NAMES, DraftSettings

NOISE = 0.02
FC_NOISE = 0.01


def draft_config(settings: DraftSettings, target: LlamaConfig) -> EagleConfig:
    """The shapes of the draft that the settings describe.

    Raises:
        InvalidParameterError: settings that the target cannot meet.
    """
    layers = replace(
        target,
        num_layers=settings.num_layers,
        intermediate_size=settings.intermediate_size or target.intermediate_size,
        tie_word_embeddings=False,
        # config.json of a draft can give biases to all of q, k, v and o, or to none.
        attention_output_bias=target.attention_bias,
    )
    vocab_size = settings.draft_vocab_size or target.vocab_size
    if vocab_size > target.vocab_size:
        raise InvalidParameterError(
            f"draft_vocab_size is {vocab_size}; the target has {target.vocab_size} tokens, and it must not be more"
        )
    if settings.kind == "eagle1":
        return EagleConfig(
            kind="eagle1",
            layers=layers,
            draft_vocab_size=target.vocab_size,
            target_hidden_size=target.hidden_size,
            has_own_head=False,
        )
    return EagleConfig(
        kind="eagle3",
        layers=layers,
        draft_vocab_size=vocab_size,
        target_hidden_size=target.hidden_size,
        aux_layer_ids=_aux_layer_ids(settings, target),
        norm_before_residual=settings.norm_before_residual,
        fc_norm=settings.fc_norm,
        norm_output=settings.norm_output,
    )


def _aux_layer_ids(settings: DraftSettings, target: LlamaConfig) -> tuple[int, ...]:
    ids = settings.aux_layer_ids or default_aux_layer_ids(target.num_layers)
    if list(ids) != sorted(set(ids)) or ids[0] < 0 or ids[-1] >= target.num_layers:
        source = "aux_layer_ids is" if settings.aux_layer_ids else "the default of aux_layer_ids is"
        raise InvalidParameterError(
            f"{source} {ids}; the target has {target.num_layers} layers: give ascending ids from 0 to "
            f"{target.num_layers - 1}"
        )
    return ids


def check_start(start: str) -> None:
    """Refuse, before there is data to begin with, a `DraftSettings.start` that is no folder.

    Raises:
        InvalidParameterError: it is neither the name of a way nor a folder.
    """
    if start not in START_NAMES and not Path(start).is_dir():
        raise InvalidParameterError(f"start is {start!r}, and there is no such folder; name a draft's, copy or random")


def initial_weights(
    config: EagleConfig,
    target: LlamaConfig,
    tensors: Mapping[str, Tensor],
    target_ids: Sequence[int],
    start: str,
    seed: int,
) -> dict[str, Tensor]:
    """Weights of a draft before training, float32, by the names of `expected_draft_tensors` but the id map.

    Args:
        tensors: the target's, by the names of `expected_target_tensors`.
        target_ids: the target's id of every draft id.
        start: as in `DraftSettings`.

    Raises:
        UserError: `start` is a folder without a draft, or with one that this one cannot begin with.
    """
    shapes = {name: shape for name, shape in expected_draft_tensors(config).items() if name != ID_MAP}
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in shapes.items():
        if "norm" in name:
            weights[name] = torch.ones(shape)
        elif name.endswith(".bias"):
            weights[name] = torch.zeros(shape)
        else:
            noise = FC_NOISE if name.startswith("fc.") else NOISE
            weights[name] = noise * torch.randn(shape, generator=generator)
    if start != "random":
        _copy_layers(weights, config, target, tensors)
        width = config.target_hidden_size
        weights["fc.weight"][:, -width:] += torch.eye(width)
        if HEAD in weights:
            source = EMBEDDING if target.tie_word_embeddings else HEAD
            weights[HEAD] = tensors[source][torch.tensor(target_ids, dtype=torch.long)].float()
        if "norm.weight" in weights:
            weights["norm.weight"] = tensors["model.norm.weight"].float()
    if start not in START_NAMES:
        take_over(weights, Path(start), config, target, target_ids)
    return weights


def _copy_layers(
    weights: dict[str, Tensor], config: EagleConfig, target: LlamaConfig, tensors: Mapping[str, Tensor]
) -> None:
    """The target's last layers, as far as shapes agree; the first of them goes to layer 0."""
    first = max(0, target.num_layers - config.num_layers)
    for index in range(config.num_layers):
        prefix, source_prefix = f"layers.{index}.", f"model.layers.{min(first + index, target.num_layers - 1)}."
        for name in [name for name in weights if name.startswith(prefix)]:
            part = name.removeprefix(prefix)
            is_fused = config.kind == "eagle3" and index == 0
            if is_fused and part == "input_layernorm.weight":
                continue
            source_part = "input_layernorm.weight" if part == "hidden_norm.weight" else part
            if f"{source_prefix}{source_part}" not in tensors:
                continue
            source = tensors[f"{source_prefix}{source_part}"].float()
            if is_fused and part.split(".")[1] in ("q_proj", "k_proj", "v_proj") and part.endswith(".weight"):
                weights[name][:, -source.shape[1] :] = source
            elif weights[name].shape == source.shape:
                weights[name] = source.clone()
