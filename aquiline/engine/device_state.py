"""Everything that follows the committed tokens of a running request, changed together."""

from __future__ import annotations

from collections.abc import Sequence

from aquiline.engine.commit import CommittedRequest
from aquiline.engine.feature_store import FeatureStore
from aquiline.engine.guidance import Guidance
from aquiline.engine.inputs import StepLayout
from aquiline.engine.kv_pool import KVPool
from aquiline.engine.sampling_inputs import SamplingInputs, SamplingState
from aquiline.models.llama import TargetStates
from aquiline.request import Request


class DeviceState:
    """K/V, pending features, sampling rows and places in grammars of the running requests.

    Args:
        features: None in an engine without a draft.
    """

    def __init__(
        self, pool: KVPool, features: FeatureStore | None, sampling: SamplingState, guidance: Guidance
    ) -> None:
        self._pool = pool
        self._features = features
        self._sampling = sampling
        self._guidance = guidance
        self._rows: dict[str, int] = {}

    def admit(self, request: Request) -> None:
        """Set up the device row of a request that just began to run; nothing happens when it runs already."""
        if request.request_id in self._rows:
            return
        self._rows[request.request_id] = request.row
        self._sampling.add(request)
        self._guidance.admit(request)
        if self._features is not None and request.speculate:
            self._features.admit(request)

    def release(self, request: Request) -> None:
        """Forget a request that was preempted or has ended; nothing happens when it holds no row."""
        row = self._rows.pop(request.request_id, None)
        if row is None:
            return
        self._sampling.remove(row)
        self._guidance.release(request)
        if self._features is not None:
            self._features.release(row)

    def sampling_inputs(self, step: StepLayout) -> SamplingInputs:
        """Sampling parameters of the step's drawing requests."""
        return self._sampling.gather([scheduled.request for scheduled in step.drawing])

    def commit(self, step: StepLayout, states: TargetStates, committed: Sequence[CommittedRequest]) -> None:
        """Keep what the committed tokens leave behind: features for the draft, penalty counts, places in grammars."""
        drawn = [item for item in committed if item.token_ids]
        self._sampling.append_tokens([item.request for item in drawn], [item.token_ids for item in drawn])
        for item in drawn:
            self._guidance.commit(item.request, item.token_ids)
        if self._features is not None:
            self._keep_features(self._features, step, states, [c for c in committed if c.request.speculate])

    def _keep_features(
        self, store: FeatureStore, step: StepLayout, states: TargetStates, committed: Sequence[CommittedRequest]
    ) -> None:
        if not committed:
            return
        first_rows = step.first_rows
        block_size = self._pool.layout.block_size
        full_blocks: list[int] = []
        full_block_rows: list[int] = []
        for item in committed:
            request = item.request
            first = first_rows[request.request_id]
            rows = [first + row for row in item.computed_rows]
            first, end = rows[0], rows[0] + len(rows)
            if rows[-1] == end - 1:
                store.append(request.row, states.features, first, end)
            else:
                store.append(request.row, states.features[rows])
            num_computed = request.num_computed_tokens
            start = num_computed - len(rows)
            # Last positions of blocks. Worked example, block size 4, rows of positions 5 to 11: 7 and 11.
            for position in range(start - start % block_size + block_size - 1, num_computed, block_size):
                full_blocks.append(request.block_ids[position // block_size])
                full_block_rows.append(rows[position - num_computed])
        if full_blocks:
            store.keep_with_blocks(full_blocks, states.features[full_block_rows])
