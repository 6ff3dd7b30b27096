"""On native kernels, too, a head that copies its target is accepted to full depth."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from aquiline.engine.engine import Engine
from aquiline.kernels import cpu
from aquiline.kernels.cpu import Threads
from aquiline.models.model_config import LlamaConfig
from aquiline.models.native_eagle import NativeEagle
from aquiline.models.native_llama import NativeLlama
from aquiline.request import SamplingParams
from tests.models.table_models import (
    AUX_LAYER_IDS,
    EAGLE1,
    EAGLE3,
    TARGET,
    continue_by_table,
    eagle1_tensors,
    eagle3_tensors,
    target_tensors,
)
from tests.models.test_self_draft import GREEDY, MODES, depth_of, most_steps, random_prompt, record_traces, with_kinds
from tests.tiny import TinySettings, run_prompts, tiny_engine, token_ids

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason=cpu.why_not())
KEYED = [name for name, settings in MODES.items() if settings.acceptance == "keyed"]
HEAD = "lm_head.weight"
NUM_SPARE_NEURONS = -TARGET.intermediate_size % 32


def widened(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same model with neurons that stay silent, up to a width that can be packed."""
    wide = dict(tensors)
    for name, tensor in tensors.items():
        if name.endswith(("gate_proj.weight", "up_proj.weight")):
            wide[name] = torch.nn.functional.pad(tensor, (0, 0, 0, NUM_SPARE_NEURONS))
        elif name.endswith("down_proj.weight"):
            wide[name] = torch.nn.functional.pad(tensor, (0, NUM_SPARE_NEURONS))
    return wide


def wide_config(config: LlamaConfig) -> LlamaConfig:
    return replace(config, intermediate_size=config.intermediate_size + NUM_SPARE_NEURONS)


def native_engine(kind: str, settings: TinySettings, confidence: float = 12.0) -> Engine:
    tensors = widened(target_tensors(confidence))
    aux_layer_ids = () if kind == "eagle1" else AUX_LAYER_IDS
    target = NativeLlama.pack(wide_config(TARGET), tensors, "none", Threads(2), aux_layer_ids)
    own, own_tensors = (EAGLE1, eagle1_tensors()) if kind == "eagle1" else (EAGLE3, eagle3_tensors(tensors[HEAD]))
    config = replace(own, layers=wide_config(own.layers))
    draft = NativeEagle.pack(config, widened(own_tensors), target, "none")
    return tiny_engine(settings, target, draft, ())


@with_kinds
@pytest.mark.parametrize("mode", KEYED)
def test_copy_of_the_target_is_accepted_to_full_depth(kind: str, mode: str) -> None:
    settings = replace(MODES[mode], check_consistency=True)
    engine = native_engine(kind, settings)
    traces = record_traces(engine)
    prompts = [random_prompt(length, seed=length) for length in (23, 8, 33, 16, 9)]
    outputs = run_prompts(engine, prompts, GREEDY)
    assert token_ids(outputs) == [tuple(continue_by_table(prompt, 40)) for prompt in prompts]
    assert all(len(trace.accepted_nodes) == depth_of(trace) for trace in traces)
    shape = settings.engine_config().speculative.mode.shape
    assert shape is not None
    for output in outputs:
        assert output.outputs[0].speculation.num_verify_steps <= most_steps(40, shape.depth)


@with_kinds
@pytest.mark.parametrize("shape", ["chain:4", "tree:2x2x1", "dynamic:steps=4,topk=2,nodes=8"])
def test_copy_is_accepted_at_any_temperature(kind: str, shape: str) -> None:
    engine = native_engine(kind, TinySettings(shape), confidence=1.5)
    traces = record_traces(engine)
    prompts = [random_prompt(length, seed=length) for length in (11, 30, 19)]
    params = [
        SamplingParams(temperature=1.0, seed=1, max_tokens=40),
        SamplingParams(temperature=0.7, seed=2, presence_penalty=0.5, max_tokens=40),
        SamplingParams(temperature=1.2, seed=3, logit_bias={3: 1.0}, max_tokens=40),
    ]
    outputs = run_prompts(engine, prompts, params)
    greedy = [tuple(continue_by_table(prompt, 40)) for prompt in prompts]
    assert all(drawn != best for drawn, best in zip(token_ids(outputs), greedy, strict=True))
    trees = [trace for trace in traces if depth_of(trace)]
    missed = [trace for trace in trees if len(trace.accepted_nodes) < depth_of(trace)]
    # The copy's logits are a rounding away from the target's, and a draw may hang on the last bits.
    assert len(missed) <= 2 < 20 < len(trees)
