"""Guided outputs on native kernels: the same with and without speculation."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, cast

import pytest
import torch

from aquiline.engine.engine import Engine, EngineModels
from aquiline.kernels import cpu
from aquiline.kernels.cpu import Threads
from aquiline.models.loading import expected_draft_tensors
from aquiline.models.native_eagle import NativeEagle
from aquiline.models.native_llama import NativeLlama
from tests.engine.guided_work import EOS, JOBS, VOCAB, VOCABULARY, new_decoder, share_compiler
from tests.engine.workloads import answers, run_jobs
from tests.models.native_models import packable_config, rounded, target_tensors
from tests.tiny import TinySettings, random_tensors, tiny_eagle_config

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason=cpu.why_not())


@cache
def native_models(draft_vocab_size: int) -> EngineModels:
    """Random models over the vocabulary."""
    config = packable_config(vocab_size=VOCAB, eos_token_ids=(EOS,))
    draft_config = tiny_eagle_config(config, draft_vocab_size=draft_vocab_size)
    target = NativeLlama.pack(config, target_tensors(config), "none", Threads(1), draft_config.aux_layer_ids)
    draft_config = replace(draft_config, layers=replace(draft_config.layers, intermediate_size=64))
    shapes = dict(expected_draft_tensors(draft_config))
    shapes.pop("draft_to_target_ids")
    tensors = rounded(random_tensors(shapes, 1, scale=0.15))
    spread = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(3))
    tensors["draft_to_target_ids"] = spread[:draft_vocab_size].sort().values
    draft = NativeEagle.pack(draft_config, tensors, target, "none")
    return EngineModels(cast(Any, target), cast(Any, draft), new_decoder, frozenset((EOS,)), lambda: VOCABULARY)


def native_engine(settings: TinySettings, draft_vocab_size: int = 64) -> Engine:
    return share_compiler(Engine(native_models(draft_vocab_size), settings.engine_config()))


@pytest.mark.parametrize(
    "mode",
    [
        "chain:4",
        "tree:3x2x1",
        "dynamic:steps=3,topk=3,nodes=8,survival=0.02",
        "dynamic:steps=3,topk=3,nodes=8,survival=0.6",
        "dynamic:steps=3,topk=3,nodes=8",
    ],
)
def test_speculation_changes_no_guided_token(mode: str) -> None:
    engine = native_engine(TinySettings(mode, max_num_seqs=8, num_blocks=400, check_consistency=True))
    outputs = run_jobs(engine, JOBS)
    for index, job in enumerate(JOBS):
        alone = run_jobs(native_engine(TinySettings(num_blocks=400)), [job])["0"]
        assert answers(outputs[str(index)]) == answers(alone)
    assert sum(output.outputs[0].speculation.num_accepted_draft_tokens for output in outputs.values()) > 20
