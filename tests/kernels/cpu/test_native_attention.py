"""Native attention: against the definition, and bit for bit against other ways to hold and share out the same keys."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from aquiline.errors import InvalidParameterError
from aquiline.kernels import AttentionInputs, cpu
from aquiline.kernels.cpu import Threads
from aquiline.kernels.cpu.extension import level
from tests.kernels.cpu.levels import with_levels
from tests.kernels.test_attention import (
    BORDERS,
    LENGTHS,
    SEEDS,
    Heads,
    Memory,
    chunk_group,
    decode_group,
    mixed_inputs,
    naive_attention,
    path_group,
    ragged_group,
    tree_group,
    trees,
    visible_slots,
    with_dtypes,
    with_first_positions,
    wrong_inputs,
)

if cpu.is_available():
    from aquiline.kernels.cpu.ops import attention

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason=cpu.why_not())

HEADS = {
    "head_of_64": Heads(9, 3, 64),
    "head_of_128": Heads(8, 2, 128),
    "groups_of_nine": Heads(9, 1, 16),
    "one_kv_head_each": Heads(3, 3, 24),
    "odd_width": Heads(10, 2, 40),
    "width_of_six": Heads(6, 2, 6),
    "head_of_192": Heads(4, 4, 192),
    "wide": Heads(5, 1, 264),
}
with_heads = pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
TOLERANCE = 2e-5
# AVX-512 rounds queries and weights to bfloat16 where keys and values are no float32, for heads of whole passes of 64
# numbers.
ROUNDED_TOLERANCE = 4e-3
# Weights times scales are rounded too, apart from the weights that add up to the divisor: still less than int8 itself.
SCALED_TOLERANCE = 2e-2


def tolerance(heads: Heads, dtype: torch.dtype) -> float:
    is_rounded = level() == "avx512" and dtype != torch.float32 and heads.head_dim % 64 == 0
    if not is_rounded:
        return TOLERANCE
    return SCALED_TOLERANCE if dtype == torch.int8 else ROUNDED_TOLERANCE


def attend(query: Tensor, memory: Memory, inputs: AttentionInputs, num_threads: int = 1) -> Tensor:
    threads = Threads(num_threads)
    scales = (memory.key_scales, memory.value_scales)
    return attention(query.float(), memory.keys, memory.values, inputs, threads, *scales)


@with_levels
@with_heads
@with_dtypes
@with_first_positions
def test_mixed_groups_equal_the_definition(level: str, heads: Heads, dtype: torch.dtype, first_position: int) -> None:
    memory = Memory(heads, 800, seed=1, dtype=dtype)
    inputs = mixed_inputs(memory, first_position)
    memory.poison(inputs)
    query = memory.queries(37, heads)
    result = attend(query, memory, inputs)
    assert (result.double() - naive_attention(query, memory, inputs)).abs().max() < tolerance(heads, dtype)


@with_levels
@pytest.mark.parametrize("length", [1 + border for border in BORDERS])
def test_decoding_equals_the_definition_around_chunk_borders(level: str, length: int) -> None:
    heads = HEADS["head_of_64"]
    memory = Memory(heads, 200, seed=length, dtype=torch.bfloat16)
    inputs = AttentionInputs((decode_group(0, [memory.take(length)]),), first_position=1)
    memory.poison(inputs)
    query = memory.queries(1, heads)
    error = (attend(query, memory, inputs).double() - naive_attention(query, memory, inputs)).abs().max()
    assert error < tolerance(heads, torch.bfloat16)


@with_heads
@with_dtypes
@settings(deadline=None, max_examples=10)
@given(
    prefix_lens=st.lists(LENGTHS | st.integers(1, 100), min_size=1, max_size=3),
    parents=trees(),
    first_position=st.integers(0, 1),
    seed=SEEDS,
)
def test_tree_row_has_the_bits_of_plain_decoding(
    heads: Heads, dtype: torch.dtype, prefix_lens: list[int], parents: list[int], first_position: int, seed: int
) -> None:
    """Decoded plainly, the keys of prefix and path lie in pages; alone, in a batch and as the end of a prompt."""
    memory = Memory(heads, 8000, seed, dtype)
    prefixes = [memory.take(length + first_position) for length in prefix_lens]
    tree = tree_group(memory, prefixes, parents)
    sequences = [memory.copy(slots) for slots in visible_slots(AttentionInputs((tree,)))]
    query = memory.queries(len(sequences), heads)
    batch = decode_group(0, sequences)
    memory.poison(AttentionInputs((tree, batch), first_position))
    result = attend(query, memory, AttentionInputs((tree,), first_position), num_threads=2)
    assert result.isfinite().all()
    assert torch.equal(result, attend(query, memory, AttentionInputs((batch,), first_position), num_threads=3))
    for row, table in enumerate(sequences):
        own = query[row : row + 1]
        alone = AttentionInputs((decode_group(0, [table]),), first_position)
        assert torch.equal(result[row : row + 1], attend(own, memory, alone))
        chunk = chunk_group(0, table, min(3, len(table) - first_position))
        rows = own.repeat(chunk.num_queries, 1, 1)
        assert torch.equal(result[row], attend(rows, memory, AttentionInputs((chunk,), first_position))[-1])


@with_levels
@with_dtypes
@pytest.mark.parametrize("length", [1, 30, 31, 32, 61, 63, 64])
def test_numbers_of_one_path_never_reach_another(level: str, dtype: torch.dtype, length: int) -> None:
    """Paths of different lengths take turns in one place of a chunk, the longest first."""
    heads = HEADS["head_of_64"]
    memory = Memory(heads, 600, seed=length, dtype=dtype)
    inputs = AttentionInputs((tree_group(memory, [memory.take(length)], [-1, 0, 1, 2, 0, 4, 0, 3]),))
    query = memory.queries(8, heads)
    expected = attend(query, memory, inputs)
    visible = visible_slots(inputs)
    for node in range(8):
        slot = visible[node][-1]
        kept = memory.values[slot].clone()
        memory.values[slot] = 99 if dtype == torch.int8 else float("nan")
        result = attend(query, memory, inputs)
        memory.values[slot] = kept
        is_blind = torch.tensor([slot not in slots for slots in visible])
        assert torch.equal(result[is_blind], expected[is_blind])
        assert not torch.equal(result[node], expected[node])


@with_levels
@with_dtypes
@pytest.mark.parametrize("length", [7, 32, 40, 64, 70])
@pytest.mark.parametrize("part", ["keys", "values"])
@pytest.mark.parametrize("mistake", [torch.nan, torch.inf])
def test_what_is_not_finite_reaches_those_that_see_it_and_no_others(
    level: str, dtype: torch.dtype, length: int, part: str, mistake: float
) -> None:
    """The rows of a prompt, each of which sees one position more than the one before."""
    heads, num_rows = HEADS["head_of_64"], 6
    memory = Memory(heads, 200, seed=length, dtype=dtype)
    table = memory.take(length)
    query = memory.queries(num_rows, heads)
    inputs = AttentionInputs((chunk_group(0, table, num_rows),))
    expected = attend(query, memory, inputs)
    for row in range(num_rows):
        slot = table[length - num_rows + row]
        if dtype == torch.int8:
            scales = memory.key_scales if part == "keys" else memory.value_scales
            assert scales is not None
            place = scales[slot]
        else:
            place = getattr(memory, part)[slot]
        kept = place.clone()
        place.fill_(mistake)
        result = attend(query, memory, inputs)
        place.copy_(kept)
        assert torch.equal(result[:row], expected[:row])
        if mistake != mistake or part == "values":
            assert not result[row:].isfinite().any()


@with_levels
@with_heads
def test_rows_do_not_depend_on_how_many_there_are_or_on_threads(level: str, heads: Heads) -> None:
    memory = Memory(heads, 200, seed=6, dtype=torch.bfloat16)
    table = memory.take(95)
    query = memory.queries(40, heads)
    whole = attend(query, memory, AttentionInputs((chunk_group(0, table, 40),)))
    for count in range(1, 41):
        inputs = AttentionInputs((chunk_group(0, table[: 55 + count], count),))
        for num_threads in (1, 2, 3):
            assert torch.equal(attend(query[:count], memory, inputs, num_threads), whole[:count])


def test_padding_rows_yield_zeros() -> None:
    heads = HEADS["head_of_64"]
    memory = Memory(heads, 400, seed=2)
    paths = path_group(memory, 4, [40, 7], torch.tensor([[1, 0], [2, 0]]))
    visible = paths.visible_lens.clone()
    visible[:, 1] = 0
    inputs = AttentionInputs((ragged_group(memory, 0, [[0, 35], [0, 0]]), replace(paths, visible_lens=visible)))
    memory.poison(inputs)
    result = attend(memory.queries(8, heads), memory, inputs)
    is_padding = torch.tensor([True, False, True, True, False, True, False, True])
    assert not result[is_padding].any()
    assert result[~is_padding].isfinite().all() and result[~is_padding].abs().amax(dim=(1, 2)).min() > 0


def test_extreme_scores_do_not_overflow() -> None:
    heads = HEADS["head_of_64"]
    memory = Memory(heads, 200, seed=3)
    memory.keys *= 1000
    inputs = AttentionInputs((path_group(memory, 0, [40], torch.tensor([[0, 2, 5]])),))
    query = memory.queries(3, heads)
    error = (attend(query, memory, inputs).double() - naive_attention(query, memory, inputs)).abs().max()
    assert error < 5e-2


@with_first_positions
def test_a_mask_off_by_one_is_noticed(first_position: int) -> None:
    heads = HEADS["groups_of_nine"]
    memory = Memory(heads, 200, seed=7)
    inputs = AttentionInputs((path_group(memory, 0, [20], torch.tensor([[2, 3, 1]])),), first_position)
    query = memory.queries(3, heads)
    expected = naive_attention(query, memory, inputs)
    for mistake, wrong in wrong_inputs(inputs).items():
        assert (attend(query, memory, wrong).double() - expected).abs().max() > 1e-3, mistake


def test_tensors_that_do_not_fit_are_refused() -> None:
    heads = HEADS["one_kv_head_each"]
    memory = Memory(heads, 100, seed=8)
    (group,) = AttentionInputs((decode_group(0, [memory.take(9)]),)).groups
    inputs, query, threads = AttentionInputs((group,)), memory.queries(1, heads), Threads(1)

    def refuse(message: str, keys: Tensor | None = None, rows: Tensor | None = None, **changes: Tensor) -> None:
        with pytest.raises(InvalidParameterError, match=message):
            attention(
                query if rows is None else rows,
                memory.keys if keys is None else keys,
                memory.values,
                AttentionInputs((replace(group, **changes),)) if changes else inputs,  # type: ignore[arg-type]
                threads,
            )

    refuse("float64", rows=query.double())
    refuse("int32", visible_lens=group.visible_lens.int())
    refuse("int32", key_slots=group.key_slots.int())
    refuse("values must", keys=memory.keys.bfloat16())
    refuse("keys must", keys=memory.keys.half())
    refuse("not contiguous", keys=memory.keys.transpose(0, 1).contiguous().transpose(0, 1))
    refuse(r"\[5, any\]", visible_lens=group.visible_lens.expand(5, 1))
    refuse("evenly", rows=torch.zeros(1, 4, 24))


def test_scales_that_do_not_fit_are_refused() -> None:
    memory = Memory(HEADS["one_kv_head_each"], 100, seed=8, dtype=torch.int8)
    inputs = AttentionInputs((decode_group(0, [memory.take(9)]),))
    query, scales = memory.queries(1, HEADS["one_kv_head_each"]), memory.key_scales
    assert scales is not None
    integers, floats = (memory.keys, memory.values), (memory.keys.float(), memory.values.float())
    for message, cache, wrong in (
        ("need scales", integers, None),
        ("others have none", floats, scales),
        ("float16", integers, scales.half()),
        (r"\[99, 3\]", integers, scales[:99]),
        ("not contiguous", integers, scales.t().contiguous().t()),
    ):
        for pair in ((wrong, scales), (scales, wrong)):
            with pytest.raises(InvalidParameterError, match=message):
                attention(query, *cache, inputs, Threads(1), *pair)


@pytest.mark.parametrize(
    ("lens", "slot", "num_rows", "message"),
    [(33, 0, 1, "visible_len 33"), (-1, 0, 1, "visible_len -1"), (9, 100, 1, "slot 100"), (9, 0, 2, "1 rows")],
)
def test_an_index_that_does_not_exist_is_refused(lens: int, slot: int, num_rows: int, message: str) -> None:
    heads = HEADS["one_kv_head_each"]
    memory = Memory(heads, 100, seed=8)
    group = decode_group(0, [memory.take(9)])
    group.visible_lens[0, 0] = lens
    group.key_slots[0, 4] = slot
    with pytest.raises(IndexError, match=message):
        attend(memory.queries(num_rows, heads), memory, AttentionInputs((group,)))
