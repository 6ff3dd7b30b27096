"""What packed layers refuse: everything that the native code would misread."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from aquiline.errors import InvalidParameterError
from aquiline.kernels import cpu
from aquiline.kernels.cpu import PackedLinear, Threads

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason=cpu.why_not())

BAD_MATRICES: dict[str, Tensor] = {
    "float64": torch.zeros(16, 32, dtype=torch.float64),
    "integers": torch.zeros(16, 32, dtype=torch.int8),
    "vector": torch.zeros(32),
    "batch": torch.zeros(1, 16, 32),
    "transposed": torch.zeros(32, 16).t(),
    "strided": torch.zeros(16, 64)[:, ::2],
    "sliced": torch.zeros(16, 64)[:, :32],
    "on another device": torch.zeros(16, 32, device="meta"),
}
with_bad_matrices = pytest.mark.parametrize("matrix", BAD_MATRICES.values(), ids=BAD_MATRICES.keys())


@pytest.fixture
def layer() -> PackedLinear:
    return PackedLinear.from_tensor(torch.randn(16, 32, generator=torch.Generator().manual_seed(1)), "int8")


@with_bad_matrices
def test_weights_have_to_be_a_contiguous_matrix_of_floats_on_the_cpu(matrix: Tensor) -> None:
    with pytest.raises(InvalidParameterError):
        PackedLinear.from_tensor(matrix, "bf16")


@with_bad_matrices
def test_rows_have_to_be_a_contiguous_matrix_of_floats_on_the_cpu(matrix: Tensor, layer: PackedLinear) -> None:
    with pytest.raises(InvalidParameterError):
        layer.apply(matrix, Threads(1))


@with_bad_matrices
def test_sums_go_to_a_contiguous_matrix_on_the_cpu(matrix: Tensor, layer: PackedLinear) -> None:
    with pytest.raises(InvalidParameterError):
        layer.add_to(matrix, torch.zeros(16, 32), Threads(1))


@pytest.mark.parametrize("out", [torch.zeros(3, 16, dtype=torch.bfloat16), torch.zeros(2, 16), torch.zeros(3, 15)])
def test_sums_have_one_float32_for_each_output(out: Tensor, layer: PackedLinear) -> None:
    with pytest.raises(InvalidParameterError, match="out must be"):
        layer.add_to(out, torch.zeros(3, 32), Threads(1))


@pytest.mark.parametrize("kind", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("shape", [(16, 48), (16, 0), (0, 32), (4, 31)])
def test_inputs_come_in_groups_of_32(kind: str, shape: tuple[int, int]) -> None:
    with pytest.raises(InvalidParameterError, match="multiple of 32"):
        PackedLinear.from_tensor(torch.zeros(shape), kind)
    with pytest.raises(InvalidParameterError, match="multiple of 32"):
        PackedLinear.from_gguf(np.zeros(0, np.uint8), "Q8_0", shape)


def test_kinds_and_storage_types_are_named_in_the_message() -> None:
    with pytest.raises(InvalidParameterError, match="bf16, int8, int4"):
        PackedLinear.from_tensor(torch.zeros(16, 32), "int2")
    with pytest.raises(InvalidParameterError, match="Q8_0, Q4_0, Q4_1"):
        PackedLinear.from_gguf(np.zeros(18 * 16, np.uint8), "Q6_K", (16, 32))


@pytest.mark.parametrize(
    "blocks",
    [np.zeros(34 * 16 - 1, np.uint8), np.zeros(34 * 17, np.uint8), np.zeros(34 * 16, np.int8), np.zeros(34 * 4, "u4")],
)
def test_gguf_bytes_have_to_fit_the_shape(blocks: np.ndarray) -> None:
    with pytest.raises(InvalidParameterError):
        PackedLinear.from_gguf(blocks, "Q8_0", (16, 32))


def test_gguf_bytes_have_to_be_contiguous() -> None:
    with pytest.raises(InvalidParameterError, match="contiguous"):
        PackedLinear.from_gguf(np.zeros((16, 68), np.uint8)[:, :34], "Q8_0", (16, 32))


@pytest.mark.parametrize(("kind", "number"), [("int8", "nan"), ("int8", 1e7), ("int4", "inf"), ("int4", 7e4)])
def test_weights_without_a_finite_scale_are_refused(kind: str, number: float | str) -> None:
    weight = torch.zeros(16, 32)
    weight[3, 5] = float(number)
    with pytest.raises(InvalidParameterError, match="cannot be packed"):
        PackedLinear.from_tensor(weight, kind)


def test_rows_have_to_be_as_wide_as_the_layer(layer: PackedLinear) -> None:
    with pytest.raises(InvalidParameterError, match="rows have 64 numbers"):
        layer.apply(torch.zeros(3, 64), Threads(1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int32])
def test_results_are_float32_or_bfloat16(dtype: torch.dtype, layer: PackedLinear) -> None:
    with pytest.raises(InvalidParameterError, match="native layers take"):
        layer.apply(torch.zeros(3, 32), Threads(1), dtype)


@pytest.mark.parametrize("bias", [torch.zeros(15), torch.zeros(16, 1), torch.zeros(16, dtype=torch.int32)])
def test_bias_has_a_number_for_each_output(bias: Tensor, layer: PackedLinear) -> None:
    with pytest.raises(InvalidParameterError, match="bias"):
        layer.set_bias(bias)


def test_a_level_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AQUILINE_CPU_LEVEL", "avx1024")
    with pytest.raises(InvalidParameterError, match="portable, avx2 or avx512"):
        PackedLinear.from_tensor(torch.zeros(16, 32), "int8")
