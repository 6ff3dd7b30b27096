"""The quickstart model on native kernels, against its float32 reference on a short text."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from aquiline.kernels import cpu
from aquiline.kernels.cpu import Threads
from aquiline.model_store import cached_path
from aquiline.models.gguf_blocks import KEPT_TYPES
from aquiline.models.llama import LlamaModel
from aquiline.models.loading import open_target
from aquiline.models.native_llama import NativeLlama
from aquiline.tokenizer import Tokenizer
from tests.models.forward_rows import scrambled_slots
from tests.models.native_models import memory_of, sequence_rows
from tests.quickstart_model import IS_ON_DISK, PULL_IT, QUICKSTART_MODEL

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not IS_ON_DISK, reason=PULL_IT),
    pytest.mark.skipif(not cpu.is_available(), reason=cpu.why_not()),
]

TEXT = (
    "The eagle is a bird of prey. It builds its nest, called an eyrie, in tall trees or on high cliffs, and comes back "
    "to the same place every year. Most kinds lay two eggs; the older chick is often the only one that survives. An "
    "eagle sees a rabbit from a distance of three kilometres, because its eyes hold many more cells for each patch of "
    "the picture than ours do. People have put eagles on coins, flags and coats of arms for thousands of years."
)
# Mean Kullback-Leibler divergence from the reference in nats, and share of positions with the same most likely token.
LIMITS = {"none": (0.0005, 0.97), "auto": (0.006, 0.91), "int8": (0.01, 0.89)}


@pytest.fixture(scope="module")
def token_ids() -> Tensor:
    return torch.tensor(Tokenizer.from_path(cached_path(QUICKSTART_MODEL)).encode(TEXT))


@pytest.fixture(scope="module")
def expected(token_ids: Tensor) -> Tensor:
    """Log-probabilities of the reference in float32, [num_tokens, vocab]."""
    loaded = open_target(cached_path(QUICKSTART_MODEL), torch.float32)
    model = LlamaModel(loaded.config, loaded.tensors)
    rows = sequence_rows(token_ids, 0, scrambled_slots(len(token_ids)))
    states = model.forward(rows, memory_of(loaded.config, 160))
    return torch.log_softmax(model.logits(states.hidden_states), dim=-1)


@pytest.mark.parametrize("quantization", LIMITS)
def test_distributions_are_near_those_of_the_reference(quantization: str, token_ids: Tensor, expected: Tensor) -> None:
    path = cached_path(QUICKSTART_MODEL)
    loaded = open_target(path, torch.bfloat16, kept_types=KEPT_TYPES if quantization == "auto" else ())
    model = NativeLlama.pack(loaded.config, loaded.tensors, quantization, Threads(1), blocks=loaded.blocks)
    rows = sequence_rows(token_ids, 0, scrambled_slots(len(token_ids)))
    states = model.forward(rows, memory_of(loaded.config, 160, torch.bfloat16))
    found = torch.log_softmax(model.logits(states.hidden_states), dim=-1)
    divergence = float((expected.exp() * (expected - found)).sum(dim=-1).mean())
    agreement = float((expected.argmax(dim=-1) == found.argmax(dim=-1)).float().mean())
    most, least = LIMITS[quantization]
    assert 0 <= divergence < most and agreement >= least, f"KL {divergence:.5f}, agreement {agreement:.3f}"
