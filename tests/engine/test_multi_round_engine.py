"""The law of the first three tokens, counted over thousands of seeds, against exact enumeration.

The enumeration knows the target's logits and the definitions of the sampling parameters, nothing else.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch

from aquiline.config import AcceptanceRule
from aquiline.request import RequestOutput, SamplingParams
from tests.engine.workloads import Job, TinyModels, answers, make_engine, plain_answers, run_jobs
from tests.kernels.chi_square import REJECTION_LEVEL, p_value
from tests.tiny import (
    TinySettings,
    run_prompts,
    tiny_draft,
    tiny_eagle_config,
    tiny_engine,
    tiny_llama_config,
    tiny_target,
)

VOCAB = 6
LENGTH = 3
PROMPT = (1, 4, 2)
NUM_SEEDS = 1600
FEWEST_EXPECTED = 5.0

PARAMS = {
    "plain": SamplingParams(max_tokens=LENGTH),
    "cold_top_p": SamplingParams(max_tokens=LENGTH, temperature=0.7, top_p=0.85),
    "hot_top_k": SamplingParams(max_tokens=LENGTH, temperature=1.4, top_k=4),
    "min_p": SamplingParams(max_tokens=LENGTH, min_p=0.15, logit_bias={3: 1.0}),
    "penalties": SamplingParams(max_tokens=LENGTH, frequency_penalty=1.5, presence_penalty=0.5, repetition_penalty=1.5),
    "few_tokens": SamplingParams(max_tokens=LENGTH, allowed_token_ids=(0, 2, 5), presence_penalty=1.0),
}
CASES: list[tuple[AcceptanceRule, str, str]] = [
    ("multi_round", "chain:2", "plain"),
    ("multi_round", "tree:2x2", "plain"),
    ("multi_round", "tree:3x1", "cold_top_p"),
    ("multi_round", "tree:4x2", "hot_top_k"),
    ("multi_round", "paths:0,1,00,01,10", "min_p"),
    ("multi_round", "tree:2x2", "penalties"),
    ("multi_round", "tree:3x2", "few_tokens"),
    ("keyed", "tree:2x2", "plain"),
    ("keyed", "dynamic:steps=2,topk=2,nodes=4", "penalties"),
    ("keyed", "chain:2", "cold_top_p"),
]


@cache
def models() -> TinyModels:
    """A target over six tokens, and a draft that knows five of them and disagrees with it."""
    target = tiny_target(tiny_llama_config(vocab_size=VOCAB, eos_token_ids=()), aux_layer_ids=(0, 1, 3))
    return TinyModels(target, tiny_draft(target, tiny_eagle_config(target.config, draft_vocab_size=5)))


def answered(settings: TinySettings, prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[RequestOutput]:
    """One output per prompt, prompt i with seed i."""
    engine = tiny_engine(settings, models().target, models().draft, eos_token_ids=())
    return run_prompts(engine, prompts, [replace(params, seed=seed) for seed in range(len(prompts))])


@cache
def logits(beginning: tuple[int, ...]) -> list[float]:
    """What the target's head says after a beginning of an answer."""
    seen: list[torch.Tensor] = []
    target = models().target
    head = target.logits

    def watched(hidden_states: torch.Tensor) -> torch.Tensor:
        seen.append(head(hidden_states))
        return seen[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, "logits", watched)
        answered(TinySettings(), [(*PROMPT, *beginning)], SamplingParams(max_tokens=1))
    return [float(value) for value in seen[0][-1]]


def next_token_law(beginning: tuple[int, ...], params: SamplingParams) -> list[float]:
    """Probabilities of the next token under the documented meaning of every parameter."""
    weights = [value + (params.logit_bias or {}).get(token, 0.0) for token, value in enumerate(logits(beginning))]
    if params.allowed_token_ids is not None:
        weights = [value if token in params.allowed_token_ids else -math.inf for token, value in enumerate(weights)]
    counts = Counter(beginning)
    for token in range(VOCAB):
        if token in counts or token in PROMPT:
            factor = params.repetition_penalty
            weights[token] = weights[token] / factor if weights[token] > 0 else weights[token] * factor
        weights[token] -= params.presence_penalty * (counts[token] > 0) + params.frequency_penalty * counts[token]
    most = max(weights)
    law = [math.exp((value - most) / params.temperature) for value in weights]
    ranked = sorted(range(VOCAB), key=lambda token: -law[token])
    kept = set(ranked[: params.top_k or VOCAB])
    mass, so_far = sum(law[token] for token in kept), 0.0
    for token in ranked:
        if so_far >= params.top_p * mass:
            kept.discard(token)
        so_far += law[token] if token in kept else 0.0
    law = [value if token in kept and value >= params.min_p else 0.0 for token, value in enumerate(law)]
    return [value / sum(law) for value in law]


def answer_law(params: SamplingParams) -> dict[tuple[int, ...], float]:
    """Probability of every possible answer."""
    law: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(LENGTH):
        law = {
            (*beginning, token): probability * share
            for beginning, probability in law.items()
            for token, share in enumerate(next_token_law(beginning, params))
        }
    return law


def fit(answers: Counter[tuple[int, ...]], law: dict[tuple[int, ...], float]) -> float:
    """Chi-square p-value; answers too rare to count one by one are counted together."""
    total = sum(answers.values())
    common = [answer for answer, probability in law.items() if probability * total >= FEWEST_EXPECTED]
    rare = [answer for answer, probability in law.items() if 0 < probability * total < FEWEST_EXPECTED]
    impossible = [answer for answer, probability in law.items() if probability == 0]
    counts = [answers[answer] for answer in common]
    counts += [sum(answers[answer] for answer in group) for group in (rare, impossible)]
    probs = [law[answer] for answer in common] + [sum(law[answer] for answer in rare), 0.0]
    return p_value(torch.tensor(counts), torch.tensor(probs, dtype=torch.float64))


@cache
def sampled(rule: AcceptanceRule, mode: str, name: str) -> list[RequestOutput]:
    settings = TinySettings(mode, rule, num_blocks=800, max_num_seqs=200, max_num_batched_tokens=4000)
    return answered(settings, [PROMPT] * NUM_SEEDS, PARAMS[name])


@pytest.mark.parametrize(("rule", "mode", "name"), CASES, ids=lambda value: str(value))
def test_answers_follow_the_targets_law(rule: AcceptanceRule, mode: str, name: str) -> None:
    outputs = sampled(rule, mode, name)
    answers = Counter(output.outputs[0].token_ids for output in outputs)
    assert fit(answers, answer_law(PARAMS[name])) > REJECTION_LEVEL
    figures = [output.outputs[0].speculation for output in outputs]
    # Both acceptance and rejection happen often, or the law would be that of plain decoding for another reason.
    num_draft_tokens = sum(seen.num_draft_tokens for seen in figures)
    num_accepted = sum(seen.num_accepted_draft_tokens for seen in figures)
    assert NUM_SEEDS / 4 < num_accepted < num_draft_tokens - NUM_SEEDS / 4


@pytest.mark.parametrize(
    "changes", [{"temperature": 0.8}, {"logit_bias": {3: 0.5}}, {"frequency_penalty": 0.7}, {"min_p": 0.1}], ids=str
)
def test_a_slightly_different_law_is_told_apart(changes: dict[str, object]) -> None:
    answers = Counter(output.outputs[0].token_ids for output in sampled("multi_round", "tree:2x2", "plain"))
    assert fit(answers, answer_law(replace(PARAMS["plain"], **changes))) < REJECTION_LEVEL  # type: ignore[arg-type]


def test_the_multi_round_rule_answers_the_same_seed_the_same_way() -> None:
    settings = TinySettings("tree:2x2", "multi_round", num_blocks=800, max_num_seqs=8)
    first, second = (answered(settings, [PROMPT] * 30, PARAMS["plain"]) for _ in range(2))
    assert [o.outputs[0].token_ids for o in first] == [o.outputs[0].token_ids for o in second]


@pytest.mark.parametrize("speculate", [True, False], ids=["speculating", "plain"])
@pytest.mark.parametrize("mode", ["chain:2", "tree:2x2"])
def test_neighbours_under_the_multi_round_rule_do_not_change_an_answer(mode: str, speculate: bool) -> None:
    """The prefill of the watched request shares its step with the trees of its neighbours, or with nobody."""
    settings = TinySettings(mode, "multi_round", max_num_seqs=6)
    params = SamplingParams(temperature=1.2, max_tokens=8, ignore_eos=True)
    neighbours = [Job((3, index), replace(params, seed=index)) for index in range(4)]
    for seed in range(5):
        watched = Job((1, 2), replace(params, seed=100 + seed), speculate=speculate)
        alone = run_jobs(make_engine(settings), [watched])["0"]
        crowded = run_jobs(make_engine(settings), [replace(watched, arrival=2), *neighbours])["0"]
        assert answers(alone) == answers(crowded)
        if not speculate:
            assert answers(alone) == plain_answers(watched)
