"""Divergence is counted as defined, and the quickstart model keeps the bounds that the project promises."""

from __future__ import annotations

import math

import pytest
import torch

from aquiline.benchmark.accuracy import AccuracyModels, Divergence, measure_accuracy
from aquiline.config import EngineConfig
from aquiline.errors import PromptError
from aquiline.kernels import cpu
from tests.quickstart_model import IS_ON_DISK, PULL_IT, QUICKSTART_MODEL
from tests.source_tree import ROOT

CONVERSATION = (ROOT / "tests" / "texts" / "conversation.txt").read_text()
# Mean KL(float32 || native) in nats at most, and share of equal most likely tokens at least.
BOUNDS = {"auto": (0.006, 0.96), "int8": (0.01, 0.95), "none": (0.0005, 0.99)}


def test_divergence_of_two_tokens() -> None:
    tally = Divergence()
    expected = torch.tensor([[0.5, 0.5], [0.75, 0.25], [0.25, 0.75]]).log()
    tally.add(expected[:1], torch.tensor([[0.25, 0.75]]).log())
    tally.add(expected[1:], torch.tensor([[0.75, 0.25], [0.75, 0.25]]).log())
    first = 0.5 * math.log(2.0) + 0.5 * math.log(0.5 / 0.75)
    last = 0.25 * math.log(1 / 3) + 0.75 * math.log(3.0)
    assert tally.divergences == pytest.approx([first, 0.0, last], abs=1e-6)
    figures = tally.figures()
    assert figures["mean_kl"] == pytest.approx((first + last) / 3, rel=1e-3)
    assert figures["worst_kl"] == pytest.approx(last, rel=1e-3)
    assert figures["worst_position"] == 2
    assert figures["top1_agreement"] == pytest.approx(1 / 3, abs=1e-4)


@pytest.fixture(scope="module")
def models() -> AccuracyModels:
    if not cpu.is_available():
        pytest.skip(cpu.why_not())
    if not IS_ON_DISK:
        pytest.skip(PULL_IT)
    return AccuracyModels.load(QUICKSTART_MODEL, EngineConfig(), ("auto", "int8", "none"), 2)


@pytest.mark.model
def test_the_quickstart_model_keeps_its_bounds(models: AccuracyModels) -> None:
    (sequence,) = models.sequences_of_text(CONVERSATION)
    counts: list[int] = []
    rows = measure_accuracy(models, [sequence], counts.append)
    assert counts[-1] == len(sequence) > 600
    assert [row["quantization"] for row in rows] == list(BOUNDS)
    for row in rows:
        most, least = BOUNDS[row["quantization"]]
        assert 0 < row["mean_kl"] <= most and row["top1_agreement"] >= least, row
        assert row["num_tokens"] == len(sequence)


@pytest.mark.model
def test_sequences_know_nothing_of_each_other(models: AccuracyModels) -> None:
    (short,) = models.sequences_of_text(CONVERSATION[:200])
    alone, twice = measure_accuracy(models, [short]), measure_accuracy(models, [short, short])
    for one, both in zip(alone, twice, strict=True):
        assert both["num_tokens"] == 2 * one["num_tokens"]
        for name in ("mean_kl", "top1_agreement", "worst_kl", "worst_position"):
            assert both[name] == one[name], name


@pytest.mark.model
def test_answers_follow_their_prompts(models: AccuracyModels) -> None:
    conversation = [{"role": "user", "content": "Name a bird."}]
    (sequence,) = models.sequences_of_answers([conversation], 5)
    prompt = models.reference.tokenizer.apply_chat_template(conversation)
    assert sequence[: len(prompt)] == list(prompt)
    assert 1 <= len(sequence) - len(prompt) <= 5


@pytest.mark.model
def test_a_text_without_a_second_token_is_refused(models: AccuracyModels) -> None:
    with pytest.raises(PromptError, match="fewer than two"):
        models.sequences_of_text("a")
