"""Where native models read the rows of their tokens: a table of their own, the packed head, or the target's."""

from __future__ import annotations

from dataclasses import replace

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType

from aquiline.kernels import cpu
from aquiline.models.gguf_blocks import GgufBlocks
from aquiline.models.llama import TargetStates
from aquiline.models.loading import expected_draft_tensors
from aquiline.models.native_eagle import NativeEagle
from aquiline.models.native_llama import NativeLlama
from tests.models.forward_rows import scrambled_slots
from tests.models.native_models import AUX_LAYER_IDS, memory_of, packable_config, sequence_rows, target_tensors
from tests.tiny import random_tensors, tiny_eagle_config

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason=cpu.why_not())

TIED = packable_config(tie_word_embeddings=True)
UNTIED = packable_config()
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
TOKENS = torch.tensor([0, 60, 7, 7, 31])


def states_of(target: NativeLlama) -> TargetStates:
    rows = sequence_rows(TOKENS, 0, scrambled_slots(len(TOKENS)))
    return target.forward(rows, memory_of(target.config, 32))


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_tied_model_starts_from_the_numbers_of_its_file(quantization: str, dtype: torch.dtype) -> None:
    tensors = {name: tensor.to(dtype) for name, tensor in target_tensors(TIED).items()}
    # Numbers that bfloat16 cannot hold, where the type of the weights can.
    tensors[EMBEDDING] = (tensors[EMBEDDING].float() * 1.001).to(dtype)
    tied = NativeLlama.pack(TIED, tensors, quantization, aux_layer_ids=AUX_LAYER_IDS)
    tensors[HEAD] = tensors[EMBEDDING]
    untied = NativeLlama.pack(UNTIED, tensors, quantization, aux_layer_ids=AUX_LAYER_IDS)
    found, expected = states_of(tied), states_of(untied)
    assert torch.equal(found.features, expected.features)
    assert torch.equal(tied.logits(found.hidden_states), untied.logits(expected.hidden_states))


@pytest.mark.parametrize("storage", ["Q8_0", "Q4_0", "Q4_1"])
def test_target_and_draft_read_the_blocks_of_a_tied_head(storage: str) -> None:
    tensors = target_tensors(TIED)
    kind = GGMLQuantizationType[storage]
    stored = gguf.quants.quantize(tensors[EMBEDDING].numpy(), kind)
    shape = (TIED.vocab_size, TIED.hidden_size)
    blocks = {EMBEDDING: GgufBlocks(stored, storage, shape)}
    # What the blocks say, in float32: bfloat16 would round it.
    exact = torch.from_numpy(gguf.quants.dequantize(stored, kind))
    target = NativeLlama.pack(TIED, tensors, "auto", aux_layer_ids=AUX_LAYER_IDS, blocks=blocks)
    other = NativeLlama.pack(UNTIED, {**tensors, EMBEDDING: exact, HEAD: exact}, "auto", aux_layer_ids=AUX_LAYER_IDS)
    states = states_of(target)
    assert torch.equal(states.features, states_of(other).features)
    config = tiny_eagle_config(TIED, layers=replace(TIED, num_layers=1), draft_vocab_size=TIED.vocab_size)
    shapes = {name: shape for name, shape in expected_draft_tensors(config).items() if name != "draft_to_target_ids"}
    draft_tensors = {**random_tensors(shapes, 1), "draft_to_target_ids": torch.arange(TIED.vocab_size)}
    sharing = NativeEagle.pack(config, draft_tensors, target)
    owning = NativeEagle.pack(
        replace(config, has_own_embedding=True), {**draft_tensors, "embed_tokens.weight": exact}, target
    )
    rows = sequence_rows(TOKENS, 0, scrambled_slots(len(TOKENS)))
    drafted = [
        draft.forward(rows, draft.combine_features(states.features), memory_of(config.layers, 32)).head_inputs
        for draft in (sharing, owning)
    ]
    assert torch.equal(drafted[0], drafted[1])
