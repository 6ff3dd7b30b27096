"""The real model under load, at default settings: memory, blocks, and acceptance that a draft at fault would lower."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.quickstart_model import IS_ON_DISK, PULL_IT

pytestmark = [pytest.mark.model, pytest.mark.skipif(not IS_ON_DISK, reason=PULL_IT), pytest.mark.timeout(600)]

# A process of its own, so that its peak memory is its own too.
PROGRAM = """
import json, sys
import torch
torch.set_num_threads(1)
from aquiline import EngineConfig, LLM, SamplingParams, SchedulerConfig, SpeculativeConfig, parse_speculation
from aquiline.benchmark.acceptance import measure_acceptance
from aquiline.benchmark.peak_memory import peak_memory_bytes

num_prompts, num_tokens, speculate = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
config = EngineConfig(speculative=SpeculativeConfig(parse_speculation(speculate)), scheduler=SchedulerConfig(32))
llm = LLM("smollm2-135m", config=config)
topics = ["the sea", "a bridge", "bread", "rain", "a violin", "the moon", "a garden", "winter"]
prompts = [f"Write {index + 2} sentences about {topics[index % 8]}." for index in range(num_prompts)]
conversations = [[{"role": "user", "content": prompt}] for prompt in prompts]
params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
figures = measure_acceptance(llm, conversations, params)
figures["peak_bytes"] = peak_memory_bytes()
figures["num_lost_blocks"] = llm.engine.cache.num_blocks - llm.engine.cache.num_free_blocks
print(json.dumps(figures))
"""


def figures_of(num_prompts: int, num_tokens: int, speculate: str) -> dict[str, float]:
    command = [sys.executable, "-c", PROGRAM, str(num_prompts), str(num_tokens), speculate]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    figures: dict[str, float] = json.loads(result.stdout)
    return figures


def test_32_requests_of_256_tokens() -> None:
    figures = figures_of(32, 256, "chain:2")
    assert figures["num_committed_tokens"] == 32 * 256
    assert figures["num_lost_blocks"] == 0
    assert figures["peak_bytes"] < 3e9


def test_acceptance_of_the_shipped_head() -> None:
    """About 1.7 is usual here; stale rows, shifted positions or features bring it near 1.3."""
    figures = figures_of(8, 64, "chain:4")
    assert 1.5 < figures["acceptance_length"] < 2.6
