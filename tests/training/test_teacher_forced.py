"""A draft led along a text has the very ranks that serving shows: counted steps and paths are equal."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from aquiline.engine.acceptance_tally import AcceptanceTally
from aquiline.engine.engine import Engine
from aquiline.engine.kv_pool import MemoryKind
from aquiline.models.eagle import EagleModel
from aquiline.models.llama import LlamaModel
from aquiline.models.loading import expected_draft_tensors
from aquiline.request import SamplingParams
from aquiline.speculation import StaticTree, parse_speculation
from aquiline.training.teacher_forced import WrittenText, compute_features, rank_text, ranks_of
from aquiline.training.walk import RankedText, tally
from tests.models.table_models import EAGLE1, EAGLE3, NUM_CODES, eagle1_tensors, eagle3_tensors, table_target
from tests.tiny import TinySettings, run_prompts, tiny_engine

MEMORY = MemoryKind(torch.float32, torch.device("cpu"), poison=True)
MAX_DEPTH = 4
SHAPES = ("chain:1", "chain:4", "tree:2x2x1", "paths:0,1,00,01,10,000")


def noisy_copy(kind: str, target: LlamaModel, noise: float) -> EagleModel:
    """A head that copies its target, but for noise in all of its weights."""
    config = EAGLE1 if kind == "eagle1" else EAGLE3
    tensors = eagle1_tensors() if kind == "eagle1" else eagle3_tensors(target.head)
    generator = torch.Generator().manual_seed(3)
    for name in expected_draft_tensors(config):
        if name in tensors and tensors[name].is_floating_point():
            tensors[name] = tensors[name] + noise * torch.randn(tensors[name].shape, generator=generator)
    return EagleModel(config, tensors, target.embedding, target.head)


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(5)
    lengths = (1, 2, 7, 16)
    return [(2 * torch.randint(0, NUM_CODES, (n,), generator=generator) + 1).tolist() for n in lengths]


def served(engine: Engine, max_tokens: int) -> AcceptanceTally:
    counts = AcceptanceTally()
    engine.on_trace = counts.add
    run_prompts(engine, prompts(), SamplingParams(temperature=0.0, max_tokens=max_tokens))
    return counts


def written(target: LlamaModel, max_tokens: int, eos_token_ids: Sequence[int]) -> list[WrittenText]:
    plain = tiny_engine(TinySettings("off"), target, eos_token_ids=eos_token_ids)
    outputs = run_prompts(plain, prompts(), SamplingParams(temperature=0.0, max_tokens=max_tokens))
    texts = []
    for output in outputs:
        ids = (*output.prompt_token_ids, *output.outputs[0].token_ids)
        features = compute_features(target, ids, MEMORY)
        texts.append(WrittenText("any", ids, len(output.prompt_token_ids), max_tokens, features))
    return texts


@torch.inference_mode()
def led(draft: EagleModel, texts: Sequence[WrittenText]) -> list[RankedText]:
    return [rank_text(draft, text, MAX_DEPTH, MEMORY) for text in texts]


@pytest.mark.parametrize("kind", ["eagle1", "eagle3"])
@pytest.mark.parametrize("noise", [0.0, 0.15, 0.6])
@pytest.mark.parametrize(("max_tokens", "eos_token_ids"), [(24, ()), (3, ()), (2, ()), (40, (3, 7))])
def test_counts_are_those_of_serving(kind: str, noise: float, max_tokens: int, eos_token_ids: tuple[int, ...]) -> None:
    target = table_target(for_eagle1=kind == "eagle1")
    draft = noisy_copy(kind, target, noise)
    ranked = led(draft, written(target, max_tokens, eos_token_ids))
    for text in SHAPES:
        shape = parse_speculation(text).shape
        assert isinstance(shape, StaticTree)
        expected = served(tiny_engine(TinySettings(text), target, draft, eos_token_ids), max_tokens)
        assert tally(ranked, shape) == expected, text


def test_a_perfect_head_always_has_the_first_choice_right() -> None:
    target = table_target()
    # The table looks three tokens back, and the draft cache has nothing before slot 1: short prompts begin in the dark.
    texts = written(target, 20, ())[2:]
    ranks = [rank for text in led(noisy_copy("eagle3", target, 0.0), texts) for rank in text.ranks]
    assert len(ranks) == 2 * 18
    assert {rank for row in ranks for rank in row} == {0}
    assert [len(row) for row in ranks[:18]] == [4] * 15 + [3, 2, 1]


def test_noise_costs_acceptance() -> None:
    """Otherwise the comparison above would compare nothing."""
    target = table_target()
    shape = parse_speculation("chain:4").shape
    assert isinstance(shape, StaticTree)
    texts = written(target, 40, ())
    lengths = [tally(led(noisy_copy("eagle3", target, n), texts), shape).acceptance_length for n in (0.0, 0.15, 0.6)]
    assert lengths[0] > 4.5 > lengths[1] > 1.05 and lengths[0] > lengths[2] >= 1.0


def test_ranks_with_ties_and_unknown_tokens() -> None:
    logits = torch.tensor([[3.0, 5.0, 5.0, 1.0]]).expand(5, 4)
    assert ranks_of(logits, torch.tensor([0, 1, 2, 3, -1])).tolist() == [2, 0, 1, 3, 4]
