"""Draft growth on native kernels: the rows of a step and all levels of its trees in one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from aquiline.errors import InvalidParameterError
from aquiline.kernels.cpu.extension import native
from aquiline.kernels.cpu.forward import RotaryTable, check_tensor
from aquiline.kernels.cpu.sampling import NativeSampling
from aquiline.kernels.sampling_kernels import SamplingRequests
from aquiline.models.kv_layer import KVLayer
from aquiline.models.native_eagle import NativeEagle
from aquiline.models.native_llama import FLOATS
from aquiline.speculation import DynamicTree

if TYPE_CHECKING:
    from aquiline.kernels.cpu import _native


@dataclass(frozen=True)
class GrownNodes:
    """Trees of one size; node 0 is the root.

    Attributes:
        tokens, depths: [num_trees, num_nodes]
        parents: [num_trees, num_nodes], -1 for the root.
        is_valid: [num_trees, num_nodes], whether a place holds a node.
        row_counts: places of each tree that hold nodes, the root's included; behind them stands parent -1.
        survivals: of those nodes, the product of the confidences from the root down.
        level_rows: nodes that the draft proposed children of, by depth, the roots first.
    """

    tokens: Tensor
    parents: Tensor
    depths: Tensor
    is_valid: Tensor
    row_counts: tuple[int, ...]
    survivals: tuple[tuple[float, ...], ...]
    level_rows: tuple[int, ...]


class NativeGrowth:
    """Extends a draft and grows its trees over one K/V memory.

    Args:
        regions: which slot of the memory means what.
        memory: of the draft's layers.
    """

    def __init__(self, draft: NativeEagle, regions: _native.SlotRegions, memory: Sequence[KVLayer]) -> None:
        self._draft = draft
        self._regions = regions
        self._memory = memory
        self._sampling = NativeSampling(draft.threads)
        module = native()
        self._new_batch = module.draft_batch
        self._dynamic_shape = module.dynamic_shape
        self._node_arrays = module.node_arrays
        self._rotary: RotaryTable | None = None
        self._places: _native.DraftPlaces
        ids = draft.draft_to_target_ids.contiguous()
        check_tensor(ids, "draft_to_target_ids", (torch.int64,), (draft.head.out_features,))
        self._native: _native.DraftGrowth = module.DraftGrowth(
            draft.threads.handle, draft.handle, draft.head.handle, ids.data_ptr(), draft.config.norm_output
        )

    @property
    def draft_to_target_ids(self) -> Tensor:
        """Target id of every draft token, [draft_vocab]."""
        return self._draft.draft_to_target_ids

    def prepared(self, sampling: SamplingRequests) -> _native.SamplingRequests:
        """The sampling parameters of a step's drawing requests, those that grow trees first."""
        return self._sampling.prepared(sampling, self._draft.config.layers.vocab_size).handle

    def new_batch(self, features: Tensor) -> _native.DraftBatch:
        """A batch without requests; they are added in the order of their features.

        Args:
            features: of the new rows of all requests, bfloat16 or float32 [num_rows, feature_size]; to be kept alive
                until the batch has run.
        """
        check_tensor(features, "features", FLOATS, (None, self._draft.config.feature_size))
        batch: _native.DraftBatch = self._new_batch(
            features.data_ptr(), features.dtype == torch.bfloat16, features.shape[0]
        )
        return batch

    def grow_static(
        self, batch: _native.DraftBatch, sampling: _native.SamplingRequests, shape: _native.StaticTree
    ) -> Tensor:
        """Write the draft rows of the batch and grow a tree for each request that may have one.

        Args:
            sampling: of the step's drawing requests, those of the trees first.

        Returns:
            Target ids of the nodes, [num_trees, num_nodes]; 0 where a node lies deeper than any request may have it.

        Raises:
            IndexError: a block, slot, position or token that does not exist.
            InvalidParameterError: a node with more children than the draft has tokens.
        """
        tokens = torch.empty((batch.num_trees, shape.num_nodes), dtype=torch.int64)
        places = self._places_up_to(batch.last_position + shape.depth)
        try:
            self._native.run_static(places, batch, sampling, shape, tokens.data_ptr())
        except ValueError as error:
            raise InvalidParameterError(str(error)) from None
        return tokens

    def grow_dynamic(
        self, batch: _native.DraftBatch, sampling: _native.SamplingRequests, shape: DynamicTree
    ) -> GrownNodes:
        """The same for trees that the draft's confidence shapes.

        Without a least survival they grow to full depth, whatever depth a request may have.
        """
        tokens, parents, depths = torch.empty(
            (3, batch.num_trees, shape.num_draft_tokens + 1), dtype=torch.int64
        ).unbind()
        is_valid = torch.empty(tokens.shape, dtype=torch.bool)
        places = self._places_up_to(batch.last_position + shape.depth)
        try:
            sizes = self._native.run_dynamic(
                places,
                batch,
                sampling,
                self._dynamic_shape(shape.steps, shape.topk, shape.num_draft_tokens, shape.least_survival),
                self._node_arrays(tokens.data_ptr(), parents.data_ptr(), depths.data_ptr(), is_valid.data_ptr()),
            )
        except ValueError as error:
            raise InvalidParameterError(str(error)) from None
        survivals = tuple(map(tuple, sizes.survivals))
        return GrownNodes(
            tokens, parents, depths, is_valid, tuple(sizes.row_counts), survivals, tuple(sizes.level_rows)
        )

    def _places_up_to(self, last_position: int) -> _native.DraftPlaces:
        """Memory and rotary angles, which change only when a context outgrows the table."""
        rotary = self._draft.inputs.rotary(last_position)
        if rotary is not self._rotary:
            memory = self._draft.inputs.memory(self._memory)
            self._places = native().draft_places(self._regions, memory.handle, rotary.handle)
            self._rotary = rotary
        return self._places
