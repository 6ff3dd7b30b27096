"""Where a draft begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from aquiline.errors import InvalidParameterError, ModelNotFoundError
from aquiline.models.draft_metadata import DraftMetadata
from aquiline.models.model_config import LlamaConfig, default_aux_layer_ids
from aquiline.models.tensor_shapes import ID_MAP, expected_draft_tensors, expected_target_tensors
from aquiline.training.export import export_draft, layout_for
from aquiline.training.settings import DraftSettings
from aquiline.training.start import check_start, draft_config, initial_weights
from tests.tiny import random_tensors, tiny_llama_config
from tests.training.toy_run import AUX_LAYER_IDS, DRAFT_IDS

EAGLE3 = DraftSettings(draft_vocab_size=len(DRAFT_IDS), aux_layer_ids=AUX_LAYER_IDS)
BIASED = tiny_llama_config(attention_bias=True, mlp_bias=True, num_layers=6)
DRAFTS = {
    "eagle3": EAGLE3,
    "four layers": replace(EAGLE3, num_layers=4, fc_norm=True),
    "narrow": replace(EAGLE3, intermediate_size=8),
    "eagle1": DraftSettings("eagle1", 2, None),
}


@pytest.mark.parametrize("start", ["copy", "random"])
@pytest.mark.parametrize("target", [tiny_llama_config(), BIASED], ids=["plain", "biased"])
@pytest.mark.parametrize("draft", DRAFTS.values(), ids=DRAFTS)
def test_every_weight_is_there_in_its_shape(draft: DraftSettings, target: object, start: str) -> None:
    config = draft_config(draft, target)  # type: ignore[arg-type]
    tensors = random_tensors(expected_target_tensors(target), seed=0)  # type: ignore[arg-type]
    ids = DRAFT_IDS if draft.kind == "eagle3" else range(61)
    weights = initial_weights(config, target, tensors, ids, start, seed=0)  # type: ignore[arg-type]
    shapes = {name: shape for name, shape in expected_draft_tensors(config).items() if name != ID_MAP}
    assert {name: tuple(tensor.shape) for name, tensor in weights.items()} == shapes
    again = initial_weights(config, target, tensors, ids, start, seed=0)  # type: ignore[arg-type]
    assert all(torch.equal(weights[name], again[name]) for name in weights)


def test_layers_head_and_norm_are_the_targets_last_ones() -> None:
    target = tiny_llama_config()
    tensors = random_tensors(expected_target_tensors(target), seed=0)
    config = draft_config(replace(EAGLE3, num_layers=2), target)
    weights = initial_weights(config, target, tensors, DRAFT_IDS, "copy", seed=0)
    hidden = target.hidden_size
    for name in ("q_proj", "k_proj", "v_proj"):
        fused = weights[f"layers.0.self_attn.{name}.weight"]
        assert torch.equal(fused[:, hidden:], tensors[f"model.layers.2.self_attn.{name}.weight"])
        assert 0 < float(fused[:, :hidden].std()) < 0.05
    assert torch.equal(weights["layers.0.hidden_norm.weight"], tensors["model.layers.2.input_layernorm.weight"])
    assert torch.equal(weights["layers.0.input_layernorm.weight"], torch.ones(hidden))
    for part in ("self_attn.q_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm"):
        assert torch.equal(weights[f"layers.1.{part}.weight"], tensors[f"model.layers.3.{part}.weight"])
    assert torch.equal(weights["lm_head.weight"], tensors["lm_head.weight"][list(DRAFT_IDS)])
    assert torch.equal(weights["norm.weight"], tensors["model.norm.weight"])
    high = weights["fc.weight"][:, -hidden:]
    assert float((high - torch.eye(hidden)).abs().max()) < 0.1


def exported(folder: Path, target: LlamaConfig, ids: Sequence[int], seed: int) -> dict[str, Tensor]:
    """A draft in a folder, and what it holds."""
    tensors = random_tensors(expected_target_tensors(target), seed=0)
    config = draft_config(replace(EAGLE3, draft_vocab_size=len(ids)), target)
    weights = initial_weights(config, target, tensors, ids, "random", seed)
    export_draft(folder, config, weights, ids, DraftMetadata())
    return {name: tensor.bfloat16().float() for name, tensor in weights.items()}


def test_a_run_may_go_on_from_a_draft_with_another_vocabulary(tmp_path: Path) -> None:
    target = tiny_llama_config()
    tensors = random_tensors(expected_target_tensors(target), seed=0)
    old_ids, ids = (0, 3, 5, 9), (3, 4, 9, 60)
    old = exported(tmp_path / "draft", target, old_ids, seed=9)
    config = draft_config(replace(EAGLE3, draft_vocab_size=4), target)
    weights = initial_weights(config, target, tensors, ids, str(tmp_path / "draft"), seed=0)
    for name in set(weights) - {"lm_head.weight"}:
        assert torch.equal(weights[name], old[name])
    head = weights["lm_head.weight"]
    assert torch.equal(head[[0, 2]], old["lm_head.weight"][[1, 3]])
    assert bool(head.isfinite().all())


def test_new_tokens_get_the_rows_that_training_would_have_given_them(tmp_path: Path) -> None:
    target = replace(tiny_llama_config(), vocab_size=400)
    tensors = random_tensors(expected_target_tensors(target), seed=0)
    generator = torch.Generator().manual_seed(1)
    turn = 0.8 * torch.linalg.qr(torch.randn((target.hidden_size,) * 2, generator=generator)).Q
    trained = tensors["lm_head.weight"].float() @ turn + 0.1
    old_ids, ids = tuple(range(300)), tuple(range(100, 400))
    config = draft_config(replace(EAGLE3, draft_vocab_size=300), target)
    weights = initial_weights(config, target, tensors, old_ids, "copy", seed=0)
    weights["lm_head.weight"] = trained[list(old_ids)]
    export_draft(tmp_path / "draft", config, weights, old_ids, DraftMetadata())
    head = initial_weights(config, target, tensors, ids, str(tmp_path / "draft"), seed=0)["lm_head.weight"]
    off = (head - trained[list(ids)])[200:].norm() / (trained[300:] - tensors["lm_head.weight"][300:].float()).norm()
    assert float(off) < 0.2


def test_a_draft_of_other_shapes_is_no_start(tmp_path: Path) -> None:
    target = tiny_llama_config()
    tensors = random_tensors(expected_target_tensors(target), seed=0)
    exported(tmp_path / "draft", target, DRAFT_IDS, seed=9)
    others = {"num_layers is 1, and this run's is 2": {"num_layers": 2}, "fc_norm is False": {"fc_norm": True}}
    for message, changes in others.items():
        config = draft_config(replace(EAGLE3, **changes), target)  # type: ignore[arg-type]
        with pytest.raises(InvalidParameterError, match=message):
            initial_weights(config, target, tensors, DRAFT_IDS, str(tmp_path / "draft"), seed=0)
    with pytest.raises(ModelNotFoundError, match="nowhere"):
        initial_weights(config, target, tensors, DRAFT_IDS, str(tmp_path / "nowhere"), seed=0)


def test_settings_that_the_target_cannot_meet_are_refused() -> None:
    target = tiny_llama_config()
    with pytest.raises(InvalidParameterError, match="draft_vocab_size is 62; the target has 61 tokens"):
        draft_config(replace(EAGLE3, draft_vocab_size=62), target)
    with pytest.raises(InvalidParameterError, match=r"aux_layer_ids is \(1, 4\); the target has 4 layers"):
        draft_config(replace(EAGLE3, aux_layer_ids=(1, 4)), target)
    with pytest.raises(InvalidParameterError, match="the default of aux_layer_ids is"):
        draft_config(replace(EAGLE3, aux_layer_ids=None), target)


def test_the_layout_is_the_one_that_most_engines_read() -> None:
    target = tiny_llama_config(num_layers=12)
    default = draft_config(replace(EAGLE3, aux_layer_ids=None), target)
    assert default.aux_layer_ids == default_aux_layer_ids(12)
    assert layout_for(default, 12) == "eagle3"
    assert layout_for(replace(default, norm_output=True), 12) == "eagle3"
    other = replace(default, aux_layer_ids=(0, 1, 2))
    assert layout_for(other, 12) == layout_for(default, 13) == layout_for(default, None) == "speculators"
    assert layout_for(replace(other, fc_bias=True), 12) == "specforge"
    assert layout_for(draft_config(DRAFTS["eagle1"], target), 12) == "eagle1"


def test_a_start_that_is_not_there_is_refused_before_data_is_written(tmp_path: Path) -> None:
    for start in ("copy", "random", str(tmp_path)):
        check_start(start)
    with pytest.raises(InvalidParameterError, match="there is no such folder"):
        check_start(str(tmp_path / "none"))
