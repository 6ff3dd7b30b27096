"""The layers that are measured are those of the model, and each call does what it is credited with."""

from __future__ import annotations

import pytest
import torch

from aquiline.benchmark.linear_cases import PARTS, linear_cases, stack_work
from aquiline.kernels import cpu
from aquiline.models.native_weights import kind_of
from tests.models.native_models import packable_config, target_pair, target_tensors

if cpu.is_available():
    from aquiline.kernels.cpu import PackedLinear, Threads
    from aquiline.kernels.cpu.extension import native

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason=cpu.why_not())
NAMES = {
    "query_key_value": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "output": ["self_attn.o_proj"],
    "gate_up": ["mlp.gate_proj", "mlp.up_proj"],
    "down": ["mlp.down_proj"],
}


@pytest.mark.parametrize("quantization", ["none", "int8"])
@pytest.mark.parametrize("part", NAMES)
def test_parts_are_the_layers_of_the_model(part: str, quantization: str) -> None:
    config = packable_config()
    model, tensors = target_pair(config, quantization)[1], target_tensors(config)
    stacks = model.layer_parts(part)
    assert len(stacks) == config.num_layers
    for index, stack in enumerate(stacks):
        weight = torch.cat([tensors[f"model.layers.{index}.{name}.weight"] for name in NAMES[part]])
        linear = PackedLinear.from_tensor(weight, kind_of(quantization))
        rows = torch.randn(5, stack.in_features)
        prepared = native().StackRows(stack.in_features, 5)
        prepared.fill(rows.data_ptr())
        out = torch.empty(5, stack.out_features)
        native().apply_stack(Threads(2).handle, stack, prepared, out.data_ptr())
        assert torch.equal(out, linear.apply(rows, Threads(1)))
        assert stack_work([stack], 5).memory_bytes == linear.num_bytes


def test_bytes_of_all_cases_are_those_of_the_model() -> None:
    model = target_pair(packable_config(), "int4")[1]
    cases = linear_cases(model, 3)
    assert [case.num_calls for case in cases] == [model.config.num_layers] * len(PARTS) + [1]
    assert sum(case.num_calls * case.work.memory_bytes for case in cases) == model.num_bytes
    assert all(case.is_cold for case in cases)


def test_rows_of_another_width_and_layers_beyond_the_last_are_refused() -> None:
    model = target_pair(packable_config())[1]
    stack = model.layer_parts("down")[0]
    rows = native().StackRows(stack.in_features + 32, 1)
    with pytest.raises(ValueError, match="same number of inputs"):
        native().apply_stack(Threads(1).handle, stack, rows, torch.empty(1, 1000).data_ptr())
    for index in (-1, model.config.num_layers):
        with pytest.raises(IndexError, match="no layer"):
            native().layer_part(model._native, index, native().LayerPart.down)
