"""The promise on the real model with the shipped head, in float32: `--speculate` never shows in the output.

The reference is plain decoding, one prompt at a time, in an engine with room to spare and no prefix cache.
"""

from __future__ import annotations

import pytest

from aquiline.config import CacheConfig, EngineConfig, SchedulerConfig, SpeculativeConfig
from aquiline.llm import LLM
from aquiline.request import SamplingParams
from aquiline.speculation import parse_speculation
from tests.quickstart_model import IS_ON_DISK, PULL_IT, QUICKSTART_MODEL

pytestmark = [pytest.mark.model, pytest.mark.skipif(not IS_ON_DISK, reason=PULL_IT), pytest.mark.timeout(600)]

NUM_TOKENS = 14
SHARED = "You are a careful assistant who answers in one short sentence and never repeats the question. "
QUESTIONS = (
    "What is the capital of Portugal?",
    "Write a line of Python that reverses a list.",
    "Translate 'good morning' into French.",
    "Why does ice float on water?",
    "Summarise: the meeting was moved from Monday to Friday because the room was taken.",
    "Is 91 a prime number?",
)
PROMPTS = tuple([{"role": "user", "content": text}] for text in QUESTIONS) + tuple(
    [{"role": "user", "content": SHARED + text}] for text in QUESTIONS
)
SETTINGS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS),
    "seeded": SamplingParams(temperature=0.8, top_p=0.95, seed=1234, max_tokens=NUM_TOKENS),
}
SHAPES = ("chain:4", "tree:4x2x1", "dynamic:steps=5,topk=4,nodes=16")


def open_llm(speculate: str, batch_size: int, cache: CacheConfig) -> LLM:
    return LLM(
        QUICKSTART_MODEL,
        config=EngineConfig(
            dtype="float32",
            cache=cache,
            scheduler=SchedulerConfig(max_num_seqs=batch_size),
            speculative=SpeculativeConfig(parse_speculation(speculate)),
        ),
    )


def answers(llm: LLM, params: SamplingParams) -> list[tuple[int, ...]]:
    return [output.outputs[0].token_ids for output in llm.chat(PROMPTS, params)]


@pytest.fixture(scope="module")
def plain() -> dict[str, list[tuple[int, ...]]]:
    llm = open_llm("off", 1, CacheConfig(enable_prefix_cache=False))
    return {name: answers(llm, params) for name, params in SETTINGS.items()}


@pytest.mark.parametrize("speculate", ["off", *SHAPES])
def test_batches_of_8_with_shared_prefixes_and_preemption(
    speculate: str, plain: dict[str, list[tuple[int, ...]]]
) -> None:
    # Blocks of 4 tokens: an answer of 14 tokens needs more of them than the one that admission keeps spare per request,
    # so that 48, room for three or four requests, make the engine preempt. With blocks of 16 it never has to.
    llm = open_llm(speculate, 8, CacheConfig(block_size=4, num_blocks=48))
    for name, params in SETTINGS.items():
        assert answers(llm, params) == plain[name], name
    assert llm.engine.cache.num_hit_tokens > 0
    assert llm.engine.scheduler.num_preemptions > 0
    assert llm.engine.cache.num_free_blocks == llm.engine.cache.num_blocks


@pytest.mark.parametrize("speculate", SHAPES)
def test_one_prompt_at_a_time(speculate: str, plain: dict[str, list[tuple[int, ...]]]) -> None:
    llm = open_llm(speculate, 1, CacheConfig())
    outputs = llm.chat(PROMPTS[::3], SETTINGS["seeded"])
    assert [output.outputs[0].token_ids for output in outputs] == plain["seeded"][::3]
