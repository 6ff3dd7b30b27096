"""The native target: against the reference, and bit for bit against itself in other batches, chunks and trees."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from aquiline.errors import InvalidParameterError
from aquiline.kernels import AttentionGroup, AttentionInputs, cpu
from aquiline.kernels.cpu import Threads
from aquiline.models.llama import ForwardRows, TargetStates
from aquiline.models.model_config import RopeConfig
from aquiline.models.native_llama import NativeLlama
from tests.models.forward_rows import scrambled_slots
from tests.models.native_models import (
    AUX_LAYER_IDS,
    error,
    memory_of,
    packable_config,
    sequence_rows,
    target_pair,
    target_tensors,
    tree_rows,
)

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason=cpu.why_not())
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "one_kv_head_each": {"num_kv_heads": 6},
    "wide_heads": {"num_heads": 2, "num_kv_heads": 1, "head_dim": 64},
    "biases": {"attention_bias": True, "attention_output_bias": True, "mlp_bias": True},
    "tied": {"tie_word_embeddings": True},
    "llama3_rope": {"rope": RopeConfig(5000.0, "llama3", 8.0, 32)},
    "dynamic_rope": {"rope": RopeConfig(500.0, "dynamic", 2.0, 32)},
}
TOLERANCE = {"none": 0.02, "int8": 0.07, "int4": 0.07}


def random_tokens(count: int, seed: int = 1) -> Tensor:
    return torch.randint(0, 61, (count,), generator=torch.Generator().manual_seed(seed))


def assert_equal(first: TargetStates, second: TargetStates, rows: slice = slice(None)) -> None:
    assert torch.equal(first.hidden_states[rows], second.hidden_states)
    assert torch.equal(first.features[rows], second.features)


@pytest.mark.parametrize("case", CASES)
def test_states_and_logits_are_those_of_the_reference(case: str) -> None:
    reference, native = target_pair(packable_config(**CASES[case]))
    rows = sequence_rows(random_tokens(70), 0, scrambled_slots(70))
    expected = reference.forward(rows, memory_of(reference.config, 96))
    states = native.forward(rows, memory_of(native.config, 96))
    assert error(states.features, expected.features) < TOLERANCE["none"]
    logits, wanted = native.logits(states.hidden_states), reference.logits(expected.hidden_states)
    assert logits.dtype == torch.float32 and logits.shape == wanted.shape
    assert error(logits, wanted) < TOLERANCE["none"]


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_quantised_logits_are_those_of_the_same_weights(quantization: str) -> None:
    reference, native = target_pair(packable_config(), quantization)
    rows = sequence_rows(random_tokens(40), 0, scrambled_slots(40))
    wanted = reference.logits(reference.forward(rows, memory_of(reference.config, 64)).hidden_states)
    logits = native.logits(native.forward(rows, memory_of(native.config, 64)).hidden_states)
    assert error(logits, wanted) < TOLERANCE[quantization]


def test_keys_and_values_of_eight_bits_are_those_of_the_reference() -> None:
    """Only the head of a number between two integers may differ, for the products before it do in the last place."""
    reference, native = target_pair(packable_config())
    rows = sequence_rows(random_tokens(70), 0, scrambled_slots(70))
    mine, theirs = (memory_of(reference.config, 96, torch.int8) for _ in range(2))
    states, expected = native.forward(rows, mine), reference.forward(rows, theirs)
    assert error(states.hidden_states, expected.hidden_states) < 0.04
    for part, wanted in zip(mine[0].tensors(), theirs[0].tensors(), strict=True):
        assert error(part[rows.slots], wanted[rows.slots]) < TOLERANCE["none"]
    exact = reference.forward(rows, memory_of(reference.config, 96))
    assert 1e-4 < error(expected.hidden_states, exact.hidden_states) < 0.03


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
def test_rows_move_as_in_every_layer_of_the_reference(dtype: torch.dtype) -> None:
    _, native = target_pair(packable_config())
    mine, theirs = (memory_of(native.config, 32, dtype) for _ in range(2))
    for memory in (mine, theirs):
        native.forward(sequence_rows(random_tokens(20), 0, torch.arange(32)), memory)
    sources, targets = [3, 19, 5, 6], [2, 30, 6, 7]
    native.move_rows(mine, sources, targets)
    for layer, wanted in zip(mine, theirs, strict=True):
        wanted.move(torch.tensor(sources), torch.tensor(targets))
        for part, expected in zip(layer.tensors(), wanted.tensors(), strict=True):
            assert torch.equal(part.nan_to_num(7.0), expected.nan_to_num(7.0))
            assert not torch.equal(part[30], part[31])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_states_have_the_types_of_their_memory(dtype: torch.dtype) -> None:
    reference, native = target_pair(packable_config(), dtype=dtype)
    rows = sequence_rows(random_tokens(20), 0, scrambled_slots(20))
    memory = memory_of(native.config, 32, dtype)
    states = native.forward(rows, memory)
    assert states.hidden_states.dtype == torch.float32 and states.features.dtype == dtype
    expected = reference.forward(rows, memory_of(reference.config, 32))
    assert error(states.features, expected.features) < 2 * TOLERANCE["none"]
    assert memory[0].keys[rows.slots].isfinite().all()


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
@pytest.mark.parametrize("chunk_sizes", [(1,) * 70, (31, 1, 38), (64, 6)], ids=["by_token", "uneven", "even"])
@pytest.mark.parametrize(("num_threads", "dtype"), [(1, torch.int8), (2, torch.float32), (3, torch.int8)])
def test_chunks_and_threads_change_nothing(
    quantization: str, chunk_sizes: tuple[int, ...], num_threads: int, dtype: torch.dtype
) -> None:
    config, token_ids, slots = packable_config(), random_tokens(70), scrambled_slots(70)
    _, native = target_pair(config, quantization)
    whole = native.forward(sequence_rows(token_ids, 0, slots), memory_of(config, 96, dtype))
    _, native = target_pair(config, quantization, num_threads)
    memory, first = memory_of(config, 96, dtype), 0
    for size in chunk_sizes:
        rows = sequence_rows(token_ids[first : first + size], first, slots)
        assert_equal(whole, native.forward(rows, memory), slice(first, first + size))
        first += size


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int8], ids=str)
@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
@pytest.mark.parametrize("length", [5, 31, 63])
def test_tree_rows_have_the_bits_of_plain_decoding(quantization: str, length: int, dtype: torch.dtype) -> None:
    config, prompt = packable_config(), random_tokens(length)
    _, native = target_pair(config, quantization, num_threads=2)
    parents = [-1, 0, 0, 1, 1, 2, 3, 6]
    nodes = random_tokens(len(parents), seed=2)
    slots, scratch = torch.arange(128), torch.arange(128, 128 + len(parents))
    memory = memory_of(config, 160, dtype)
    native.forward(sequence_rows(prompt, 0, slots), memory)
    tree = native.forward(tree_rows(nodes, parents, length, slots, scratch), memory)
    for node in range(len(parents)):
        path, step = [node], node
        while parents[step] >= 0:
            step = parents[step]
            path.insert(0, step)
        plain = memory_of(config, 160, dtype)
        native.forward(sequence_rows(prompt, 0, slots), plain)
        for depth, step in enumerate(path):
            states = native.forward(sequence_rows(nodes[step : step + 1], length + depth, slots), plain)
        assert_equal(tree, states, slice(node, node + 1))


def test_a_batch_has_the_bits_of_its_requests_alone() -> None:
    config = packable_config()
    _, native = target_pair(config, "int8", num_threads=2)
    lengths, memory = (1, 7, 33, 40), memory_of(config, 400)
    tables = [torch.randperm(64) + 64 * index for index in range(4)]
    for index, length in enumerate(lengths):
        native.forward(sequence_rows(random_tokens(length, index), 0, tables[index]), memory)
    positions = torch.tensor(lengths)
    slots = torch.stack([table[length] for table, length in zip(tables, lengths, strict=True)])
    group = AttentionGroup(0, torch.stack(tables), (positions + 1).unsqueeze(1))
    token_ids = random_tokens(4, seed=9)
    batch = native.forward(ForwardRows(token_ids, positions, slots, AttentionInputs((group,))), memory)
    for index, length in enumerate(lengths):
        alone = memory_of(config, 400)
        native.forward(sequence_rows(random_tokens(length, index), 0, tables[index]), alone)
        states = native.forward(sequence_rows(token_ids[index : index + 1], length, tables[index]), alone)
        assert_equal(batch, states, slice(index, index + 1))


def test_positions_beyond_the_first_angles() -> None:
    reference, native = target_pair(packable_config(max_position=4096))
    slots = torch.arange(32)
    group = AttentionGroup(0, slots.unsqueeze(0), torch.tensor([[1]]))
    rows = ForwardRows(random_tokens(1), torch.tensor([3000]), slots[:1], AttentionInputs((group,)))
    expected = reference.forward(rows, memory_of(reference.config, 32))
    states = native.forward(rows, memory_of(native.config, 32))
    assert error(states.hidden_states, expected.hidden_states) < TOLERANCE["none"]


def test_what_does_not_exist_is_refused() -> None:
    config = packable_config()
    _, native = target_pair(config)
    slots = torch.arange(32)
    with pytest.raises(IndexError, match="token id 61"):
        native.forward(sequence_rows(torch.tensor([61]), 0, slots), memory_of(config, 32))
    with pytest.raises(IndexError, match="slot 31"):
        native.forward(sequence_rows(random_tokens(32), 0, slots), memory_of(config, 31))
    with pytest.raises(InvalidParameterError, match="3 layers"):
        native.forward(sequence_rows(random_tokens(3), 0, slots), memory_of(config, 32)[:3])
    with pytest.raises(InvalidParameterError, match="float16"):
        native.forward(sequence_rows(random_tokens(3), 0, slots), memory_of(config, 32, torch.float16))
    with pytest.raises(InvalidParameterError, match="quantization"):
        NativeLlama.pack(config, target_tensors(config), "int3", Threads(1), AUX_LAYER_IDS)
    odd = packable_config(intermediate_size=50)
    with pytest.raises(InvalidParameterError, match="multiple of 32"):
        NativeLlama.pack(odd, target_tensors(odd), "none", Threads(1))
