"""The code that trains and the code that serves expect the same of a head, position by position."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from aquiline.engine.kv_pool import MemoryKind
from aquiline.models.loading import load_target
from aquiline.training.fake_quantization import fake_quantized
from aquiline.training.network import FrozenWeights
from aquiline.training.settings import ServedQuantization
from aquiline.training.teacher_forced import WrittenText, compute_features, rank_text
from aquiline.training.trained_ranks import rank_by_training
from aquiline.training.walk import RankedText
from tests.training.toy_models import TOY_TARGET, open_toy, write_toys

MEMORY = MemoryKind(torch.float32, torch.device("cpu"))
MAX_DEPTH = 3


def any_text() -> WrittenText:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, TOY_TARGET.vocab_size, (40,), generator=generator).tolist()
    features = torch.randn(39, 3 * TOY_TARGET.hidden_size, generator=generator)
    return WrittenText("any", tuple(ids), 10, 30, features)


def frozen_weights(folder: Path) -> FrozenWeights:
    weights = load_target(folder / "target", torch.float32).tensors
    return FrozenWeights(weights["model.embed_tokens.weight"], weights["lm_head.weight"])


@pytest.mark.parametrize(("num_prompt_tokens", "max_tokens"), [(5, 40), (1, 9), (20, 30)])
def test_ranks_are_equal(num_prompt_tokens: int, max_tokens: int, tmp_path: Path) -> None:
    folder = write_toys(tmp_path)
    llm = open_toy(folder)
    assert llm.models.draft is not None
    generator = torch.Generator().manual_seed(num_prompt_tokens)
    length = num_prompt_tokens + min(max_tokens, 14)
    ids = tuple(torch.randint(3, TOY_TARGET.vocab_size, (length,), generator=generator).tolist())
    with torch.inference_mode():
        features = compute_features(llm.models.target, ids, MEMORY)
        text = WrittenText("any", ids, num_prompt_tokens, max_tokens, features)
        expected = rank_text(llm.models.draft, text, MAX_DEPTH, MEMORY)
    (found,) = rank_by_training(folder / "head", TOY_TARGET, frozen_weights(folder), [text], MAX_DEPTH)
    assert [len(row) for row in found.ranks] == [len(row) for row in expected.ranks]
    pairs = [pair for a, b in zip(found.ranks, expected.ranks, strict=True) for pair in zip(a, b, strict=True)]
    # Two computations round differently; a rank may move by a place where two logits nearly tie.
    assert len(pairs) > 10 and all(abs(ours - theirs) <= 1 for ours, theirs in pairs)
    assert sum(ours == theirs for ours, theirs in pairs) > 0.9 * len(pairs)


def test_a_head_is_run_in_the_quantization_that_it_was_trained_for(tmp_path: Path) -> None:
    folder, text = write_toys(tmp_path), any_text()
    weights = load_file(folder / "head" / "model.safetensors")
    rounded = {
        name: fake_quantized(tensor, "int4") if tensor.is_floating_point() else tensor
        for name, tensor in weights.items()
    }
    shutil.copytree(folder / "head", folder / "rounded")
    save_file(rounded, folder / "rounded" / "model.safetensors")

    def ranks(head: str, quantization: ServedQuantization) -> RankedText:
        frozen = frozen_weights(folder)
        return rank_by_training(folder / head, TOY_TARGET, frozen, [text], MAX_DEPTH, quantization)[0]

    assert ranks("head", "int4") == ranks("rounded", "none") != ranks("head", "none")
