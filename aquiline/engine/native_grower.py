"""Growing draft trees on native kernels: one call a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from aquiline.engine.feature_store import FeatureStore
from aquiline.engine.guidance import Guidance
from aquiline.engine.kv_pool import KVPool
from aquiline.engine.tree import DraftTree
from aquiline.engine.tree_grower import DraftWork
from aquiline.kernels.cpu.extension import native
from aquiline.kernels.reference.sampling import TokenMasks
from aquiline.models.native_eagle import NativeEagle
from aquiline.models.native_growth import GrownNodes, NativeGrowth
from aquiline.request import Request
from aquiline.speculation import DynamicTree, StaticTree, max_children

if TYPE_CHECKING:
    from aquiline.kernels.cpu import _native

MAX_KEPT_SHAPES = 64


@dataclass(frozen=True)
class _NodePlaces:
    """Where the nodes of a step's trees stand."""

    parents: Tensor  # [num_trees, num_nodes]
    depths: Tensor  # [num_trees, num_nodes]
    is_valid: Tensor  # [num_trees, num_nodes]
    row_counts: tuple[int, ...] | None = None
    survivals: tuple[tuple[float, ...], ...] | None = None
    level_rows: tuple[int, ...] | None = None

    @property
    def num_nodes(self) -> int:
        return self.parents.shape[1]

    @classmethod
    def of_grown(cls, grown: GrownNodes, shape: DynamicTree, max_depths: Sequence[int]) -> _NodePlaces:
        """Of dynamic trees, without the nodes below each request's limit."""
        survivals, level_rows = grown.survivals, grown.level_rows
        if shape.least_survival > 0.0:
            parents, depths, is_valid = grown.parents, grown.depths, grown.is_valid
            width = max(grown.row_counts, default=1)
            if width < parents.shape[1]:
                parents, depths, is_valid = parents[:, :width], depths[:, :width], is_valid[:, :width]
            return cls(parents, depths, is_valid, grown.row_counts, survivals, level_rows)
        places = cls(grown.parents, grown.depths, grown.is_valid)
        if min(max_depths, default=shape.depth) < shape.depth:
            places = places._cut(max_depths)
            survivals = tuple(own[:count] for own, count in zip(survivals, places.row_counts or (), strict=True))
        return cls(places.parents, places.depths, places.is_valid, places.row_counts, survivals, level_rows)

    @classmethod
    def of(cls, parents: Tensor, depths: Tensor) -> _NodePlaces:
        return cls(parents, depths, torch.ones_like(depths, dtype=torch.bool))

    def first(self, held: list[int]) -> _NodePlaces:
        """The same with so many of the first nodes of each request, the root among them."""
        is_valid = torch.arange(self.depths.shape[1]) < torch.tensor(held).unsqueeze(1)
        return _NodePlaces(self.parents.where(is_valid, -1), self.depths, is_valid, tuple(held))

    def _cut(self, max_depths: Sequence[int]) -> _NodePlaces:
        is_valid = self.depths <= torch.tensor(max_depths).unsqueeze(1)
        places = torch.arange(1, is_valid.shape[1] + 1)
        row_counts = tuple((places * is_valid).amax(dim=1).tolist())  # up to the last node that stays
        return _NodePlaces(self.parents.where(is_valid, -1), self.depths, is_valid, row_counts)


class _LevelMasks:
    """Answers the native growth's question what grammars allow below the nodes of a level."""

    def __init__(self, guidance: Guidance, requests: Sequence[Request]) -> None:
        self._guidance = guidance
        self._requests = requests
        self._masks: TokenMasks | None = None

    def __call__(self, depth: int, owners: Sequence[int], path_tokens: Sequence[int]) -> tuple[int, list[int]]:
        """Where the masks lie, and the mask of every node; both stay until the next call.

        Args:
            owners: which of the requests each node belongs to.
            path_tokens: down to each node, [num_nodes, depth].
        """
        paths = [path_tokens[node * depth : (node + 1) * depth] for node in range(len(owners))]
        self._masks = self._guidance.masks_of([self._requests[owner] for owner in owners], paths)
        return (0, []) if self._masks is None else (self._masks.bits.data_ptr(), self._masks.rows.tolist())


class NativeGrower:
    """Grows trees under the keyed rule.

    Args:
        features: where the target's features of newly committed tokens wait.
    """

    def __init__(self, model: NativeEagle, pool: KVPool, features: FeatureStore) -> None:
        self._features = features
        layout, module = pool.layout, native()
        self._new_shape = module.StaticTree
        regions = module.SlotRegions(layout.num_blocks, layout.block_size, layout.max_num_seqs, layout.scratch_per_row)
        self._growth = NativeGrowth(model, regions, pool.draft_layers)
        self._shapes: dict[StaticTree, _native.StaticTree] = {}
        self._places: dict[tuple[StaticTree, int], _NodePlaces] = {}

    def run(self, work: DraftWork) -> DraftTree | None:
        """See `TreeGrower`."""
        new_rows = work.new_rows
        features = self._features.take(new_rows)
        batch = self._growth.new_batch(features)
        for scheduled, due in zip(work.behind, new_rows, strict=True):
            request, first = scheduled.request, scheduled.request.num_draft_rows + 1
            batch.add(
                request.block_ids,
                request.num_draft_rows,
                request.token_ids[first : first + due.count],
                request.row,
                scheduled.grown_depth,
            )
        if work.guidance is not None:
            batch.set_masks(_LevelMasks(work.guidance, [s.request for s in work.tree_requests]))
        shape, sampling = work.shape, self._growth.prepared(work.sampling)
        if isinstance(shape, StaticTree):
            tokens = self._growth.grow_static(batch, sampling, self._native_shape(shape))
            places = self._static_places(shape, work.num_trees)
        else:
            grown = self._growth.grow_dynamic(batch, sampling, shape)
            places = _NodePlaces.of_grown(grown, shape, [s.grown_depth for s in work.tree_requests])
            tokens = grown.tokens
            if places.num_nodes < tokens.shape[1]:
                tokens = tokens[:, : places.num_nodes]
        return self._tree(work, tokens, places) if work.num_trees else None

    def _tree(self, work: DraftWork, tokens: Tensor, places: _NodePlaces) -> DraftTree:
        shape = work.shape
        held = work.held_nodes()
        if held is not None:
            places = places.first(held)
        return DraftTree(
            tokens=tokens,
            parents=places.parents,
            depths=places.depths,
            is_valid=places.is_valid,
            max_depth=min(shape.depth, places.num_nodes - 1),
            max_children=max_children(shape),
            row_counts=places.row_counts,
            survivals=places.survivals,
            level_rows=places.level_rows,
            draft_to_target_ids=self._growth.draft_to_target_ids,
        )

    def _native_shape(self, shape: StaticTree) -> _native.StaticTree:
        if shape not in self._shapes:
            if len(self._shapes) == MAX_KEPT_SHAPES:
                self._shapes.clear()
            self._shapes[shape] = self._new_shape(list(shape.parents), list(shape.ranks))
        return self._shapes[shape]

    def _static_places(self, shape: StaticTree, num_trees: int) -> _NodePlaces:
        key = (shape, num_trees)
        if key not in self._places:
            if len(self._places) == MAX_KEPT_SHAPES:
                self._places.clear()
            parents, depths = torch.tensor(shape.parents), torch.tensor(shape.depths)
            self._places[key] = _NodePlaces.of(parents.repeat(num_trees, 1), depths.repeat(num_trees, 1))
        return self._places[key]
