"""Random drafts of every kind that can be written, in the normal form in which they are read."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from aquiline.models.draft_metadata import AcceptanceFigures, DraftMetadata
from aquiline.models.loading import expected_draft_tensors
from aquiline.models.model_config import EagleConfig, LlamaConfig, RopeConfig, default_aux_layer_ids
from tests.files import random_tensors

SHARES = st.floats(0.0, 1.0)
NAMES = st.text(st.characters(codec="utf-8"), max_size=12)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class WrittenDraft:
    """A draft before it is written, with the target it is for."""

    target: LlamaConfig
    config: EagleConfig
    tensors: dict[str, Tensor]
    metadata: DraftMetadata
    dtype: torch.dtype


@st.composite
def ropes(draw: st.DrawFn, max_position: int) -> RopeConfig:
    """Every kind of rotary scaling that config.json can hold."""
    theta, factor = draw(st.floats(2.0, 1e6)), draw(st.floats(1.0, 32.0))
    original = draw(st.integers(1, max_position))
    kind = draw(st.sampled_from(("default", "linear", "dynamic", "llama3", "yarn")))
    if kind == "linear":
        return RopeConfig(theta, "linear", factor)
    if kind == "dynamic":
        return RopeConfig(theta, "dynamic", factor, max_position)
    if kind == "llama3":
        low = draw(st.floats(0.1, 4.0))
        return RopeConfig(theta, "llama3", factor, original, low, low + draw(st.floats(0.1, 8.0)))
    if kind == "yarn":
        optional = st.none() | st.floats(0.1, 2.0)
        return RopeConfig(
            theta,
            "yarn",
            factor,
            original,
            beta_fast=draw(st.floats(16.0, 64.0)),
            beta_slow=draw(st.floats(0.5, 8.0)),
            attention_factor=draw(optional),
            mscale=draw(optional),
            mscale_all_dim=draw(optional),
            truncate=draw(st.booleans()),
        )
    return RopeConfig(theta)


@st.composite
def layer_configs(draw: st.DrawFn, num_layers: int) -> LlamaConfig:
    """Decoder layers of small sizes."""
    num_kv_heads, max_position = draw(st.integers(1, 3)), draw(st.integers(8, 4096))
    has_bias = draw(st.booleans())
    return LlamaConfig(
        vocab_size=draw(st.integers(4, 40)),
        hidden_size=2 * draw(st.integers(1, 8)),
        intermediate_size=draw(st.integers(1, 20)),
        num_layers=num_layers,
        num_heads=num_kv_heads * draw(st.integers(1, 2)),
        num_kv_heads=num_kv_heads,
        head_dim=2 * draw(st.integers(1, 4)),
        rms_norm_eps=draw(st.floats(1e-7, 1e-3)),
        max_position=max_position,
        rope=draw(ropes(max_position)),
        attention_bias=has_bias,
        attention_output_bias=has_bias,
        mlp_bias=draw(st.booleans()),
    )


@st.composite
def written_drafts(draw: st.DrawFn, layout: str, kind: str = "eagle3") -> WrittenDraft:
    """A draft that `layout` has a place for."""
    layers = draw(layer_configs(draw(st.integers(1, 4))))
    num_target_layers = draw(st.integers(7, 40))
    if kind == "eagle1":
        config = EagleConfig(
            "eagle1",
            layers,
            layers.vocab_size,
            layers.hidden_size,
            has_own_embedding=draw(st.booleans()),
            has_own_head=draw(st.booleans()),
            fc_bias=draw(st.booleans()),
        )
    else:
        config = draw(_eagle3_configs(layers, layout, num_target_layers))
    target = LlamaConfig(
        **{**vars(layers), "num_layers": num_target_layers, "hidden_size": config.target_hidden_size},
    )
    shapes = {name: shape for name, shape in expected_draft_tensors(config).items() if name != "draft_to_target_ids"}
    dtype = draw(st.sampled_from(DTYPES))
    tensors = {name: tensor.to(dtype) for name, tensor in random_tensors(shapes, draw(st.integers(0, 99))).items()}
    ids = draw(st.permutations(range(layers.vocab_size)))[: config.draft_vocab_size]
    tensors["draft_to_target_ids"] = torch.tensor(sorted(ids))
    needs_count = layout == "eagle3"
    metadata = draw(metadatas(num_target_layers if needs_count else draw(st.none() | st.just(num_target_layers))))
    return WrittenDraft(target, config, tensors, metadata, dtype)


@st.composite
def _eagle3_configs(draw: st.DrawFn, layers: LlamaConfig, layout: str, num_target_layers: int) -> EagleConfig:
    is_reduced = draw(st.booleans())
    has_target_width = draw(st.booleans())
    shares_nothing = not has_target_width
    layer_ids = st.sets(st.integers(0, num_target_layers - 1), min_size=1, max_size=5)
    default = default_aux_layer_ids(num_target_layers)
    norm = draw(st.sampled_from(("", "fc_norm", "norm_before_fc")))
    return EagleConfig(
        kind="eagle3",
        layers=layers,
        draft_vocab_size=draw(st.integers(1, layers.vocab_size - 1)) if is_reduced else layers.vocab_size,
        target_hidden_size=layers.hidden_size if has_target_width else layers.hidden_size + 2,
        aux_layer_ids=default if layout == "eagle3" else tuple(sorted(draw(layer_ids))),
        norm_before_residual=draw(st.booleans()),
        has_own_embedding=shares_nothing or draw(st.booleans()),
        has_own_head=shares_nothing or is_reduced or draw(st.booleans()),
        fc_bias=layout != "speculators" and draw(st.booleans()),
        fc_norm=norm == "fc_norm",
        norm_before_fc=norm == "norm_before_fc",
        norm_output=draw(st.booleans()),
    )


@st.composite
def metadatas(draw: st.DrawFn, num_target_layers: int | None) -> DraftMetadata:
    """Origin and worth, from nothing at all to everything."""
    shares = st.lists(SHARES, min_size=1, max_size=4).map(tuple)
    figures = st.builds(AcceptanceFigures, NAMES, st.floats(0.0, 2.0), shares)
    values = st.recursive(st.none() | st.booleans() | st.integers() | NAMES, lambda inner: st.lists(inner, max_size=3))
    return DraftMetadata(
        target=draw(NAMES),
        num_target_layers=num_target_layers,
        acceptance=tuple(draw(st.lists(figures, max_size=2))),
        acceptance_prior=tuple(draw(st.lists(shares, max_size=3))),
        acceptance_prior_sampled=tuple(draw(st.lists(shares, max_size=3))),
        quantization=draw(st.sampled_from(("", "int8", "int4"))),
        provenance=draw(st.dictionaries(NAMES, values, max_size=3)),
    )
