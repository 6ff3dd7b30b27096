"""The target against transformers, through files that transformers writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from aquiline.models.llama import LlamaModel
from aquiline.models.loading import load_target
from aquiline.models.model_config import default_aux_layer_ids
from tests.files import LAYOUTS, Layout, ModelFiles
from tests.models.forward_rows import run_target
from tests.tiny import tiny_target

TOLERANCE = 1e-4
SIZES: dict[str, Any] = {
    "vocab_size": 67,
    "hidden_size": 42,
    "intermediate_size": 52,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3: dict[str, Any] = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
ROPES: dict[str, dict[str, Any]] = {
    "default_rope": {"rope_type": "default", "rope_theta": 500.0},
    "linear_rope": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0},
    "dynamic_rope": {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 2.0},
    "llama3_rope": {"rope_type": "llama3", "rope_theta": 5000.0} | LLAMA3,
    "yarn_rope": {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 8.0, "original_max_position_embeddings": 32},
}
CASES: dict[str, dict[str, Any]] = {
    "grouped_query": {},
    "one_kv_head_each": {"num_key_value_heads": 6},
    "one_kv_head_for_all": {"num_key_value_heads": 1},
    "head_dim_from_hidden_size": {"hidden_size": 48, "head_dim": None},
    "attention_bias": {"attention_bias": True},
    "mlp_bias": {"mlp_bias": True},
    "tied": {"tie_word_embeddings": True},
    "large_eps": {"rms_norm_eps": 0.1},
    "everything": {
        "attention_bias": True,
        "mlp_bias": True,
        "num_key_value_heads": 3,
        "tie_word_embeddings": True,
        "rope_parameters": ROPES["llama3_rope"],
    },
    **{name: {"rope_parameters": rope} for name, rope in ROPES.items()},
}


@dataclass(frozen=True)
class Expected:
    """What transformers computes for one sequence."""

    logits: Tensor  # [num_tokens, vocab]
    hidden_states: tuple[Tensor, ...]  # embedding, then the output of each layer; the last one after the final norm


def random_model(seed: int = 0, **changes: Any) -> transformers.LlamaForCausalLM:
    """Weights large enough that every part of the model shows in the logits."""
    settings: dict[str, Any] = SIZES | {"attn_implementation": "eager"} | changes
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings))
    model.eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.copy_(1 + 0.3 * noise if "norm" in name else 0.3 * noise)
    return model


def random_tokens(num_tokens: int, vocab_size: int = 67) -> list[int]:
    return torch.randint(0, vocab_size, (num_tokens,), generator=torch.Generator().manual_seed(1)).tolist()


@torch.no_grad()
def expected_of(model: transformers.LlamaForCausalLM, token_ids: list[int]) -> Expected:
    output = model(torch.tensor([token_ids]), output_hidden_states=True)
    return Expected(output.logits[0], tuple(states[0] for states in output.hidden_states))


def load(folder: Path, aux_layer_ids: tuple[int, ...] = ()) -> LlamaModel:
    loaded = load_target(folder, torch.float32)
    return LlamaModel(loaded.config, loaded.tensors, aux_layer_ids)


def save(model: transformers.LlamaForCausalLM, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_those_of_transformers(tmp_path: Path, case: str) -> None:
    model = random_model(**CASES[case])
    token_ids = random_tokens(70)
    expected = expected_of(model, token_ids)
    target = load(save(model, tmp_path))
    logits = target.logits(run_target(target, token_ids).hidden_states)
    assert logits.dtype == torch.float32
    assert (logits - expected.logits).abs().max() < TOLERANCE
    assert expected.logits.std() > 0.1


@pytest.mark.parametrize("case", ["large_eps", *ROPES])
def test_a_setting_that_is_ignored_is_noticed(case: str) -> None:
    """The tensors are the same with and without these settings; only the logits tell."""
    token_ids = random_tokens(70)
    model = random_model(**CASES[case])
    plain = random_model()
    plain.load_state_dict(model.state_dict())
    assert (expected_of(plain, token_ids).logits - expected_of(model, token_ids).logits).abs().max() > 100 * TOLERANCE


@pytest.mark.filterwarnings("ignore:.past_key_values:FutureWarning")
def test_dynamic_rope_beyond_its_length_equals_decoding_token_by_token(tmp_path: Path) -> None:
    model = random_model(max_position_embeddings=32, rope_parameters=ROPES["dynamic_rope"])
    token_ids = random_tokens(50)
    target = load(save(model, tmp_path))
    logits = target.logits(run_target(target, token_ids).hidden_states)
    cache, rows = transformers.DynamicCache(), []
    with torch.no_grad():
        for token_id in token_ids:
            rows.append(model(torch.tensor([[token_id]]), past_key_values=cache, use_cache=True).logits[0])
    assert (logits - torch.cat(rows)).abs().max() < TOLERANCE
    one_shot = expected_of(model, token_ids).logits
    assert (logits - one_shot).abs().max() > 100 * TOLERANCE


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("is_tied", [False, True], ids=["untied", "tied"])
def test_every_file_layout_gives_the_same_logits(tmp_path: Path, layout: Layout, is_tied: bool) -> None:
    model = random_model(tie_word_embeddings=is_tied)
    token_ids = random_tokens(20)
    tensors = {name: weight for name, weight in model.state_dict().items() if name != "lm_head.weight" or not is_tied}
    target = load(ModelFiles(model.config.to_dict(), tensors).write(tmp_path / "model", layout))
    logits = target.logits(run_target(target, token_ids).hidden_states)
    assert (logits - expected_of(model, token_ids).logits).abs().max() < TOLERANCE


def test_shards_of_transformers_give_the_same_logits(tmp_path: Path) -> None:
    model = random_model()
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    target = load(tmp_path)
    token_ids = random_tokens(20)
    logits = target.logits(run_target(target, token_ids).hidden_states)
    assert (logits - expected_of(model, token_ids).logits).abs().max() < TOLERANCE


@pytest.mark.parametrize("aux_layer_ids", [default_aux_layer_ids(8), (0, 3, 6), (5,)], ids=str)
def test_features_are_the_outputs_of_their_layers(tmp_path: Path, aux_layer_ids: tuple[int, ...]) -> None:
    """transformers counts the embedding as state 0, so the output of layer j is its state j + 1."""
    model = random_model(num_hidden_layers=8)
    token_ids = random_tokens(12)
    states = expected_of(model, token_ids).hidden_states
    features = run_target(load(save(model, tmp_path), aux_layer_ids), token_ids).features
    assert features.shape == (12, 42 * len(aux_layer_ids))

    def stacked(shift: int) -> Tensor:
        return torch.cat([states[layer + shift] for layer in aux_layer_ids], dim=-1)

    # What layers put out grows beyond a hundred here, and so does what float32 rounds away.
    largest = stacked(1).abs().max()
    assert (features - stacked(1)).abs().max() / largest < TOLERANCE / 10
    for wrong in (0, 2):
        assert (features - stacked(wrong)).abs().max() / largest > 100 * TOLERANCE


def test_output_of_the_last_layer_is_not_normalised(tmp_path: Path) -> None:
    model = random_model()
    token_ids = random_tokens(12)
    outputs: list[Tensor] = []
    model.model.layers[2].register_forward_hook(lambda layer, inputs, output: outputs.append(output))
    after_norm = expected_of(model, token_ids).hidden_states[3]
    features = run_target(load(save(model, tmp_path), (2,)), token_ids).features
    assert (features - outputs[0].view_as(features)).abs().max() < TOLERANCE
    assert (features - after_norm).abs().max() > 100 * TOLERANCE


def test_feature_of_an_eagle1_head_is_the_state_that_feeds_the_head(tmp_path: Path) -> None:
    model = random_model()
    token_ids = random_tokens(12)
    expected = expected_of(model, token_ids)
    states = run_target(load(save(model, tmp_path)), token_ids)
    assert (states.features - expected.hidden_states[3]).abs().max() < TOLERANCE
    assert (states.features @ model.lm_head.weight.T - expected.logits).abs().max() < TOLERANCE
    assert (states.features - expected.hidden_states[2]).abs().max() > 100 * TOLERANCE


@pytest.mark.parametrize("chunk_sizes", [(1,) * 69, (31, 1, 33), (8, 8), (69,)], ids=["by_token", "a", "b", "c"])
def test_chunks_give_the_same_bits_as_one_shot(chunk_sizes: tuple[int, ...]) -> None:
    target = tiny_target(aux_layer_ids=(0, 2))
    token_ids = random_tokens(70, target.config.vocab_size)
    whole, parts = run_target(target, token_ids), run_target(target, token_ids, chunk_sizes)
    assert torch.equal(whole.features, parts.features)
    assert torch.equal(whole.hidden_states, parts.hidden_states)
    assert torch.equal(target.logits(whole.hidden_states), target.logits(parts.hidden_states))
