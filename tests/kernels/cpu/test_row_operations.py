"""Native operations on rows against their references, at every level and for widths that divide into nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from aquiline.errors import InvalidParameterError
from aquiline.kernels import cpu
from aquiline.kernels.reference import dense
from aquiline.kernels.reference.quantized_heads import quantize_heads, read_heads
from tests.kernels.cpu.levels import with_levels

if cpu.is_available():
    from aquiline.kernels.cpu import ops

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason=cpu.why_not())
WIDTHS = (1, 2, 15, 16, 17, 31, 33, 64, 100, 576, 1000)


def random_rows(num_rows: int, width: int, seed: int = 0) -> Tensor:
    return 3 * torch.randn(num_rows, width, generator=torch.Generator().manual_seed(seed))


def error(result: Tensor, expected: Tensor) -> float:
    """Largest difference, relative to the largest number expected."""
    return float((result.double() - expected.double()).abs().max() / expected.double().abs().max())


@with_levels
@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm_equals_the_reference(level: str, width: int) -> None:
    rows, weight = random_rows(5, width), random_rows(1, width, seed=1)[0]
    expected = dense.rms_norm(rows.double(), weight.double(), 1e-5)
    assert error(ops.rms_norm(rows, weight, 1e-5), expected) < 1e-6


@with_levels
@pytest.mark.parametrize("width", WIDTHS)
def test_silu_equals_the_reference(level: str, width: int) -> None:
    gate, up = random_rows(5, width), random_rows(5, width, seed=1)
    gate[0, 0], gate[1, 0] = -200.0, 200.0
    expected = gate.double() * torch.sigmoid(gate.double()) * up.double()
    assert error(ops.silu_multiply(gate, up), expected) < 1e-6


@with_levels
def test_groups_of_activations_are_quantised_as_by_the_reference(level: str) -> None:
    rows = random_rows(40, 96).view(40, 3, 32)
    rows[::3] = rows[::3].bfloat16().float()  # where many quotients are ties
    rows[1] = 0.0
    rows[2] *= 1e-32
    rows[4, 1, 7] = -1e30
    rows[5] = -rows[5].abs()
    result, expected = ops.quantize_rows(rows), quantize_heads(rows)
    assert torch.equal(result.numbers, expected.numbers) and torch.equal(result.scales, expected.scales)
    rows[6, 2, 31], rows[7, 0, 0] = float("nan"), float("-inf")
    scales = ops.quantize_rows(rows).scales
    assert not scales[6, 2].isfinite() and not scales[7, 0].isfinite()
    assert scales[6, :2].isfinite().all() and scales[7, 1:].isfinite().all()
    assert ops.quantize_rows(rows[:0]).numbers.shape == (0, 3, 32)


@with_levels
@pytest.mark.parametrize("width", WIDTHS)
def test_heads_are_quantised_as_by_the_reference(level: str, width: int) -> None:
    heads = random_rows(7 * 3, width).view(7, 3, width)
    heads[0, 0] = 0.0
    heads[0, 1] *= 2.0**-110
    heads[0, 2] *= 2.0**-90
    heads[1, 0] *= 2.0**120
    heads[2, 0] = torch.arange(width) - 0.5 * width
    result, expected = ops.quantize_heads(heads), quantize_heads(heads)
    assert torch.equal(result.numbers, expected.numbers)
    assert torch.equal(result.scales, expected.scales)


@with_levels
@pytest.mark.parametrize("mistake", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", [0, 16, 36])
def test_a_head_that_is_not_finite_does_not_look_as_if_it_were(level: str, mistake: float, place: int) -> None:
    heads = random_rows(3, 37).view(1, 3, 37)
    heads[0, 1, place] = mistake
    result, expected = ops.quantize_heads(heads), quantize_heads(heads)
    assert result.scales.isfinite().tolist() == expected.scales.isfinite().tolist() == [[True, False, True]]
    for quantized in (result, expected):
        read = read_heads(quantized.numbers, quantized.scales, torch.tensor([0]))
        assert not read[0, 1].isfinite().any()
        assert torch.equal(read[0, ::2], read_heads(expected.numbers, expected.scales, torch.tensor([0]))[0, ::2])


@with_levels
@pytest.mark.parametrize("head_dim", [2, 8, 30, 32, 34, 64, 128])
def test_rotation_equals_the_reference(level: str, head_dim: int) -> None:
    heads = random_rows(7 * 3, head_dim).view(7, 3, head_dim)
    angle = random_rows(7, head_dim // 2, seed=1)
    cos, sin = angle.cos(), angle.sin()
    assert error(ops.rotate(heads, cos, sin), dense.rotate(heads.double(), cos.double(), sin.double())) < 1e-6


@with_levels
def test_the_exponential_is_within_two_units_in_the_last_place(level: str) -> None:
    numbers = torch.linspace(-87.3, 88.3, 1_000_003)
    expected = numbers.double().exp()
    unit = expected.float().nextafter(torch.tensor(torch.inf)) - expected.float()
    assert ((ops.exponential(numbers).double() - expected).abs() / unit).max() < 2


@with_levels
def test_the_exponential_at_its_ends(level: str) -> None:
    numbers = torch.tensor([0.0, -0.0, -torch.inf, -87.4, -1e30, 1e30, torch.inf])
    result = ops.exponential(numbers)
    assert result[:5].tolist() == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert (result[5:] > 2e38).all() and result.isfinite().all()


ROW_OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "rms_norm": lambda rows: ops.rms_norm(rows, torch.linspace(0.5, 2, rows.shape[1]), 1e-6),
    "silu": lambda rows: ops.silu_multiply(rows, rows),
    "rotate": lambda rows: ops.rotate(rows.unsqueeze(1), rows[:, ::2].cos(), rows[:, ::2].sin()).squeeze(1),
}


@with_levels
@pytest.mark.parametrize("name", ROW_OPERATIONS)
def test_a_row_does_not_depend_on_the_others(level: str, name: str) -> None:
    rows = random_rows(40, 70)
    together = ROW_OPERATIONS[name](rows)
    for count in range(1, 41):
        assert torch.equal(ROW_OPERATIONS[name](rows[:count].clone()), together[:count])
    for row in range(40):
        assert torch.equal(ROW_OPERATIONS[name](rows[row : row + 1].clone())[0], together[row])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.rms_norm(torch.zeros(2, 3).double(), torch.zeros(3), 1e-5), "float64"),
        (lambda: ops.rms_norm(torch.zeros(3, 2).t(), torch.zeros(3), 1e-5), "not contiguous"),
        (lambda: ops.rms_norm(torch.zeros(2, 3), torch.zeros(4), 1e-5), r"\[4\]"),
        (lambda: ops.rms_norm(torch.zeros(2, 3), torch.zeros(3, device="meta"), 1e-5), "on meta"),
        (lambda: ops.silu_multiply(torch.zeros(2, 3), torch.zeros(3, 2)), r"\[3, 2\]"),
        (lambda: ops.rotate(torch.zeros(2, 1, 3), torch.zeros(2, 1), torch.zeros(2, 1)), "even"),
        (lambda: ops.rotate(torch.zeros(2, 1, 4), torch.zeros(1, 2), torch.zeros(2, 2)), r"\[1, 2\]"),
    ],
    ids=["dtype", "layout", "size", "device", "other_size", "odd_head", "angles"],
)
def test_a_tensor_that_does_not_fit_is_refused(call: Callable[[], Tensor], message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        call()
