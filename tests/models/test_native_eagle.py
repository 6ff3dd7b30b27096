"""The native EAGLE-3 draft: against the reference, and bit for bit against itself in chunks and with other threads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from aquiline.errors import UnsupportedFeatureError
from aquiline.kernels import cpu
from aquiline.kernels.cpu import Threads
from aquiline.models.native_eagle import NativeEagle
from tests.models.native_models import (
    draft_pair,
    error,
    memory_of,
    packable_config,
    sequence_rows,
    target_pair,
)
from tests.tiny import tiny_eagle_config

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason=cpu.why_not())
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "norm_before_residual": {"norm_before_residual": True},
    "fc_norm": {"fc_norm": True, "norm_output": True},
    "own_embedding": {"has_own_embedding": True},
    "target_head": {"has_own_head": False, "draft_vocab_size": 61},
    "fc_bias": {"fc_bias": True},
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
    reference, native = draft_pair(config, targets)
    features = random_features(40, config.feature_size)
    combined, wanted = native.combine_features(features), reference.combine_features(features)
    assert error(combined, wanted) < TOLERANCE
    rows = sequence_rows(random_tokens(40), 0, torch.arange(64))
    states = native.forward(rows, wanted, memory_of(config.layers, 64))
    expected = reference.forward(rows, wanted, memory_of(config.layers, 64))
    for mine, theirs in (
        (states.hidden_states, expected.hidden_states),
        (states.head_inputs, expected.head_inputs),
        (native.logits(states.head_inputs), reference.logits(expected.head_inputs)),
    ):
        assert mine.shape == theirs.shape
        assert error(mine, theirs) < TOLERANCE


def test_features_may_be_bfloat16() -> None:
    targets = target_pair(packable_config())
    config = tiny_eagle_config(targets[0].config)
    config = replace(config, layers=replace(config.layers, intermediate_size=64))
    _, native = draft_pair(config, targets)
    features = random_features(5, config.feature_size).bfloat16()
    assert torch.equal(native.combine_features(features), native.combine_features(features.float()))


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_chunks_and_threads_change_nothing(num_threads: int) -> None:
    config = tiny_eagle_config(packable_config())
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


def test_an_eagle1_head_is_refused() -> None:
    _, target = target_pair(packable_config())
    config = tiny_eagle_config(target.config, kind="eagle1")
    with pytest.raises(UnsupportedFeatureError, match="EAGLE-1"):
        NativeEagle.pack(config, {}, target)
    assert isinstance(target.threads, Threads)
