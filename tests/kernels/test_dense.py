"""Row-wise operations: what they compute, and that a row never depends on its neighbours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from aquiline.kernels import linear, rms_norm, rotate, silu_multiply
from aquiline.kernels.reference.dense import ROW_TILE, pad_rows

EPS = 1e-5
WIDTHS = (8, 24, 37, 50, 576)
DTYPES = (torch.float32, torch.bfloat16)
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}
SEEDS = st.integers(0, 2**31)
NUM_ROWS = st.integers(1, 70)

with_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
with_widths = pytest.mark.parametrize("width", WIDTHS)


@dataclass(frozen=True)
class Case:
    """An operation on rows, its other arguments filled in.

    Attributes:
        compute: from rows [num_rows, width] to [num_rows, any].
        define: the same from float64 rows, written as the plain formula.
    """

    compute: Callable[[Tensor], Tensor]
    define: Callable[[Tensor], Tensor]


def linear_case(width: int, dtype: torch.dtype, has_bias: bool = False, out_features: int = 43) -> Case:
    weight = (torch.randn(out_features, width, generator=torch.Generator().manual_seed(1)) / width**0.5).to(dtype)
    bias = torch.randn(out_features, generator=torch.Generator().manual_seed(2)).to(dtype) if has_bias else None

    def define(rows: Tensor) -> Tensor:
        product: Tensor = (rows[:, None, :] * weight.double()).sum(dim=-1)
        return product if bias is None else product + bias.double()

    return Case(lambda rows: linear(rows, weight, bias), define)


def rms_norm_case(width: int, dtype: torch.dtype) -> Case:
    weight = (1 + torch.randn(width, generator=torch.Generator().manual_seed(3))).to(dtype)

    def define(rows: Tensor) -> Tensor:
        return rows / ((rows**2).sum(dim=-1, keepdim=True) / width + EPS) ** 0.5 * weight.double()

    return Case(lambda rows: rms_norm(rows, weight, EPS), define)


def silu_case(width: int, dtype: torch.dtype) -> Case:
    """The second operand is made from the first, so that it too belongs to its row."""

    def define(rows: Tensor) -> Tensor:
        return rows * torch.sigmoid(rows) * rows.flip(-1)

    return Case(lambda rows: silu_multiply(rows, rows.flip(-1)), define)


def rotate_case(width: int, dtype: torch.dtype) -> Case:
    """Three heads per row, turned by angles that the row itself gives; an odd width loses its last element."""
    half = width // 2

    def compute(rows: Tensor) -> Tensor:
        angle = rows[:, :half].float()
        heads = torch.stack((rows, rows.flip(-1), -rows), dim=1)[..., : 2 * half]
        return rotate(heads, torch.cos(angle), torch.sin(angle)).flatten(1)

    def define(rows: Tensor) -> Tensor:
        turn = torch.polar(torch.ones_like(rows[:, :half]), rows[:, :half]).unsqueeze(1)
        heads = torch.stack((rows, rows.flip(-1), -rows), dim=1)[..., : 2 * half]
        turned = torch.complex(heads[..., :half], heads[..., half:]) * turn
        return torch.cat((turned.real, turned.imag), dim=-1).flatten(1)

    return Case(compute, define)


OPERATIONS: dict[str, Callable[[int, torch.dtype], Case]] = {
    "linear": linear_case,
    "linear_bias": lambda width, dtype: linear_case(width, dtype, has_bias=True),
    "linear_one_output": lambda width, dtype: linear_case(width, dtype, out_features=1),
    "linear_wide_output": lambda width, dtype: linear_case(width, dtype, out_features=1536),
    "rms_norm": rms_norm_case,
    "silu_multiply": silu_case,
    "rotate": rotate_case,
}
with_operations = pytest.mark.parametrize("operation", OPERATIONS)


def random_rows(num_rows: int, width: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Rows of very different sizes, so that a change in the order of a sum is seen."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.exp(torch.randn(num_rows, 1, generator=generator))
    return (torch.randn(num_rows, width, generator=generator) * scale).to(dtype)


def neighbours_change_rows(compute: Callable[[Tensor], Tensor], rows: Tensor, seed: int) -> bool:
    """Whether any row has other bits alone, in a part of the rows, in another order or beside other rows."""
    generator = torch.Generator().manual_seed(seed)
    num_rows = len(rows)
    together = compute(rows)
    order = torch.randperm(num_rows, generator=generator)
    cut = int(torch.randint(0, num_rows, (), generator=generator))
    alone = torch.cat([compute(rows[index : index + 1]) for index in range(num_rows)])
    parts = torch.cat([compute(part) for part in (rows[:cut], rows[cut:]) if len(part)])
    permuted = torch.empty_like(together)
    permuted[order] = compute(rows[order])
    beside_others = compute(torch.cat((rows, 100 * rows.flip(0))))[:num_rows]
    return not all(torch.equal(together, other) for other in (alone, parts, permuted, beside_others))


@with_operations
@with_dtypes
@with_widths
def test_operation_equals_its_formula(operation: str, dtype: torch.dtype, width: int) -> None:
    case = OPERATIONS[operation](width, dtype)
    rows = random_rows(11, width, dtype, seed=4)
    result, expected = case.compute(rows), case.define(rows.double())
    assert result.dtype == dtype and result.shape == expected.shape
    error = (result.double() - expected).abs()
    assert error.max() <= TOLERANCE[dtype] * max(1.0, float(expected.abs().max()))


@with_operations
@with_dtypes
@with_widths
@settings(deadline=None, max_examples=6)
@given(num_rows=NUM_ROWS, seed=SEEDS)
def test_row_has_the_same_bits_in_any_company(
    operation: str, dtype: torch.dtype, width: int, num_rows: int, seed: int
) -> None:
    case = OPERATIONS[operation](width, dtype)
    assert not neighbours_change_rows(case.compute, random_rows(num_rows, width, dtype, seed), seed)


@with_dtypes
@pytest.mark.parametrize("width", [37, 50, 576, 1536])
@pytest.mark.parametrize("num_outputs", [1, 9, 150])
def test_row_of_a_product_has_the_same_bits_for_every_row_count(
    dtype: torch.dtype, width: int, num_outputs: int
) -> None:
    weight, rows = random_rows(num_outputs, width, dtype, seed=5), random_rows(70, width, dtype, seed=6)
    whole = linear(rows, weight)
    assert [count for count in range(1, 71) if not torch.equal(linear(rows[:count], weight), whole[:count])] == []


def test_dependence_on_neighbours_is_noticed() -> None:
    rows = random_rows(9, 24, torch.float32, seed=7)
    assert neighbours_change_rows(lambda part: part - part.mean(), rows, seed=8)
    assert neighbours_change_rows(lambda part: part * (1 + 1e-6 * len(part)), rows, seed=8)


@pytest.mark.parametrize("num_rows", [1, ROW_TILE - 1, ROW_TILE, ROW_TILE + 1, 3 * ROW_TILE])
def test_padding_appends_zero_rows_up_to_a_tile(num_rows: int) -> None:
    rows = random_rows(2 * num_rows, 5, torch.float32, seed=9).view(2, num_rows, 5)
    padded = pad_rows(rows)
    assert padded.shape[1] % ROW_TILE == 0 and 0 <= padded.shape[1] - num_rows < ROW_TILE
    assert torch.equal(padded[:, :num_rows], rows)
    assert not padded[:, num_rows:].any()


def test_norm_of_an_empty_signal_is_zero_and_finite() -> None:
    assert torch.equal(rms_norm(torch.zeros(2, 8), torch.ones(8), EPS), torch.zeros(2, 8))


def test_norm_is_rounded_before_it_is_scaled() -> None:
    rows, weight = random_rows(20, 24, torch.bfloat16, seed=10), random_rows(1, 24, torch.bfloat16, seed=11)[0]
    wide = rows.double()
    wide = wide / (wide.pow(2).mean(dim=-1, keepdim=True) + EPS).sqrt()
    result = rms_norm(rows, weight, EPS)
    assert (result == weight * wide.bfloat16()).float().mean() > 0.99
    assert (result == (weight.double() * wide).bfloat16()).float().mean() < 0.95


def test_activation_is_finite_for_extreme_gates() -> None:
    gate = torch.tensor([[-1e4, -100.0, 0.0, 100.0, 1e4]])
    assert torch.equal(silu_multiply(gate, torch.ones(1, 5)), torch.tensor([[0.0, 0.0, 0.0, 100.0, 1e4]]))


def test_rotation_pairs_each_dimension_with_the_one_half_a_head_away() -> None:
    """A quarter turn takes (first, second) to (-second, first)."""
    heads = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]])
    turned = rotate(heads, torch.zeros(1, 2), torch.ones(1, 2))
    assert torch.equal(turned, torch.tensor([[[-3.0, -4.0, 1.0, 2.0]]]))
