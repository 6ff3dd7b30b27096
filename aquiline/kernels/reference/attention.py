"""Attention over pages and tree paths.

Row independence: keys are walked by logical position in chunks of CONTEXT_CHUNK. Each chunk's weighted sum has a fixed
shape, chunks are added in order, and a chunk that a row does not see adds exact zeros. So a row's bits do not depend on
its neighbours, on the padding of the context, or on whether a key lies in a page or in scratch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from aquiline.kernels.attention_inputs import AttentionGroup, AttentionInputs
from aquiline.kernels.reference.dense import pad_rows
from aquiline.kernels.reference.quantized_heads import read_heads

CONTEXT_CHUNK = 32
QUERY_TILE = 128
WIDTH_TILE = 8


@dataclass(frozen=True)
class _Cache:
    """Where keys and values are read; the arguments of `attention`."""

    keys: Tensor
    values: Tensor
    key_scales: Tensor | None
    value_scales: Tensor | None

    @property
    def num_kv_heads(self) -> int:
        return int(self.keys.shape[1])

    def read_keys(self, slots: Tensor) -> Tensor:
        return read_heads(self.keys, self.key_scales, slots)

    def read_values(self, slots: Tensor) -> Tensor:
        return read_heads(self.values, self.value_scales, slots)


@dataclass(frozen=True)
class _Part:
    """Scores and values of one stretch of logical positions."""

    scores: Tensor  # [..., num_rows, num_positions], -inf where unseen
    values: Tensor  # [..., num_positions, padded head_dim], zero where unseen by all


def attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    inputs: AttentionInputs,
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
) -> Tensor:
    """softmax(query . key / sqrt(head_dim)) . value, in float32, for grouped-query heads.

    Args:
        query: [num_rows, num_heads, head_dim].
        key_cache, value_cache: [num_slots, num_kv_heads, head_dim].
        key_scales, value_scales: [num_slots, num_kv_heads] of int8 keys and values; None for others.

    Returns:
        [num_rows, num_heads, head_dim] in the dtype of `query`.
    """
    cache = _Cache(key_cache, value_cache, key_scales, value_scales)
    outputs = []
    for group in inputs.groups:
        rows = query[group.first_row : group.first_row + group.num_reqs * group.num_queries]
        rows = rows.view(group.num_reqs, group.num_queries, *query.shape[1:])
        for start in range(0, group.num_queries, QUERY_TILE):
            tile = slice(start, start + QUERY_TILE)
            outputs.append(_attend(rows[:, tile], cache, _tile(group, tile), inputs.first_position))
    return torch.cat(outputs).to(query.dtype)


def _tile(group: AttentionGroup, tile: slice) -> AttentionGroup:
    if group.num_queries <= QUERY_TILE:
        return group
    assert group.num_reqs == 1 and group.path_slots is None, "only prefill chunks are longer than a tile"
    return AttentionGroup(group.first_row, group.key_slots, group.visible_lens[:, tile])


def _attend(query: Tensor, cache: _Cache, group: AttentionGroup, first_position: int) -> Tensor:
    """Attention of one group; query [num_reqs, num_queries, num_heads, head_dim]."""
    num_reqs, num_queries, num_heads, head_dim = query.shape
    num_kv_heads = cache.num_kv_heads
    shape = (num_reqs, num_queries, num_kv_heads, num_heads // num_kv_heads, head_dim)
    scaled = (query.float() * head_dim**-0.5).view(shape)
    shared = _shared_part(scaled, cache, group, first_position)
    num_rows = num_queries * shape[3]
    peak = shared.scores.amax(dim=-1, keepdim=True)
    if group.path_slots is None:
        total, weight = _accumulate(shared, _finite(peak), None)
    else:
        window = _window_part(scaled, cache, group, first_position)
        window_peak = _join_rows(window.scores.amax(dim=-1, keepdim=True), shape[3], shared.scores.shape[2])
        peak = _finite(torch.maximum(peak, window_peak))
        total, weight = _accumulate(shared, peak, None)
        start = (_split_rows(total, shape), _split_rows(weight, shape))
        total, weight = _accumulate(window, _split_rows(peak, shape), start)
        total, weight = _join_rows(total, shape[3], num_rows), _join_rows(weight, shape[3], num_rows)
    result = total[:, :, :num_rows, :head_dim] / weight[:, :, :num_rows].clamp_min(torch.finfo(torch.float32).tiny)
    result = result.view(num_reqs, num_kv_heads, num_queries, shape[3], head_dim)
    return result.permute(0, 2, 1, 3, 4).reshape(num_reqs * num_queries, num_heads, head_dim)


def _shared_part(query: Tensor, cache: _Cache, group: AttentionGroup, first_position: int) -> _Part:
    """Pages that all queries of a request read together; rows are (query, head in group), padded."""
    num_reqs, num_queries, num_kv_heads, heads_per_group, head_dim = query.shape
    context = group.key_slots.shape[1]
    rows = query.permute(0, 2, 1, 3, 4).reshape(num_reqs, num_kv_heads, num_queries * heads_per_group, head_dim)
    rows = pad_rows(rows)
    position = torch.arange(context, device=query.device)
    visible_lens = group.visible_lens
    ends = visible_lens if group.path_slots is None else visible_lens // CONTEXT_CHUNK * CONTEXT_CHUNK
    seen = (position < ends.unsqueeze(-1)) & (position >= first_position)  # [num_reqs, num_queries, context]
    row_seen = torch.zeros(num_reqs, rows.shape[2], context, dtype=torch.bool, device=query.device)
    row_seen[:, : num_queries * heads_per_group] = seen.repeat_interleave(heads_per_group, dim=1)
    keys = cache.read_keys(group.key_slots).permute(0, 2, 3, 1)  # [num_reqs, num_kv_heads, head_dim, context]
    values = _pad_width(cache.read_values(group.key_slots))
    values = torch.where(seen.any(dim=1)[:, :, None, None], values, 0.0).permute(0, 2, 1, 3)
    scores = torch.matmul(rows, keys).masked_fill(~row_seen.unsqueeze(1), -torch.inf)
    return _Part(scores, values)


def _window_part(query: Tensor, cache: _Cache, group: AttentionGroup, first_position: int) -> _Part:
    """The chunk in which the pages end, and the path behind it; every query has its own keys here."""
    assert group.path_slots is not None and group.path_lens is not None
    heads_per_group = query.shape[3]
    capacity = group.path_slots.shape[2]
    width = (1 + -(-capacity // CONTEXT_CHUNK)) * CONTEXT_CHUNK
    visible = group.visible_lens.unsqueeze(-1)
    position = visible // CONTEXT_CHUNK * CONTEXT_CHUNK + torch.arange(width, device=query.device)
    in_pages = position < visible
    path_index = position - visible
    in_path = ~in_pages & (path_index < group.path_lens.unsqueeze(-1))
    context = group.key_slots.shape[1]
    page_slots = group.key_slots.unsqueeze(1).expand(-1, query.shape[1], -1)
    page_slots = page_slots.gather(2, position.clamp(max=context - 1))
    path_slots = group.path_slots.gather(2, path_index.clamp(0, capacity - 1))
    slots = torch.where(in_pages, page_slots, path_slots)
    seen = (in_pages | in_path) & (position >= first_position) & (visible > 0)  # [num_reqs, num_queries, width]
    keys = cache.read_keys(slots).permute(0, 1, 3, 4, 2)  # [num_reqs, num_queries, num_kv_heads, head_dim, width]
    values = _pad_width(cache.read_values(slots))
    values = torch.where(seen[..., None, None], values, 0.0).permute(0, 1, 3, 2, 4)
    scores = torch.matmul(pad_rows(query), keys)[..., :heads_per_group, :]
    scores = pad_rows(scores.masked_fill(~seen[:, :, None, None, :], -torch.inf))
    return _Part(scores, values)


def _accumulate(part: _Part, peak: Tensor, start: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
    """Add up exp(score - peak) * value and exp(score - peak), chunk after chunk."""
    weights = torch.exp(part.scores - peak)
    num_chunks = weights.shape[-1] // CONTEXT_CHUNK
    sums = weights.view(*weights.shape[:-1], num_chunks, CONTEXT_CHUNK).sum(dim=-1)
    if start is None:
        total = torch.zeros(*weights.shape[:-1], part.values.shape[-1], device=weights.device)
        weight = torch.zeros_like(peak)
    else:
        total, weight = start
    for index in range(num_chunks):
        chunk = slice(index * CONTEXT_CHUNK, (index + 1) * CONTEXT_CHUNK)
        total = total + torch.matmul(weights[..., chunk], part.values[..., chunk, :])
        weight = weight + sums[..., index : index + 1]
    return total, weight


def _pad_width(heads: Tensor) -> Tensor:
    """Append zeros to the head width until it is a multiple of WIDTH_TILE.

    A matrix library sums the rows of a product with few columns in an order that depends on how many rows there are.
    """
    missing = -heads.shape[-1] % WIDTH_TILE
    return functional.pad(heads, (0, missing)) if missing else heads


def _finite(peak: Tensor) -> Tensor:
    """A row that sees nothing has no peak; any number serves, since all its weights are exp(-inf) = 0."""
    return torch.where(torch.isinf(peak), 0.0, peak)


def _split_rows(rows: Tensor, shape: tuple[int, ...]) -> Tensor:
    """[num_reqs, num_kv_heads, query * head, width] to [num_reqs, num_queries, num_kv_heads, padded heads, width]."""
    num_reqs, num_queries, num_kv_heads, heads_per_group, _ = shape
    real = rows[:, :, : num_queries * heads_per_group]
    real = real.reshape(num_reqs, num_kv_heads, num_queries, heads_per_group, rows.shape[-1])
    return pad_rows(real.permute(0, 2, 1, 3, 4))


def _join_rows(rows: Tensor, heads_per_group: int, num_rows: int) -> Tensor:
    """The way back from `_split_rows`, padded with zero rows to `num_rows`."""
    real = rows[:, :, :, :heads_per_group].permute(0, 2, 1, 3, 4)
    joined = real.reshape(rows.shape[0], rows.shape[2], rows.shape[1] * heads_per_group, rows.shape[-1])
    missing = num_rows - joined.shape[2]
    return functional.pad(joined, (0, 0, 0, missing)) if missing else joined
