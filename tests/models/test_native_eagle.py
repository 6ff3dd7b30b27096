"""Native drafts: against the reference, and bit for bit against itself in chunks and with other threads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from aquiline.kernels import cpu
from aquiline.kernels.cpu import Threads
from aquiline.kernels.cpu.extension import native
from aquiline.models.loading import expected_draft_tensors
from aquiline.models.model_config import EagleConfig
from aquiline.models.native_weights import EmbeddingRows, WeightPacker, layer_shape
from tests.models.native_models import (
    draft_pair,
    error,
    memory_of,
    packable_config,
    sequence_rows,
    target_pair,
    target_tensors,
)
from tests.tiny import random_tensors, tiny_eagle_config

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason=cpu.why_not())
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "norm_before_residual": {"norm_before_residual": True},
    "fc_norm": {"fc_norm": True, "norm_output": True},
    "norm_before_fc": {"norm_before_fc": True},
    "own_embedding": {"has_own_embedding": True},
    "target_head": {"has_own_head": False, "draft_vocab_size": 61},
    "fc_bias": {"fc_bias": True},
    "eagle1": {"kind": "eagle1"},
    "eagle1_with_bias": {"kind": "eagle1", "fc_bias": True},
    "eagle1_with_own_embedding": {"kind": "eagle1", "has_own_embedding": True},
}

TOLERANCE = 0.01


def random_features(num_rows: int, width: int) -> Tensor:
    return torch.randn(num_rows, width, generator=torch.Generator().manual_seed(3))


def random_tokens(count: int) -> Tensor:
    return torch.randint(0, 61, (count,), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("num_layers", [1, 3])
def test_states_and_logits_are_those_of_the_reference(case: str, num_layers: int) -> None:
    targets = target_pair(packable_config())
    config = tiny_eagle_config(targets[0].config, **CASES[case])
    config = replace(config, layers=replace(config.layers, num_layers=num_layers, intermediate_size=64))
    reference, draft = draft_pair(config, targets)
    features = random_features(40, config.feature_size)
    combined, wanted = draft.combine_features(features), reference.combine_features(features)
    assert error(combined, wanted) < TOLERANCE
    rows = sequence_rows(random_tokens(40), 0, torch.arange(64))
    states = draft.forward(rows, wanted, memory_of(config.layers, 64))
    expected = reference.forward(rows, wanted, memory_of(config.layers, 64))
    for mine, theirs in (
        (states.hidden_states, expected.hidden_states),
        (states.head_inputs, expected.head_inputs),
        (draft.logits(states.head_inputs), reference.logits(expected.head_inputs)),
    ):
        assert mine.shape == theirs.shape
        assert error(mine, theirs) < TOLERANCE


@pytest.mark.parametrize("kind", ["eagle3", "eagle1"])
def test_features_may_be_bfloat16(kind: str) -> None:
    targets = target_pair(packable_config())
    config = tiny_eagle_config(targets[0].config, kind)
    config = replace(config, layers=replace(config.layers, intermediate_size=64))
    _, draft = draft_pair(config, targets)
    features = random_features(5, config.feature_size).bfloat16()
    assert torch.equal(draft.combine_features(features), draft.combine_features(features.float()))


@pytest.mark.parametrize("kind", ["eagle3", "eagle1"])
@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_chunks_and_threads_change_nothing(num_threads: int, kind: str) -> None:
    config = tiny_eagle_config(packable_config(), kind)
    config = replace(config, layers=replace(config.layers, num_layers=2, intermediate_size=64))
    whole_draft = draft_pair(config, target_pair(packable_config()))[1]
    draft = draft_pair(config, target_pair(packable_config(), num_threads=num_threads))[1]
    hidden, token_ids = whole_draft.combine_features(random_features(70, config.feature_size)), random_tokens(70)
    table = torch.arange(96)
    whole = whole_draft.forward(sequence_rows(token_ids, 0, table), hidden, memory_of(config.layers, 96))
    memory, first = memory_of(config.layers, 96), 0
    for size in (1, 31, 33, 5):
        part = slice(first, first + size)
        states = draft.forward(sequence_rows(token_ids[part], first, table), hidden[part].clone(), memory)
        assert torch.equal(states.head_inputs, whole.head_inputs[part])
        assert torch.equal(states.hidden_states, whole.hidden_states[part])
        first += size


def eagle1_parts(config: EagleConfig, tensors: dict[str, Tensor]) -> list[Any]:
    """The arguments of a native EAGLE-1 forward behind the number of threads."""
    packer = WeightPacker(tensors, "bf16", Threads(1))
    layers = [packer.layer(f"layers.{index}.", has_input_norm=index > 0) for index in range(config.num_layers)]
    embedding = EmbeddingRows.of_tensor(tensors["embed_tokens.weight"])
    return [layer_shape(config.layers), embedding.handle, packer.stack("fc"), layers]


def test_parts_of_an_eagle1_head_that_do_not_fit_are_refused() -> None:
    config = tiny_eagle_config(packable_config(), "eagle1", has_own_embedding=True)
    config = replace(config, layers=replace(config.layers, num_layers=2, intermediate_size=64))
    tensors = random_tensors(expected_draft_tensors(config), 1)
    shape, embedding, combine, layers = eagle1_parts(config, tensors)
    new, threads = native().Eagle1Forward, Threads(1).handle
    assert new(threads, shape, embedding, combine, layers).feature_size == config.feature_size
    narrow = WeightPacker({"fc.weight": torch.zeros(96, 96)}, "bf16", Threads(1)).stack("fc")
    with pytest.raises(ValueError, match="as wide as the hidden states"):
        new(threads, shape, embedding, narrow, layers)
    with pytest.raises(ValueError, match="at least one layer"):
        new(threads, shape, embedding, combine, [])
    with pytest.raises(ValueError, match="input norm"):
        new(threads, shape, embedding, combine, [layers[0], layers[0]])


def test_only_an_eagle1_head_does_without_a_norm() -> None:
    config = packable_config()
    packer = WeightPacker(target_tensors(config), "bf16", Threads(1))
    embedding = EmbeddingRows.of_tensor(torch.zeros(config.vocab_size, config.hidden_size))
    layers = [packer.layer("model.layers.0.", has_input_norm=False)]
    norm = torch.ones(config.hidden_size)
    with pytest.raises(ValueError, match="input norm"):
        native().LlamaForward(Threads(1).handle, layer_shape(config), embedding.handle, layers, norm.data_ptr(), [])
