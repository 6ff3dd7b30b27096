"""Lookup on the real model: a quoted document comes in fewer steps, and as the very tokens of plain decoding."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aquiline.benchmark.workloads import workload
from aquiline.config import EngineConfig, SchedulerConfig, SpeculativeConfig
from aquiline.llm import LLM
from aquiline.request import SamplingParams
from aquiline.speculation import parse_speculation
from tests.quickstart_model import IS_ON_DISK, PULL_IT, QUICKSTART_MODEL

pytestmark = [pytest.mark.model, pytest.mark.skipif(not IS_ON_DISK, reason=PULL_IT)]
SETTINGS = [
    SamplingParams(temperature=0.0, max_tokens=48),
    SamplingParams(temperature=0.7, seed=11, max_tokens=32),
]


def test_a_document_that_is_quoted_takes_half_the_steps() -> None:
    scheduler = SchedulerConfig(max_num_seqs=2, max_model_len=1024)
    plain_config = EngineConfig(scheduler=scheduler, speculative=SpeculativeConfig(parse_speculation("off")))
    plain = LLM(QUICKSTART_MODEL, draft="none", config=plain_config)
    looking_up = plain.reconfigured(replace(plain_config, speculative=SpeculativeConfig()))
    conversations = [workload("edit")[0], workload("retrieval")[1]]
    for params in SETTINGS:
        expected = [output.outputs[0].token_ids for output in plain.chat(conversations, params)]
        outputs = [output.outputs[0] for output in looking_up.chat(conversations, params)]
        assert [output.token_ids for output in outputs] == expected
        if params.temperature == 0.0:
            num_steps = sum(output.speculation.num_verify_steps for output in outputs)
            assert num_steps <= sum(map(len, expected)) / 2
