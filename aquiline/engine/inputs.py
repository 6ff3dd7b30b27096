"""From the schedule's integers to the tensors of a target forward.

Row order: all nodes of all tree requests, then one row for every request that decodes plainly, then prefill chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from aquiline.engine.schedule import ScheduledBatch, ScheduledRequest, TreeGroup, tree_groups
from aquiline.engine.slots import SlotLayout
from aquiline.engine.tree import DraftTree
from aquiline.engine.tree_paths import path_nodes
from aquiline.kernels import CONTEXT_CHUNK, AttentionGroup, AttentionInputs
from aquiline.models.llama import ForwardRows


@dataclass(frozen=True)
class StepLayout:
    """Which request owns which rows of the target forward; integers only.

    Attributes:
        tree_requests, plain_requests, prefill_requests: the step's requests in row order; of those with a tree first
            the ones for which the draft model grows one, by the order of `groups`.
        num_nodes: node places of each tree request, the root included.
        row_counts: rows of each tree request, at most `num_nodes`; None: as many as there are places.
        groups: requests for which the draft model grows a tree, by its shape.
    """

    tree_requests: tuple[ScheduledRequest, ...]
    plain_requests: tuple[ScheduledRequest, ...]
    prefill_requests: tuple[ScheduledRequest, ...]
    num_nodes: int
    row_counts: tuple[int, ...] | None = None
    groups: tuple[TreeGroup, ...] = ()

    @classmethod
    def of(cls, batch: ScheduledBatch, num_nodes: int) -> StepLayout:
        """Sort a schedule's requests; `num_nodes` counts the root."""
        groups = tree_groups([s for s in batch.requests if s.grown_depth > 0], batch.tree)
        grown = tuple(scheduled for group in groups for scheduled in group.requests)
        trees = grown + tuple(s for s in batch.requests if s.max_draft_depth > 0 and s.grown_depth == 0)
        single = [s for s in batch.requests if s.max_draft_depth == 0]
        plain = tuple(s for s in single if s.draws_token and s.num_new_tokens == 1)
        prefill = tuple(s for s in single if not (s.draws_token and s.num_new_tokens == 1))
        return cls(trees, plain, prefill, num_nodes, groups=tuple(groups))

    def with_tree(self, tree: DraftTree | None) -> StepLayout:
        """The layout of the same requests once their trees have grown."""
        return self if tree is None else replace(self, num_nodes=tree.num_nodes, row_counts=tree.row_counts)

    @cached_property
    def growing_requests(self) -> tuple[ScheduledRequest, ...]:
        """Requests for which the draft model grows a tree; the first of `tree_requests`."""
        return tuple(scheduled for group in self.groups for scheduled in group.requests)

    @cached_property
    def ordered(self) -> tuple[ScheduledRequest, ...]:
        return self.tree_requests + self.plain_requests + self.prefill_requests

    @cached_property
    def drawing(self) -> tuple[ScheduledRequest, ...]:
        """Requests that draw a token in this step, in row order."""
        return tuple(s for s in self.ordered if s.draws_token)

    def num_rows(self, scheduled: ScheduledRequest) -> int:
        """Rows of a request in the target's forward."""
        if scheduled.max_draft_depth == 0:
            return scheduled.num_new_tokens
        return self.num_nodes if self.row_counts is None else self._tree_rows[scheduled.request.request_id]

    @cached_property
    def _tree_rows(self) -> dict[str, int]:
        counts = [self.num_nodes] * len(self.tree_requests) if self.row_counts is None else self.row_counts
        return {s.request.request_id: count for s, count in zip(self.tree_requests, counts, strict=True)}

    @cached_property
    def first_rows(self) -> dict[str, int]:
        """Flat row of each request's first token, by request id."""
        rows, first = {}, 0
        for scheduled in self.ordered:
            rows[scheduled.request.request_id] = first
            first += self.num_rows(scheduled)
        return rows


class InputBuilder:
    """Builds forward rows for the target.

    Args:
        layout: the slot numbering of the pool.
    """

    def __init__(self, layout: SlotLayout, device: torch.device) -> None:
        self._layout = layout
        self._device = device

    def key_slots(self, tables: Sequence[Sequence[int]], num_positions: int) -> Tensor:
        """Slots of the first `num_positions` logical positions of each block table.

        Returns:
            [num_reqs, context], context rounded up to whole chunks; entries past a table point to block 0.
        """
        block_size = self._layout.block_size
        context = -(-max(num_positions, 1) // CONTEXT_CHUNK) * CONTEXT_CHUNK
        num_blocks = -(-context // block_size)
        rows = [list(table[:num_blocks]) + [0] * (num_blocks - len(table)) for table in tables]
        blocks = self.tensor(rows)
        offsets = torch.arange(block_size, device=self._device)
        return (blocks.unsqueeze(-1) * block_size + offsets).flatten(1)[:, :context]

    def tensor(self, values: object) -> Tensor:
        """An integer tensor on the engine's device."""
        return torch.tensor(values, dtype=torch.long, device=self._device)

    def target_rows(self, step: StepLayout, tree: DraftTree | None) -> ForwardRows:
        """All rows of a step: tokens, positions, where K and V go, and what each row sees.

        Every place of a tree is a row here, for the trees share one rectangle: those behind `row_counts` are inert.
        """
        parts = []
        if step.tree_requests:
            assert tree is not None
            parts.append(self._tree_rows(step, tree))
        if step.plain_requests:
            parts.append(self._plain_rows(step.plain_requests))
        parts.extend(self._chunk_rows(scheduled) for scheduled in step.prefill_requests)
        groups, first = [], 0
        for part in parts:
            group = part.attention.groups[0]
            groups.append(AttentionGroup(first, group.key_slots, group.visible_lens, group.path_slots, group.path_lens))
            first += len(part.token_ids)
        return ForwardRows(
            torch.cat([part.token_ids for part in parts]),
            torch.cat([part.positions for part in parts]),
            torch.cat([part.slots for part in parts]),
            AttentionInputs(tuple(groups)),
        )

    def scratch_slots(self, rows: Sequence[int], num_places: int) -> Tensor:
        """Slots [num_reqs, num_places] of the scratch that belongs to each device row."""
        first = self.tensor([self._layout.scratch_slot(row, 0) for row in rows])
        return first.unsqueeze(-1) + torch.arange(num_places, device=self._device)

    def path_target_slots(self, requests: Sequence[ScheduledRequest], max_depth: int) -> Tensor:
        """Page slots of the positions behind each request's last known token: [num_reqs, max_depth]."""
        layout = self._layout
        slots = []
        for scheduled in requests:
            request = scheduled.request
            positions = range(request.num_tokens, request.num_tokens + max_depth)
            slots.append([layout.page_slot(request.block_ids, position) for position in positions])
        return self.tensor(slots)

    def _tree_rows(self, step: StepLayout, tree: DraftTree) -> ForwardRows:
        requests = [scheduled.request for scheduled in step.tree_requests]
        roots = [request.num_computed_tokens for request in requests]
        root_slots = [self._layout.page_slot(r.block_ids, root) for r, root in zip(requests, roots, strict=True)]
        node_slots = self.scratch_slots([request.row for request in requests], step.num_nodes - 1)
        if step.row_counts is not None:
            places = torch.arange(1, step.num_nodes, device=self._device)
            is_used = places < self.tensor(step.row_counts).unsqueeze(-1)
            node_slots = node_slots.where(is_used, self._layout.padding_slot)
        slots = torch.cat((self.tensor(root_slots).unsqueeze(-1), node_slots), dim=1)
        positions = self.tensor(roots).unsqueeze(-1) + tree.depths
        max_depth = max(scheduled.max_draft_depth for scheduled in step.tree_requests)
        nodes = path_nodes(tree.parents, tree.depths, max_depth)
        path_slots = slots.gather(1, nodes.clamp_min(0).flatten(1)).view(nodes.shape)
        group = AttentionGroup(
            0,
            self.key_slots([request.block_ids for request in requests], max(roots) + 1),
            (self.tensor(roots) + 1).unsqueeze(-1).expand(-1, step.num_nodes),
            path_slots,
            (nodes >= 0).sum(dim=-1),
        )
        return ForwardRows(tree.tokens.flatten(), positions.flatten(), slots.flatten(), AttentionInputs((group,)))

    def _plain_rows(self, scheduled_requests: Sequence[ScheduledRequest]) -> ForwardRows:
        requests = [scheduled.request for scheduled in scheduled_requests]
        positions = [request.num_computed_tokens for request in requests]
        slots = [self._layout.page_slot(r.block_ids, p) for r, p in zip(requests, positions, strict=True)]
        group = AttentionGroup(
            0,
            self.key_slots([request.block_ids for request in requests], max(positions) + 1),
            (self.tensor(positions) + 1).unsqueeze(-1),
        )
        tokens = self.tensor([r.token_ids[p] for r, p in zip(requests, positions, strict=True)])
        return ForwardRows(tokens, self.tensor(positions), self.tensor(slots), AttentionInputs((group,)))

    def _chunk_rows(self, scheduled: ScheduledRequest) -> ForwardRows:
        request, first = scheduled.request, scheduled.request.num_computed_tokens
        end = first + scheduled.num_new_tokens
        positions = torch.arange(first, end, device=self._device)
        key_slots = self.key_slots([request.block_ids], end)
        group = AttentionGroup(0, key_slots, (positions + 1).unsqueeze(0))
        tokens = self.tensor(request.token_ids[first:end])
        return ForwardRows(tokens, positions, key_slots[0, first:end], AttentionInputs((group,)))
