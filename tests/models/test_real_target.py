"""The quickstart model against transformers, whose weights are read from the GGUF file by another way than ours."""

from __future__ import annotations

from typing import Any

import gguf
import pytest
import torch
import transformers
from torch import Tensor

from aquiline.model_store import cached_path
from aquiline.models.llama import LlamaModel
from aquiline.models.loading import load_target
from aquiline.tokenizer import Tokenizer
from tests.models.forward_rows import run_target
from tests.quickstart_model import IS_ON_DISK, PULL_IT, QUICKSTART_MODEL

pytestmark = [pytest.mark.model, pytest.mark.skipif(not IS_ON_DISK, reason=PULL_IT)]

SETTINGS: dict[str, Any] = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "attn_implementation": "eager",
}
PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
AUX_LAYER_IDS = (1, 14, 26)
TEXTS = {
    "one_word": "Eagles",
    "prose": "The golden eagle builds its nest on a cliff, high above the valley. In spring it hunts hares and "
    "marmots; in winter, when the snow is deep, it also takes carrion. A pair keeps the same territory for many years.",
    "code": "def area(width: float, height: float) -> float:\n    return width * height\n\n\nprint(area(3.5, 2))\n" * 4,
}


def module_name(name: str) -> str:
    """transformers' name of a GGUF tensor, e.g. blk.3.attn_q.weight."""
    if name.startswith("blk."):
        _, layer, part, kind = name.split(".")
        return f"model.layers.{layer}.{PARTS[part]}.{kind}"
    return {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}[name]


def halves_order(weight: Tensor, head_dim: int = 64) -> Tensor:
    """Rows of q or k from pairs side by side to halves.

    GGUF row 2 i + half of a head is transformers' row half * head_dim / 2 + i of that head: with four rows, the file's
    0 1 2 3 are rows 0 2 1 3.
    """
    result = torch.empty_like(weight)
    for row in range(weight.shape[0]):
        head, place = divmod(row, head_dim)
        result[head * head_dim + place % 2 * (head_dim // 2) + place // 2] = weight[row]
    return result


@pytest.fixture(scope="module")
def reference() -> transformers.LlamaForCausalLM:
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SETTINGS))
    weights = {}
    for tensor in gguf.GGUFReader(cached_path(QUICKSTART_MODEL)).tensors:
        weight = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
        is_rotated = ".attn_q." in tensor.name or ".attn_k." in tensor.name
        weights[module_name(tensor.name)] = halves_order(weight) if is_rotated else weight
    problems = model.load_state_dict(weights, strict=False)
    assert problems.unexpected_keys == [] and problems.missing_keys in ([], ["lm_head.weight"])
    model.eval()
    return model


@pytest.fixture(scope="module")
def target() -> LlamaModel:
    loaded = load_target(cached_path(QUICKSTART_MODEL), torch.float32)
    return LlamaModel(loaded.config, loaded.tensors, AUX_LAYER_IDS)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_path(cached_path(QUICKSTART_MODEL))


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_logits_and_features_equal_those_of_transformers(
    reference: transformers.LlamaForCausalLM, target: LlamaModel, tokenizer: Tokenizer, text: str
) -> None:
    token_ids = tokenizer.encode(text)
    with torch.no_grad():
        expected = reference(torch.tensor([token_ids]), output_hidden_states=True)
    states = run_target(target, token_ids)
    difference = (target.logits(states.hidden_states) - expected.logits[0]).abs().max()
    assert difference < 1e-3
    features = torch.cat([expected.hidden_states[layer + 1][0] for layer in AUX_LAYER_IDS], dim=-1)
    assert (states.features - features).abs().max() < 1e-4 * features.abs().max()
