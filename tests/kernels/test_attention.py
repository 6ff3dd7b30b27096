"""Attention over pages and paths: against the definition, and bit for bit against other ways to hold the same keys."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from aquiline.kernels import CONTEXT_CHUNK, AttentionGroup, AttentionInputs, attention
from aquiline.kernels.reference.attention import QUERY_TILE

SEEDS = st.integers(0, 2**31)
BORDERS = (1, 2, 3, 30, 31, 32, 33, 34, 62, 63, 64, 65, 66, 95, 96, 97, 128, 129)
LENGTHS = st.sampled_from(BORDERS)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}
TOLERANCE = {torch.float32: 5e-6, torch.bfloat16: 2e-2, torch.int8: 5e-6}


@dataclass(frozen=True)
class Heads:
    """Head counts and width."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


HEADS = {
    "grouped": Heads(6, 2, 8),
    "groups_of_nine": Heads(9, 1, 16),
    "one_kv_head_each": Heads(3, 3, 12),
    "width_of_six": Heads(6, 2, 6),
}
with_heads = pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
with_dtypes = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
with_first_positions = pytest.mark.parametrize("first_position", [0, 1])


class Memory:
    """A K/V cache whose slots are handed out in random order; slot 0 is never given away."""

    def __init__(self, heads: Heads, num_slots: int, seed: int, dtype: torch.dtype = torch.float32) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        shape = (num_slots, heads.num_kv_heads, heads.head_dim)
        self.key_scales: Tensor | None = None
        self.value_scales: Tensor | None = None
        numbers = [torch.randn(shape, generator=self.generator) for _ in range(2)]
        if dtype == torch.int8:
            (self.keys, self.key_scales), (self.values, self.value_scales) = map(integers_and_scales, numbers)
        else:
            self.keys, self.values = (part.to(dtype) for part in numbers)
        self._free = (1 + torch.randperm(num_slots - 1, generator=self.generator)).tolist()

    def take(self, count: int) -> list[int]:
        """Slots nobody else uses."""
        assert count <= len(self._free)
        taken, self._free = self._free[:count], self._free[count:]
        return taken

    def copy(self, sources: Sequence[int]) -> list[int]:
        """The same keys and values once more, elsewhere."""
        targets = self.take(len(sources))
        for part in self.parts():
            part[targets] = part[list(sources)]
        return targets

    def poison(self, inputs: AttentionInputs) -> None:
        """NaN wherever no query looks."""
        unseen = torch.ones(len(self.keys), dtype=torch.bool)
        for slots in visible_slots(inputs):
            unseen[slots] = False
        assert unseen[0]
        for part in self.parts():
            part[unseen] = torch.nan if part.is_floating_point() else 127

    def queries(self, num_rows: int, heads: Heads) -> Tensor:
        """Random queries, large enough to make some keys matter much more than others."""
        query = 2 * torch.randn(num_rows, heads.num_heads, heads.head_dim, generator=self.generator)
        return query.to(self.keys.dtype) if self.keys.is_floating_point() else query

    def parts(self) -> list[Tensor]:
        """Everything that has a row for each slot."""
        parts = (self.keys, self.values, self.key_scales, self.value_scales)
        return [part for part in parts if part is not None]


def integers_and_scales(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Heads [..., head_dim] as int8 numbers and the scale of each head."""
    scales = numbers.abs().amax(dim=-1) / 127
    return (numbers / scales.unsqueeze(-1)).round().to(torch.int8), scales


def attend(query: Tensor, memory: Memory, inputs: AttentionInputs) -> Tensor:
    return attention(query, memory.keys, memory.values, inputs, memory.key_scales, memory.value_scales)


def visible_slots(inputs: AttentionInputs) -> list[list[int]]:
    """Slots that each row sees, in logical order, from the definition of `AttentionGroup`."""
    rows = []
    for group in inputs.groups:
        for request in range(group.num_reqs):
            for query in range(group.num_queries):
                length = int(group.visible_lens[request, query])
                slots = group.key_slots[request, inputs.first_position : length].tolist()
                if group.path_slots is not None and group.path_lens is not None:
                    slots += group.path_slots[request, query, : int(group.path_lens[request, query])].tolist()
                rows.append(slots)
    return rows


def naive_attention(query: Tensor, memory: Memory, inputs: AttentionInputs) -> Tensor:
    """softmax(query . key / sqrt(head_dim)) . value for one query and head after another, in float64."""
    result = torch.zeros(query.shape, dtype=torch.float64)
    heads_per_group = query.shape[1] // memory.keys.shape[1]
    for row, slots in enumerate(visible_slots(inputs)):
        for head in range(query.shape[1] if slots else 0):
            keys, values = (part[slots, head // heads_per_group].double() for part in (memory.keys, memory.values))
            if memory.key_scales is not None and memory.value_scales is not None:
                keys *= memory.key_scales[slots, head // heads_per_group].double().unsqueeze(1)
                values *= memory.value_scales[slots, head // heads_per_group].double().unsqueeze(1)
            weights = torch.softmax(keys @ query[row, head].double() / query.shape[2] ** 0.5, dim=0)
            result[row, head] = weights @ values
    return result


def padded(slots: Sequence[int], length: int) -> list[int]:
    """A table filled up with slot 0, which nobody may see."""
    return [*slots, *[0] * (length - len(slots))]


def page_table(tables: Sequence[Sequence[int]]) -> Tensor:
    """[num_reqs, context] with the context rounded up to whole chunks."""
    context = -(-max(map(len, tables)) // CONTEXT_CHUNK) * CONTEXT_CHUNK
    return torch.tensor([padded(table, context) for table in tables])


def decode_group(first_row: int, tables: Sequence[Sequence[int]]) -> AttentionGroup:
    """One query per request, which sees its whole table."""
    return AttentionGroup(first_row, page_table(tables), torch.tensor([[len(table)] for table in tables]))


def chunk_group(first_row: int, table: Sequence[int], num_queries: int) -> AttentionGroup:
    """The last queries of a prompt, each of which sees itself and what comes before."""
    lengths = range(len(table) - num_queries + 1, len(table) + 1)
    return AttentionGroup(first_row, page_table([table]), torch.tensor([list(lengths)]))


def ragged_group(memory: Memory, first_row: int, lengths: Sequence[Sequence[int]]) -> AttentionGroup:
    """Queries with the given visible lengths; 0 is padding."""
    tables = [memory.take(max(max(row), 1)) for row in lengths]
    return AttentionGroup(first_row, page_table(tables), torch.tensor(lengths))


def path_group(memory: Memory, first_row: int, prefix_lens: Sequence[int], path_lens: Tensor) -> AttentionGroup:
    """Queries behind pages of one length per request, each with a random path; path_lens [num_reqs, num_queries]."""
    num_reqs, num_queries = path_lens.shape
    capacity = int(path_lens.max()) + 1
    scratch = [memory.take(capacity + 1) for _ in range(num_reqs)]
    paths = torch.zeros(num_reqs, num_queries, capacity, dtype=torch.long)
    for request in range(num_reqs):
        for query in range(num_queries):
            order = torch.randperm(capacity + 1, generator=memory.generator)[: int(path_lens[request, query])]
            paths[request, query, : len(order)] = torch.tensor(scratch[request])[order]
    visible = torch.tensor(prefix_lens).unsqueeze(1).expand(num_reqs, num_queries)
    tables = [memory.take(length) for length in prefix_lens]
    return AttentionGroup(first_row, page_table(tables), visible, paths, path_lens)


def mixed_inputs(memory: Memory, first_position: int) -> AttentionInputs:
    """A tree group, ragged groups with padding rows, and a prefill chunk, one behind the other."""
    tree = path_group(memory, 0, [31, 5, 64], torch.tensor([[0, 1, 2, 3], [0, 1, 1, 2], [0, 3, 40, 33]]))
    decodes = decode_group(12, [memory.take(length) for length in (33, 2, 96)])
    ragged = ragged_group(memory, 15, [[1, 32, 33], [0, 65, 0], [64, 63, 2]])
    chunk = chunk_group(24, memory.take(71), 13)
    return AttentionInputs((tree, decodes, ragged, chunk), first_position)


@with_heads
@with_dtypes
@with_first_positions
def test_mixed_groups_equal_the_definition(heads: Heads, dtype: torch.dtype, first_position: int) -> None:
    memory = Memory(heads, 800, seed=1, dtype=dtype)
    inputs = mixed_inputs(memory, first_position)
    memory.poison(inputs)
    query = memory.queries(37, heads)
    result = attend(query, memory, inputs)
    assert result.dtype == query.dtype and result.shape == query.shape
    error = (result.double() - naive_attention(query, memory, inputs)).abs().max()
    assert error <= TOLERANCE[dtype]


@with_first_positions
@pytest.mark.parametrize("length", [1 + first for first in BORDERS])
def test_decoding_equals_the_definition_around_chunk_borders(length: int, first_position: int) -> None:
    heads = HEADS["grouped"]
    memory = Memory(heads, 200, seed=length)
    inputs = AttentionInputs((decode_group(0, [memory.take(length)]),), first_position)
    memory.poison(inputs)
    query = memory.queries(1, heads)
    result = attend(query, memory, inputs)
    assert torch.allclose(result.double(), naive_attention(query, memory, inputs), rtol=0, atol=5e-6)


@settings(deadline=None, max_examples=40)
@given(
    prefix_lens=st.lists(LENGTHS, min_size=1, max_size=3),
    num_queries=st.integers(1, 5),
    longest=st.sampled_from([0, 1, 2, 5, 31, 32, 33, 65]),
    first_position=st.integers(0, 1),
    seed=SEEDS,
)
def test_paths_equal_the_definition(
    prefix_lens: list[int], num_queries: int, longest: int, first_position: int, seed: int
) -> None:
    heads = HEADS["grouped"]
    memory = Memory(heads, 800, seed)
    path_lens = torch.randint(0, longest + 1, (len(prefix_lens), num_queries), generator=memory.generator)
    prefix_lens = [max(length, 1 + first_position) for length in prefix_lens]
    inputs = AttentionInputs((path_group(memory, 0, prefix_lens, path_lens),), first_position)
    memory.poison(inputs)
    query = memory.queries(path_lens.numel(), heads)
    result = attend(query, memory, inputs)
    assert torch.allclose(result.double(), naive_attention(query, memory, inputs), rtol=0, atol=5e-6)


@with_first_positions
def test_padding_rows_yield_zeros(first_position: int) -> None:
    heads = HEADS["grouped"]
    memory = Memory(heads, 400, seed=2)
    paths = path_group(memory, 4, [40, 7], torch.tensor([[1, 0], [2, 0]]))
    visible = paths.visible_lens.clone()
    visible[:, 1] = 0
    ragged = ragged_group(memory, 0, [[0, 35], [0, 0]])
    inputs = AttentionInputs((ragged, replace(paths, visible_lens=visible)), first_position)
    memory.poison(inputs)
    result = attend(memory.queries(8, heads), memory, inputs)
    is_padding = torch.tensor([True, False, True, True, False, True, False, True])
    assert not result[is_padding].any()
    assert result[~is_padding].isfinite().all() and result[~is_padding].abs().amax(dim=(1, 2)).min() > 0


def test_extreme_scores_do_not_overflow() -> None:
    heads = HEADS["grouped"]
    memory = Memory(heads, 200, seed=3)
    memory.keys *= 1000
    inputs = AttentionInputs((path_group(memory, 0, [40], torch.tensor([[0, 2, 5]])),))
    query = memory.queries(3, heads)
    result = attend(query, memory, inputs)
    assert torch.allclose(result.double(), naive_attention(query, memory, inputs), rtol=0, atol=5e-3)


@st.composite
def trees(draw: st.DrawFn, max_nodes: int = 12) -> list[int]:
    """Parents of a random tree's nodes, the root's (-1) first."""
    num_nodes = draw(st.integers(1, max_nodes))
    return [-1] + [draw(st.integers(0, node - 1)) for node in range(1, num_nodes)]


def path_of(parents: Sequence[int], node: int) -> list[int]:
    """Nodes from the root's child down to `node`; empty for the root."""
    path: list[int] = []
    while node > 0:
        path.insert(0, node)
        node = parents[node]
    return path


def tree_group(memory: Memory, prefixes: Sequence[Sequence[int]], parents: Sequence[int]) -> AttentionGroup:
    """All nodes of one tree per request; the pages hold the prefix, whose last slot is the root's."""
    depth = max(len(path_of(parents, node)) for node in range(len(parents))) + 1
    scratch = [[-1, *memory.take(len(parents) - 1)] for _ in prefixes]
    paths = [
        [padded([own[node] for node in path_of(parents, last)], depth) for last in range(len(parents))]
        for own in scratch
    ]
    lengths = torch.tensor([len(path_of(parents, node)) for node in range(len(parents))])
    visible = torch.tensor([[len(prefix)] * len(parents) for prefix in prefixes])
    return AttentionGroup(0, page_table(prefixes), visible, torch.tensor(paths), lengths.expand(len(prefixes), -1))


@with_heads
@with_dtypes
@settings(deadline=None, max_examples=12)
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
    plain_groups = [decode_group(0, sequences), *(decode_group(0, [table]) for table in sequences)]
    chunks = [chunk_group(0, table, min(3, len(table) - first_position)) for table in sequences]
    for group in (tree, *plain_groups, *chunks):
        assert group.key_slots.shape[1] % CONTEXT_CHUNK == 0
    memory.poison(AttentionInputs((tree, *plain_groups), first_position))

    def attend_group(rows: Tensor, group: AttentionGroup) -> Tensor:
        return attend(rows, memory, AttentionInputs((group,), first_position))

    result = attend_group(query, tree)
    assert result.isfinite().all()
    assert torch.equal(result, attend_group(query, plain_groups[0]))
    for row, (plain, chunk) in enumerate(zip(plain_groups[1:], chunks, strict=True)):
        own = query[row : row + 1]
        assert torch.equal(result[row : row + 1], attend_group(own, plain))
        assert torch.equal(result[row], attend_group(own.repeat(chunk.num_queries, 1, 1), chunk)[-1])


@with_dtypes
@with_first_positions
def test_where_keys_lie_changes_nothing(dtype: torch.dtype, first_position: int) -> None:
    heads = HEADS["grouped"]
    memory = Memory(heads, 800, seed=4, dtype=dtype)
    inputs = mixed_inputs(memory, first_position)
    memory.poison(inputs)
    query = memory.queries(37, heads)
    new_slot = torch.randperm(800, generator=memory.generator)
    elsewhere = copy.deepcopy(memory)
    for part, original in zip(elsewhere.parts(), memory.parts(), strict=True):
        part[new_slot] = original
    moved = [
        replace(
            group,
            key_slots=new_slot[group.key_slots],
            path_slots=None if group.path_slots is None else new_slot[group.path_slots],
        )
        for group in inputs.groups
    ]
    result = attend(query, elsewhere, AttentionInputs(tuple(moved), first_position))
    assert torch.equal(result, attend(query, memory, inputs))


@with_dtypes
def test_longer_tables_and_paths_change_nothing(dtype: torch.dtype) -> None:
    heads = HEADS["grouped"]
    memory = Memory(heads, 400, seed=5, dtype=dtype)
    group = path_group(memory, 0, [31, 50], torch.tensor([[0, 1, 4], [2, 3, 1]]))
    assert group.path_slots is not None
    memory.poison(AttentionInputs((group,)))
    query = memory.queries(6, heads)
    wide = replace(
        group,
        key_slots=torch.nn.functional.pad(group.key_slots, (0, 3 * CONTEXT_CHUNK)),
        path_slots=torch.nn.functional.pad(group.path_slots, (0, 2 * CONTEXT_CHUNK)),
    )
    results = [attend(query, memory, AttentionInputs((each,))) for each in (group, wide)]
    assert torch.equal(*results)


@with_dtypes
@pytest.mark.parametrize("num_queries", [QUERY_TILE, QUERY_TILE + 1, 2 * QUERY_TILE + 37])
def test_long_chunk_equals_its_pieces_and_the_definition(dtype: torch.dtype, num_queries: int) -> None:
    heads = HEADS["grouped"]
    memory = Memory(heads, 400, seed=6, dtype=dtype)
    table = memory.take(num_queries + 20)
    inputs = AttentionInputs((chunk_group(0, table, num_queries),), first_position=1)
    memory.poison(inputs)
    query = memory.queries(num_queries, heads)
    result = attend(query, memory, inputs)
    assert (result.double() - naive_attention(query, memory, inputs)).abs().max() <= TOLERANCE[dtype]
    for row in (0, 1, 50, QUERY_TILE - 1, num_queries - 1):
        alone = AttentionInputs((decode_group(0, [table[: 20 + row + 1]]),), first_position=1)
        assert torch.equal(result[row : row + 1], attend(query[row : row + 1], memory, alone))
    half = num_queries // 2
    first = AttentionInputs((chunk_group(0, table[: 20 + half], half),), first_position=1)
    second = AttentionInputs((chunk_group(0, table, num_queries - half),), first_position=1)
    pieces = (
        attend(query[:half], memory, first),
        attend(query[half:], memory, second),
    )
    assert torch.equal(result, torch.cat(pieces))


def wrong_inputs(inputs: AttentionInputs) -> dict[str, AttentionInputs]:
    """The mistakes that are easy to make, each by one position."""
    (group,) = inputs.groups
    assert group.path_lens is not None and group.path_slots is not None
    lens, path_lens = group.visible_lens, group.path_lens
    return {
        "pages one too long": replace(inputs, groups=(replace(group, visible_lens=lens + 1),)),
        "pages one too short": replace(inputs, groups=(replace(group, visible_lens=lens - 1),)),
        "path without its end": replace(inputs, groups=(replace(group, path_lens=path_lens - 1),)),
        "path too long": replace(inputs, groups=(replace(group, path_lens=path_lens + 1),)),
        "path of a neighbour": replace(inputs, groups=(replace(group, path_slots=group.path_slots.flip(1)),)),
        "first position": replace(inputs, first_position=1 - inputs.first_position),
    }


@with_first_positions
def test_a_mask_off_by_one_is_noticed(first_position: int) -> None:
    heads = HEADS["grouped"]
    memory = Memory(heads, 200, seed=7)
    inputs = AttentionInputs((path_group(memory, 0, [20], torch.tensor([[2, 3, 1]])),), first_position)
    query = memory.queries(3, heads)
    expected = naive_attention(query, memory, inputs)
    for mistake, wrong in wrong_inputs(inputs).items():
        result = attend(query, memory, wrong)
        assert (result.double() - expected).abs().max() > 1e-3, mistake
