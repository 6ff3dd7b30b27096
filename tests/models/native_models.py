"""Tiny native models beside reference models of the same weights, which bfloat16 can hold."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from aquiline.kernels import AttentionGroup, AttentionInputs
from aquiline.kernels.cpu import PackedLinear, Threads
from aquiline.models.eagle import EagleModel
from aquiline.models.kv_layer import KVLayer
from aquiline.models.llama import ForwardRows, LlamaModel
from aquiline.models.loading import expected_draft_tensors, expected_target_tensors
from aquiline.models.model_config import EagleConfig, LlamaConfig
from aquiline.models.native_eagle import NativeEagle
from aquiline.models.native_llama import NativeLlama
from aquiline.models.native_weights import kind_of
from tests.tiny import random_tensors, tiny_llama_config

AUX_LAYER_IDS = (0, 1, 3)


def packable_config(**changes: object) -> LlamaConfig:
    """Sizes are multiples of 32 where a packed matrix needs it, and odd elsewhere."""
    return replace(
        tiny_llama_config(hidden_size=96, intermediate_size=160, num_heads=6, head_dim=16),
        **changes,  # type: ignore[arg-type]
    )


def rounded(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same numbers, as bfloat16 rounds them, in float32."""
    return {name: tensor.bfloat16().float() for name, tensor in tensors.items()}


def target_tensors(config: LlamaConfig, seed: int = 0) -> dict[str, Tensor]:
    return rounded(random_tensors(expected_target_tensors(config), seed, scale=0.15))


def target_pair(
    config: LlamaConfig, quantization: str = "none", num_threads: int = 1, dtype: torch.dtype = torch.float32
) -> tuple[LlamaModel, NativeLlama]:
    """A target by the reference, in float32 with the weights that packing leaves, and by the native kernels."""
    tensors = target_tensors(config)
    typed = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    native = NativeLlama.pack(config, typed, quantization, Threads(num_threads), AUX_LAYER_IDS)
    for name, tensor in tensors.items():
        if name.endswith("_proj.weight") or name == "lm_head.weight":
            tensors[name] = PackedLinear.from_tensor(tensor, kind_of(quantization)).unpack()
    return LlamaModel(config, tensors, AUX_LAYER_IDS), native


def error(result: Tensor, expected: Tensor) -> float:
    """Root mean square of the difference, relative to that of what is expected."""
    return float((result.double() - expected.double()).norm() / expected.double().norm())


def draft_pair(config: EagleConfig, targets: tuple[LlamaModel, NativeLlama]) -> tuple[EagleModel, NativeEagle]:
    """A draft by the reference and by the native kernels."""
    shapes = {name: shape for name, shape in expected_draft_tensors(config).items() if name != "draft_to_target_ids"}
    tensors = rounded(random_tensors(shapes, 1, scale=0.15))
    tensors["draft_to_target_ids"] = torch.arange(config.draft_vocab_size)
    reference = EagleModel(config, tensors, targets[0].embedding, targets[0].head)
    return reference, NativeEagle.pack(config, tensors, targets[1], "none")


def memory_of(config: LlamaConfig, num_slots: int, dtype: torch.dtype = torch.float32) -> list[KVLayer]:
    """K/V memory of every layer, filled with NaN; int8 numbers have scales of NaN."""
    shape = (num_slots, config.num_kv_heads, config.head_dim)
    if dtype == torch.int8:
        return [quantised_layer(shape) for _ in range(config.num_layers)]
    nothing = torch.full(shape, torch.nan, dtype=dtype)
    return [KVLayer(nothing.clone(), nothing.clone()) for _ in range(config.num_layers)]


def quantised_layer(shape: tuple[int, int, int]) -> KVLayer:
    """int8 memory; what is not written has a scale of NaN."""
    numbers, scales = torch.zeros(shape, dtype=torch.int8), torch.full(shape[:2], torch.nan)
    return KVLayer(numbers, numbers.clone(), scales, scales.clone())


def sequence_rows(token_ids: Tensor, first: int, slots: Tensor, first_position: int = 0) -> ForwardRows:
    """Rows at positions first, first + 1, ... of one sequence whose logical positions lie in `slots`."""
    end = first + len(token_ids)
    positions = torch.arange(first, end)
    group = AttentionGroup(0, slots.unsqueeze(0), (positions + 1).unsqueeze(0))
    return ForwardRows(token_ids, positions, slots[first:end], AttentionInputs((group,), first_position))


def tree_rows(token_ids: Tensor, parents: list[int], root: int, slots: Tensor, scratch: Tensor) -> ForwardRows:
    """Rows of a draft tree: node 0, the root, stands at position `root` in the pages, node i in scratch[i - 1].

    Every node sees the pages up to the root and the nodes on its own path.
    """
    paths: list[list[int]] = [[]]
    for node in range(1, len(parents)):
        paths.append([*paths[parents[node]], node])
    capacity = max(map(len, paths)) + 1
    path_slots = torch.zeros(1, len(parents), capacity, dtype=torch.long)
    for node, path in enumerate(paths):
        path_slots[0, node, : len(path)] = scratch[[step - 1 for step in path]]
    lengths = torch.tensor([[len(path) for path in paths]])
    visible = torch.tensor([[root + 1]]).expand(1, len(parents))
    group = AttentionGroup(0, slots.unsqueeze(0), visible, path_slots, lengths)
    row_slots = torch.cat((slots[root : root + 1], scratch[: len(parents) - 1]))
    return ForwardRows(token_ids, root + lengths[0], row_slots, AttentionInputs((group,)))
