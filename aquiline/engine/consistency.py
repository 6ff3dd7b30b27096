"""Recompute a request from scratch and compare every state that must describe its committed history."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from aquiline.engine.draft_inputs import DraftInputBuilder
from aquiline.engine.feature_store import FeatureStore
from aquiline.engine.inputs import InputBuilder, StepLayout
from aquiline.engine.kv_pool import KVPool
from aquiline.engine.sampling_inputs import SamplingState
from aquiline.engine.schedule import ScheduledRequest
from aquiline.engine.slots import SlotLayout
from aquiline.errors import ConsistencyError
from aquiline.models.interfaces import DraftModel, TargetModel
from aquiline.models.kv_layer import KVLayer
from aquiline.request import Request, SamplingParams


@dataclass(frozen=True)
class CheckedState:
    """What an engine holds of its running requests."""

    pool: KVPool
    features: FeatureStore | None
    sampling: SamplingState


class ConsistencyChecker:
    """Compares a running engine with a fresh computation, bit for bit.

    Bits agree because kernels are row-independent: one prefill of the whole history gives the very rows that chunks,
    trees and plain steps gave.
    """

    def __init__(self, target: TargetModel, draft: DraftModel | None, state: CheckedState) -> None:
        self._target = target
        self._draft = draft
        self._state = state

    def check(self, requests: Iterable[Request]) -> None:
        """Check requests that run.

        Raises:
            ConsistencyError: names the request, the state and the first position that differs.
        """
        for request in requests:
            if request.num_computed_tokens:
                self._check_request(request)

    def _check_request(self, request: Request) -> None:
        history = request.token_ids[: request.num_computed_tokens + 1]
        fresh_pool, features = self._compute(history, request.num_computed_tokens)
        slots = self._page_slots(request, 0, request.num_computed_tokens)
        name = f"request {request.request_id}"
        fresh = torch.arange(request.num_computed_tokens)
        _compare_layers(f"{name}: target KV", self._state.pool.target_layers, slots, fresh_pool.target_layers, fresh)
        self._check_penalty_counts(request)
        if self._draft is None or self._state.features is None or not request.speculate:
            return
        pending = self._state.features.pending(request.row)
        _compare(f"{name}: pending features", pending, features[request.num_draft_rows :], request.num_draft_rows)
        if request.num_draft_rows:
            draft_slots = self._page_slots(request, 1, request.num_draft_rows + 1)
            fresh = torch.arange(1, request.num_draft_rows + 1)
            layers = self._state.pool.draft_layers
            _compare_layers(f"{name}: draft KV", layers, draft_slots, fresh_pool.draft_layers, fresh)

    def _page_slots(self, request: Request, first: int, end: int) -> Tensor:
        layout = self._state.pool.layout
        return torch.tensor([layout.page_slot(request.block_ids, position) for position in range(first, end)])

    def _compute(self, history: Sequence[int], num_computed: int) -> tuple[KVPool, Tensor]:
        """Target KV, features and draft KV of a history whose last token is not computed; slot = position."""
        layout = SlotLayout(num_blocks=1, block_size=len(history), max_num_seqs=1, scratch_per_row=0)
        draft_config = None if self._draft is None else self._draft.config.layers
        memory = replace(self._state.pool.memory, poison=True)
        pool = KVPool(layout, self._target.config, draft_config, memory)
        builder = InputBuilder(layout, self._target.device)
        replay = Request("replay", tuple(history), SamplingParams(), seed=0, block_ids=[0])
        scheduled = ScheduledRequest(replay, num_computed, draws_token=False, max_draft_depth=0)
        rows = builder.target_rows(StepLayout((), (), (scheduled,), 1), None)
        features = self._target.forward(rows, pool.target_layers).features
        if self._draft is not None:
            replay.num_computed_tokens = num_computed
            extend = DraftInputBuilder(layout, builder).extend_rows([replay], [num_computed])
            self._draft.forward(extend.forward, self._draft.combine_features(features), pool.draft_layers)
        return pool, features

    def _check_penalty_counts(self, request: Request) -> None:
        penalties = self._state.sampling.gather([request]).rules.penalties
        if penalties is None:
            return
        counts = penalties.output_counts.take(torch.zeros(1, dtype=torch.long), None)[0]
        output_ids = torch.tensor(request.output_token_ids, dtype=torch.long)
        fresh = torch.bincount(output_ids, minlength=counts.shape[0]).to(counts.dtype)
        _compare(f"request {request.request_id}: penalty counts", counts.unsqueeze(1), fresh.unsqueeze(1), 0)


def _compare_layers(
    name: str, held: Sequence[KVLayer], held_slots: Tensor, fresh: Sequence[KVLayer], fresh_slots: Tensor
) -> None:
    for index, (held_layer, fresh_layer) in enumerate(zip(held, fresh, strict=True)):
        first = int(fresh_slots[0])
        label = f"{name} of layer {index}"
        names = ("keys", "values", "key scales", "value scales")
        for part, mine, right in zip(names, held_layer.tensors(), fresh_layer.tensors(), strict=False):
            _compare(f"{label} ({part})", mine[held_slots], right[fresh_slots], first)


def _compare(name: str, held: Tensor, fresh: Tensor, first_position: int) -> None:
    """Raise ConsistencyError unless both have the same rows; NaN equals nothing, so poison shows as well."""
    if held.shape != fresh.shape:
        raise ConsistencyError(f"{name}: {held.shape[0]} rows are held, {fresh.shape[0]} are right")
    wrong = (held != fresh).flatten(1).any(dim=1)
    if bool(wrong.any()):
        position = first_position + int(wrong.to(torch.int32).argmax())
        raise ConsistencyError(f"{name} differs from a fresh computation at position {position}")
