"""Attention of training-time test (EAGLE-3, arXiv 2503.01840).

At step 0 a row sees the rows of its conversation up to itself. At a later step it sees those same keys of step 0, and
of every later step up to its own the one key that stands at its own row: when serving, a drafted token sees the true
rows before the root and the chain of drafted tokens above itself.

Worked example, row 2 of a conversation at step 2; keys are named step.row:

    0.0  0.1  0.2  1.2  2.2

Gradients are computed from the query, key and value tensors again, in tiles of queries, so that memory grows with the
number of rows and not with its square.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

QUERY_TILE = 128


@dataclass(frozen=True)
class QueryTile:
    """Some queries of one conversation, and the keys of step 0 they may see.

    Attributes:
        queries: of the query tensor.
        keys: of the keys of step 0; ends with the last one that any of the queries sees.
        hidden: [num_queries, num_keys] bool: keys that a query must not see.
    """

    queries: slice
    keys: slice
    hidden: Tensor


@dataclass(frozen=True)
class AttentionPlan:
    """Which keys each query sees; the same for every layer."""

    tiles: tuple[QueryTile, ...]

    @classmethod
    def of(
        cls, query_rows: Tensor, starts: Sequence[int], lengths: Sequence[int], device: torch.device
    ) -> AttentionPlan:
        """Plan for queries that stand at some rows.

        Args:
            query_rows: [num_queries] ascending rows of the pack, on the CPU.
            starts, lengths: first row and number of rows of each conversation.
            device: where the queries and keys will be.
        """
        tiles = []
        ends = torch.searchsorted(query_rows, torch.tensor([s + n for s, n in zip(starts, lengths, strict=True)]))
        first = 0
        for start, end in zip(starts, ends.tolist(), strict=True):
            for tile in range(first, end, QUERY_TILE):
                rows = query_rows[tile : min(tile + QUERY_TILE, end)]
                last = int(rows[-1])
                hidden = torch.arange(start, last + 1) > rows.unsqueeze(-1)
                queries, keys = slice(tile, tile + len(rows)), slice(start, last + 1)
                tiles.append(QueryTile(queries, keys, hidden.to(device)))
            first = end
        return cls(tuple(tiles))


def unrolled_attention(
    query: Tensor, keys: Tensor, values: Tensor, own_keys: Tensor, own_values: Tensor, plan: AttentionPlan
) -> Tensor:
    """softmax(query . key / sqrt(head_dim)) . value over step-0 keys and the query's own later keys.

    Args:
        query: [num_queries, num_heads, head_dim].
        keys, values: of step 0, [num_rows, num_kv_heads, head_dim].
        own_keys, own_values: of the later steps at each query's row, [num_queries, num_steps, num_kv_heads, head_dim].

    Returns:
        [num_queries, num_heads, head_dim] in the dtype of `query`.
    """
    result: Tensor = _UnrolledAttention.apply(  # type: ignore[no-untyped-call]
        query, keys, values, own_keys, own_values, plan
    )
    return result


class _UnrolledAttention(torch.autograd.Function):
    """Keeps the log of each query's normaliser, and recomputes weights in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        own_keys: Tensor,
        own_values: Tensor,
        plan: AttentionPlan,
    ) -> Tensor:
        output = torch.empty_like(query)
        normalisers = torch.empty(query.shape[:2], dtype=torch.float32, device=query.device)
        for tile in _tiles(query, keys, values, own_keys, own_values, plan):
            scores = tile.scores()
            peak_logs = torch.logsumexp(scores, dim=-1, keepdim=True)
            weights = torch.exp(scores - peak_logs)
            tile.put(output, tile.mix(weights))
            tile.put(normalisers, peak_logs)
        ctx.plan = plan
        ctx.save_for_backward(query, keys, values, own_keys, own_values, output, normalisers)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (output_gradient,) = gradients
        query, keys, values, own_keys, own_values, output, normalisers = ctx.saved_tensors
        # Keys of a tile are visited by other tiles too: their gradients add up, in float32.
        key_gradient = torch.zeros(keys.shape, dtype=torch.float32, device=keys.device)
        value_gradient = torch.zeros_like(key_gradient)
        query_gradient = torch.empty_like(query)
        own_key_gradient, own_value_gradient = torch.empty_like(own_keys), torch.empty_like(own_values)
        for tile in _tiles(query, keys, values, own_keys, own_values, ctx.plan):
            weights = torch.exp(tile.scores() - tile.take(normalisers))
            outer = tile.take(output_gradient)
            overlap = (outer.float() * tile.take(output).float()).sum(dim=-1, keepdim=True)
            score_gradient = weights * (tile.weight_gradient(outer) - overlap) * tile.scale
            tile.put(query_gradient, tile.query_gradient(score_gradient))
            key_gradient[tile.plan.keys] += tile.shared_gradient(score_gradient, tile.query)
            value_gradient[tile.plan.keys] += tile.shared_gradient(weights, outer)
            own_key_gradient[tile.plan.queries] = tile.own_gradient(score_gradient, tile.query)
            own_value_gradient[tile.plan.queries] = tile.own_gradient(weights, outer)
        return (
            query_gradient,
            key_gradient.to(keys.dtype),
            value_gradient.to(values.dtype),
            own_key_gradient,
            own_value_gradient,
            None,
        )


@dataclass(frozen=True)
class _Tile:
    """One tile's tensors, arranged by the K/V head that a group of query heads shares."""

    plan: QueryTile
    query: Tensor  # [num_kv_heads, group, num_queries, head_dim]
    keys: Tensor  # [num_kv_heads, num_keys, head_dim]
    values: Tensor  # [num_kv_heads, num_keys, head_dim]
    own_keys: Tensor  # [num_kv_heads, 1, num_queries, num_steps, head_dim]
    own_values: Tensor  # [num_kv_heads, 1, num_queries, num_steps, head_dim]

    @property
    def scale(self) -> float:
        return float(self.query.shape[-1] ** -0.5)

    def scores(self) -> Tensor:
        """Scaled scores, float32 [num_kv_heads, group, num_queries, num_keys + num_steps]; -inf where hidden."""
        shared = self._with_shared(self.query, self.keys.transpose(-1, -2)).float() * self.scale
        shared = shared.masked_fill(self.plan.hidden, -torch.inf)
        own = (self.query.unsqueeze(-2).float() * self.own_keys.float()).sum(dim=-1) * self.scale
        return torch.cat((shared, own), dim=-1)

    def mix(self, weights: Tensor) -> Tensor:
        """Weighted sum of values, float32 in the arrangement of `query`."""
        num_keys = self.keys.shape[1]
        shared = self._with_shared(weights[..., :num_keys].to(self.values.dtype), self.values).float()
        return shared + (weights[..., num_keys:].unsqueeze(-1) * self.own_values.float()).sum(dim=-2)

    def weight_gradient(self, outer: Tensor) -> Tensor:
        """Gradient of the weights, float32, from that of the output."""
        shared = self._with_shared(outer, self.values.transpose(-1, -2)).float()
        own = (outer.unsqueeze(-2).float() * self.own_values.float()).sum(dim=-1)
        return torch.cat((shared, own), dim=-1)

    def query_gradient(self, score_gradient: Tensor) -> Tensor:
        """Gradient of the query, float32, from that of the unscaled scores."""
        num_keys = self.keys.shape[1]
        shared = self._with_shared(score_gradient[..., :num_keys].to(self.keys.dtype), self.keys).float()
        return shared + (score_gradient[..., num_keys:].unsqueeze(-1) * self.own_keys.float()).sum(dim=-2)

    def shared_gradient(self, weights: Tensor, rows: Tensor) -> Tensor:
        """Sum over queries of weight * row for each step-0 key: float32 [num_keys, num_kv_heads, head_dim]."""
        part = weights[..., : self.keys.shape[1]].to(rows.dtype).flatten(1, 2)
        return torch.bmm(part.transpose(-1, -2), rows.flatten(1, 2)).float().transpose(0, 1)

    def own_gradient(self, weights: Tensor, rows: Tensor) -> Tensor:
        """The same for each query's own keys: float32 [num_queries, num_steps, num_kv_heads, head_dim]."""
        part = weights[..., self.keys.shape[1] :].unsqueeze(-1) * rows.unsqueeze(-2).float()
        return part.sum(dim=1).permute(1, 2, 0, 3)

    def take(self, rows: Tensor) -> Tensor:
        """Rows of a [num_queries, num_heads, ...] tensor in the arrangement of `query`."""
        return _by_kv_head(rows[self.plan.queries], self.keys.shape[0])

    def put(self, rows: Tensor, values: Tensor) -> None:
        """The way back: store values of this tile in a [num_queries, num_heads, ...] tensor."""
        arranged = values.permute(2, 0, 1, 3).flatten(1, 2)
        target = rows[self.plan.queries]
        target.copy_(arranged.view(target.shape))

    def _with_shared(self, rows: Tensor, shared: Tensor) -> Tensor:
        """Product of rows [num_kv_heads, group, num_queries, a] with [num_kv_heads, a, b]."""
        product = torch.bmm(rows.flatten(1, 2), shared)
        return product.view(*rows.shape[:3], shared.shape[-1])


def _tiles(
    query: Tensor, keys: Tensor, values: Tensor, own_keys: Tensor, own_values: Tensor, plan: AttentionPlan
) -> Iterator[_Tile]:
    num_kv_heads = keys.shape[1]
    for tile in plan.tiles:
        yield _Tile(
            tile,
            _by_kv_head(query[tile.queries], num_kv_heads),
            keys[tile.keys].transpose(0, 1),
            values[tile.keys].transpose(0, 1),
            own_keys[tile.queries].permute(2, 0, 1, 3).unsqueeze(1),
            own_values[tile.queries].permute(2, 0, 1, 3).unsqueeze(1),
        )


def _by_kv_head(rows: Tensor, num_kv_heads: int) -> Tensor:
    """[num_queries, num_heads(, width)] to [num_kv_heads, group, num_queries, width or 1]."""
    rows = rows if rows.dim() == 3 else rows.unsqueeze(-1)
    num_queries, _, width = rows.shape
    return rows.reshape(num_queries, num_kv_heads, -1, width).permute(1, 2, 0, 3)
