"""Looked-up tokens on native kernels: trees merged on the host, as many rows as there are nodes, the same tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aquiline.engine.engine import Engine
from aquiline.kernels import cpu
from aquiline.request import SamplingParams
from tests.engine.test_native_equality import RULES, native_engine
from tests.models.native_models import packable_config
from tests.tiny import run_prompts, token_ids

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason=cpu.why_not())
FEW_TOKENS = {token_id: -100.0 for token_id in range(4, packable_config().vocab_size)}
PROMPTS = ((3, 1, 2, 1, 3), (1, 2, 3) * 9, (2,))
PARAMS = [
    SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logit_bias=FEW_TOKENS),
    SamplingParams(temperature=1.0, seed=5, max_tokens=24, ignore_eos=True, logit_bias=FEW_TOKENS),
    SamplingParams(temperature=0.7, seed=6, max_tokens=24, ignore_eos=True, logit_bias=FEW_TOKENS, logprobs=1),
]


def looking_up(quantization: str, speculate: str, has_draft: bool) -> Engine:
    """An engine whose memory is poisoned and whose states are checked after every step."""
    engine = native_engine(quantization, speculate, 2)
    models = engine._models if has_draft else replace(engine._models, draft=None)
    speculative = replace(engine.config.speculative, lookup="on", lookup_tokens=6)
    return Engine(models, replace(engine.config, speculative=speculative))


@pytest.mark.parametrize("has_draft", [True, False], ids=["draft", "no_draft"])
@pytest.mark.parametrize("quantization", ["none", "int4"])
@pytest.mark.parametrize(
    "speculate",
    [
        "auto",
        "chain:3",
        "tree:3x2x1",
        "dynamic:steps=3,topk=3,nodes=8,survival=0.02",
        "dynamic:steps=3,topk=3,nodes=8,survival=0.9",
        "dynamic:steps=3,topk=3,nodes=8",
    ],
)
def test_lookup_on_native_kernels_changes_no_token(quantization: str, speculate: str, has_draft: bool) -> None:
    plain = token_ids(run_prompts(native_engine(quantization, "off", 1), PROMPTS, PARAMS))
    outputs = run_prompts(looking_up(quantization, speculate, has_draft), PROMPTS, PARAMS)
    assert token_ids(outputs) == plain
    figures = [output.outputs[0].speculation for output in outputs]
    assert sum(part.num_lookup_tokens for part in figures) > 20
    assert sum(part.num_accepted_draft_tokens for part in figures) > 10


def test_no_parameter_makes_a_difference_between_lookup_and_none() -> None:
    prompts = [(7, number, 3, 7, number, 3, 7) for number in range(len(RULES))]
    plain = []
    for prompt, params in zip(prompts, RULES, strict=True):
        plain += token_ids(run_prompts(native_engine("int8", "off", 1), [prompt], [params]))
    outputs = run_prompts(looking_up("int8", "tree:2x2", True), prompts, RULES)
    assert token_ids(outputs) == plain
