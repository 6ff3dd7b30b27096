"""Derive the engine's sizes from its settings and the models it serves."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from aquiline.config import EngineConfig
from aquiline.engine.kv_pool import block_bytes
from aquiline.engine.slots import SlotLayout
from aquiline.engine.tree_families import TreeBounds
from aquiline.errors import InvalidParameterError
from aquiline.models.model_config import EagleConfig, LlamaConfig
from aquiline.speculation import TreeShape, max_children

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
KV_DTYPES = DTYPES | {"int8": torch.int8}
DEFAULT_CACHE_BYTES = 2**30


@dataclass(frozen=True)
class EngineSizes:
    """Sizes that hold for the engine's life.

    Attributes:
        max_model_len: most tokens of a request.
        layout: of the K/V slots.
    """

    max_model_len: int
    layout: SlotLayout

    @classmethod
    def derive(
        cls,
        config: EngineConfig,
        target: LlamaConfig,
        draft: EagleConfig | None,
        bounds: TreeBounds,
        max_known_tokens: int = 0,
    ) -> EngineSizes:
        """Settle every size.

        Args:
            bounds: of the trees that the draft model grows.
            max_known_tokens: most looked-up nodes of a tree.

        Raises:
            InvalidParameterError: the settings do not fit the model or each other.
        """
        max_model_len = config.scheduler.max_model_len or target.max_position
        if max_model_len > target.max_position:
            raise InvalidParameterError(
                f"max_model_len is {max_model_len}; this model was made for at most {target.max_position} tokens"
            )
        scratch = 0
        if draft is not None:
            for shape in config.speculative.shapes:
                _check_width(shape, draft.draft_vocab_size)
            scratch = bounds.num_scratch_places
        layout = SlotLayout(
            num_blocks=_num_blocks(config, target, draft, max_model_len),
            block_size=config.cache.block_size,
            max_num_seqs=config.scheduler.max_num_seqs,
            scratch_per_row=scratch + max_known_tokens,
        )
        _check_memory(layout, target, draft, config)
        return cls(max_model_len, layout)


def _num_blocks(config: EngineConfig, target: LlamaConfig, draft: EagleConfig | None, max_model_len: int) -> int:
    cache = config.cache
    if cache.num_blocks is not None:
        return cache.num_blocks
    models = [target] if draft is None else [target, draft.layers]
    size = block_bytes(cache.block_size, models, KV_DTYPES[config.kv_dtype])
    if cache.kv_cache_gb is not None:
        num_blocks = int(cache.kv_cache_gb * 2**30 / size)
        if num_blocks < 1:
            raise InvalidParameterError(
                f"kv_cache_gb is {cache.kv_cache_gb:g}; it must be at least {size / 2**30:.3g}, the size of one block"
            )
        return num_blocks
    enough = config.scheduler.max_num_seqs * -(-max_model_len // cache.block_size)
    return max(1, min(enough, DEFAULT_CACHE_BYTES // size))


def _check_memory(layout: SlotLayout, target: LlamaConfig, draft: EagleConfig | None, config: EngineConfig) -> None:
    models = [target] if draft is None else [target, draft.layers]
    needed = layout.num_slots * block_bytes(1, models, KV_DTYPES[config.kv_dtype])
    if draft is not None:
        needed += layout.num_blocks * draft.feature_size * DTYPES[config.dtype].itemsize
    present = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > present:
        raise InvalidParameterError(
            f"the cache would take {needed / 2**30:.3g} GiB; this machine has {present / 2**30:.3g} GiB of memory:"
            " ask for a smaller kv_cache_gb or num_blocks, or fewer max_num_seqs"
        )


def _check_width(shape: TreeShape, draft_vocab_size: int) -> None:
    width = max_children(shape)
    if width > draft_vocab_size:
        raise InvalidParameterError(
            f"the tree has {width} children at one node; the draft knows only {draft_vocab_size} tokens"
        )
