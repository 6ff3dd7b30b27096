"""From the schedule's integers to the tensors of the draft's forwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aquiline.engine.inputs import InputBuilder
from aquiline.engine.slots import SlotLayout
from aquiline.kernels import AttentionGroup, AttentionInputs
from aquiline.models.llama import ForwardRows
from aquiline.request import Request

FIRST_DRAFT_POSITION = 1  # slot 0 has no draft row: no token before it has a feature
WIDEST_SHARED_GROUP = 32


@dataclass(frozen=True)
class ExtendRows:
    """Draft rows of newly committed tokens.

    Attributes:
        feature_index: which taken feature each row reads; padding rows read the one behind the last.
        last_rows: flat row of each request's newest draft row, by request id.
    """

    forward: ForwardRows
    feature_index: Tensor  # [num_rows]
    last_rows: dict[str, int]


@dataclass(frozen=True)
class PrefixView:
    """What the draft nodes of a step see of their requests' pages."""

    key_slots: Tensor  # [num_reqs, context]
    root_positions: Tensor  # [num_reqs]
    scratch_slots: Tensor  # [num_reqs, num_places]


class DraftInputBuilder:
    """Builds forward rows for the draft."""

    def __init__(self, layout: SlotLayout, builder: InputBuilder) -> None:
        self._layout = layout
        self._builder = builder
        self.tensor = builder.tensor

    def extend_rows(self, requests: Sequence[Request], counts: Sequence[int]) -> ExtendRows:
        """Rows for the slots num_draft_rows + 1 .. num_draft_rows + count of every request.

        Worked example, count 2: num_draft_rows 4, num_computed_tokens 6, tokens t0..t5 and root t6:

            slot               5        6
            feature            h4       h5        (pending, in this order)
            token              t5       t6
            rotary position    4        5
            sees slots         1..5     1..6

        Requests with few rows share one attention group, padded to the longest; long prefills come alone.
        """
        count_of = {request.request_id: count for request, count in zip(requests, counts, strict=True)}
        short = [r for r in requests if count_of[r.request_id] <= WIDEST_SHARED_GROUP]
        groups = [short] if short else []
        groups += [[r] for r in requests if count_of[r.request_id] > WIDEST_SHARED_GROUP]
        first_feature, total = {}, 0
        for request in requests:
            first_feature[request.request_id] = total
            total += count_of[request.request_id]
        tokens: list[int] = []
        slots: list[int] = []
        positions: list[int] = []
        features: list[int] = []
        attention, last_rows = [], {}
        for group in groups:
            width = max(count_of[request.request_id] for request in group)
            first_row, visible = len(tokens), []
            for request in group:
                count, start = count_of[request.request_id], request.num_draft_rows + 1
                padding = width - count
                logical = range(start, start + count)
                last_rows[request.request_id] = len(tokens) + count - 1
                tokens += request.token_ids[start : start + count] + [0] * padding
                slots += [self._layout.page_slot(request.block_ids, slot) for slot in logical]
                slots += [self._layout.padding_slot] * padding
                positions += [slot - 1 for slot in logical] + [0] * padding
                first = first_feature[request.request_id]
                features += [*range(first, first + count), *([total] * padding)]
                visible.append([slot + 1 for slot in logical] + [0] * padding)
            tables = [request.block_ids for request in group]
            key_slots = self._builder.key_slots(tables, max(map(max, visible)))
            attention.append(AttentionGroup(first_row, key_slots, self._builder.tensor(visible)))
        tensor = self._builder.tensor
        inputs = AttentionInputs(tuple(attention), FIRST_DRAFT_POSITION)
        return ExtendRows(
            ForwardRows(tensor(tokens), tensor(positions), tensor(slots), inputs), tensor(features), last_rows
        )

    def prefix_view(self, requests: Sequence[Request], num_places: int) -> PrefixView:
        """Pages up to and including the root's slot, and scratch for `num_places` nodes per request."""
        roots = [request.num_computed_tokens for request in requests]
        return PrefixView(
            self._builder.key_slots([request.block_ids for request in requests], max(roots) + 1),
            self._builder.tensor(roots),
            self._builder.scratch_slots([request.row for request in requests], num_places),
        )

    def level_rows(self, view: PrefixView, tokens: Tensor, paths: Tensor, depth: int) -> ForwardRows:
        """Rows of draft nodes that all lie at `depth` (1 is a child of the root).

        The node at depth d stands at logical position root + d, so its rotary position is root + d - 1.

        Args:
            tokens: [num_reqs, num_nodes].
            paths: scratch places on the way down to each node, itself last; [num_reqs, num_nodes, depth].
        """
        num_reqs, num_nodes = tokens.shape
        path_slots = view.scratch_slots.gather(1, paths.flatten(1)).view(paths.shape)
        positions = (view.root_positions + depth - 1).unsqueeze(-1).expand(num_reqs, num_nodes)
        group = AttentionGroup(
            0,
            view.key_slots,
            (view.root_positions + 1).unsqueeze(-1).expand(num_reqs, num_nodes),
            path_slots,
            torch.full((num_reqs, num_nodes), depth, dtype=torch.long, device=tokens.device),
        )
        inputs = AttentionInputs((group,), FIRST_DRAFT_POSITION)
        return ForwardRows(tokens.flatten(), positions.flatten(), path_slots[:, :, -1].flatten(), inputs)
