"""A native draft in the middle of its work: requests with scattered blocks, draft rows behind, and parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from aquiline.engine.draft_inputs import DraftInputBuilder
from aquiline.engine.feature_store import FeatureStore
from aquiline.engine.inputs import InputBuilder
from aquiline.engine.kv_pool import KVPool, MemoryKind
from aquiline.engine.native_grower import NativeGrower
from aquiline.engine.sample import Sampler
from aquiline.engine.sampling_inputs import SamplingInputs, SamplingState
from aquiline.engine.schedule import ScheduledRequest
from aquiline.engine.slots import SlotLayout
from aquiline.engine.tree import DraftTree
from aquiline.engine.tree_grower import DraftWork, ReferenceGrower, TreeGrower
from aquiline.kernels.cpu import Threads
from aquiline.models.kv_layer import KVLayer
from aquiline.models.loading import expected_draft_tensors
from aquiline.models.native_eagle import NativeEagle
from aquiline.models.native_llama import NativeLlama
from aquiline.request import Request, SamplingParams
from aquiline.speculation import TreeShape
from tests.models.native_models import AUX_LAYER_IDS, packable_config, rounded, target_tensors
from tests.tiny import VOCAB, random_tensors, tiny_eagle_config

LAYOUT = SlotLayout(num_blocks=80, block_size=4, max_num_seqs=5, scratch_per_row=40)
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Progress:
    """How far a request has come; one that has `max_depth` 0 grows no tree."""

    num_draft_rows: int
    num_computed_tokens: int
    max_depth: int
    params: SamplingParams
    num_prompt_tokens: int = 1


def native_draft(quantization: str = "none", num_threads: int = 1, kind: str = "eagle3", **changes: Any) -> NativeEagle:
    """A random draft; the reduced vocabulary is spread over the target's."""
    target_config = packable_config()
    threads = Threads(num_threads)
    target = NativeLlama.pack(
        target_config,
        target_tensors(target_config),
        quantization,
        threads,
        aux_layer_ids=AUX_LAYER_IDS if kind == "eagle3" else (),
    )
    config = replace(tiny_eagle_config(target_config, kind), **changes)
    config = replace(config, layers=replace(config.layers, num_layers=2, intermediate_size=64))
    shapes = {name: shape for name, shape in expected_draft_tensors(config).items() if name != "draft_to_target_ids"}
    tensors = rounded(random_tensors(shapes, 1, scale=0.15))
    every_other = torch.arange(1, VOCAB, 2)
    rest = torch.arange(0, 2 * (config.draft_vocab_size - len(every_other)), 2)
    tensors["draft_to_target_ids"] = torch.cat((every_other, rest)).sort().values
    return NativeEagle.pack(config, tensors, target, quantization)


@dataclass(frozen=True)
class Grown:
    """What a grower left behind."""

    tree: DraftTree | None
    keys: Tensor  # of all layers, [num_layers, num_slots, num_kv_heads, head_dim]
    values: Tensor


class GrowthCase:
    """The same situation for one grower after another.

    Args:
        progress: requests in the order of the step, those with a tree first.
        dtype: of memory and features.
    """

    def __init__(self, progress: Sequence[Progress], dtype: torch.dtype = torch.bfloat16) -> None:
        self.generator = torch.Generator().manual_seed(7)
        self.progress = progress
        self.dtype = dtype
        blocks = torch.randperm(LAYOUT.num_blocks, generator=self.generator).tolist()
        rows = torch.randperm(LAYOUT.max_num_seqs, generator=self.generator).tolist()
        self.requests = []
        for index, own in enumerate(progress):
            count = own.num_computed_tokens + 1
            tokens = torch.randint(0, VOCAB, (count,), generator=self.generator).tolist()
            request = Request(str(index), tuple(tokens[: own.num_prompt_tokens]), own.params, seed=40 + index)
            request.token_ids = tokens
            needed = -(-(count + own.max_depth) // LAYOUT.block_size)
            request.block_ids = [blocks.pop() for _ in range(needed)]
            request.row = rows[index]
            request.num_computed_tokens = own.num_computed_tokens
            request.num_draft_rows = own.num_draft_rows
            self.requests.append(request)
        width = 3 * packable_config().hidden_size
        self.features = [
            torch.randn(own.num_computed_tokens - own.num_draft_rows, width, generator=self.generator).to(dtype)
            for own in progress
        ]

    def memory(self, draft: NativeEagle, num_slots: int) -> list[KVLayer]:
        """K/V of the draft's layers, all zero."""
        layers = draft.config.layers
        zeros = torch.zeros(num_slots, layers.num_kv_heads, layers.head_dim, dtype=self.dtype)
        return [KVLayer(zeros.clone(), zeros.clone()) for _ in range(layers.num_layers)]

    def sampling(self) -> SamplingInputs:
        """Of all requests."""
        state = SamplingState(LAYOUT.max_num_seqs, VOCAB)
        for request in self.requests:
            state.add(request)
        return state.gather(self.requests)

    def grow(self, draft: NativeEagle, shape: TreeShape, natively: bool, only: Sequence[int] | None = None) -> Grown:
        """Run one grower over a fresh memory, whose pages hold random numbers and whose scratch holds poison.

        Args:
            only: the requests that take part; None: all.
        """
        chosen = range(len(self.requests)) if only is None else only
        pool = KVPool(LAYOUT, packable_config(), draft.config.layers, MemoryKind(self.dtype, CPU, poison=True))
        generator = torch.Generator().manual_seed(11)
        for layer in pool.draft_layers:
            for tensor in (layer.keys, layer.values):
                pages = tensor[: LAYOUT.num_page_slots]
                pages.copy_(torch.randn(pages.shape, generator=generator))
        width, kind = draft.config.feature_size, MemoryKind(self.dtype, CPU)
        features = FeatureStore(LAYOUT.num_blocks, LAYOUT.block_size, width, kind)
        for index in chosen:
            request = self.requests[index]
            features.admit(Request("new", (0,), SamplingParams(), seed=0, row=request.row))
            features.append(request.row, self.features[index][:, :width].contiguous())
        scheduled = [
            ScheduledRequest(self.requests[index], 1, draws_token=True, max_draft_depth=depth, grown_depth=depth)
            for index, depth in ((index, self.progress[index].max_depth) for index in chosen)
        ]
        num_trees = sum(s.grown_depth > 0 for s in scheduled)
        state = SamplingState(LAYOUT.max_num_seqs, VOCAB)
        for own in scheduled:
            state.add(own.request)
        sampling = state.gather([own.request for own in scheduled])
        sampler = Sampler(VOCAB)
        builder = DraftInputBuilder(LAYOUT, InputBuilder(LAYOUT, CPU))
        grower: TreeGrower = ReferenceGrower(draft, pool, features, sampler, builder)
        if natively:
            grower = NativeGrower(draft, pool, features)
        tree = grower.run(DraftWork(scheduled, num_trees, shape, sampling))
        keys = torch.stack([layer.keys for layer in pool.draft_layers])
        values = torch.stack([layer.values for layer in pool.draft_layers])
        return Grown(tree, keys, values)
