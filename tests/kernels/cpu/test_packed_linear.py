"""Packed linear layers: the weights are exact, the sums are right, and a row never depends on its neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor

from aquiline.errors import InvalidParameterError
from aquiline.kernels import cpu
from aquiline.kernels.cpu import PackedLinear, Packing, Threads
from tests.kernels.cpu.levels import with_levels

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason=cpu.why_not())

KINDS = ("bf16", "int8", "int4")
STORAGES = ("Q8_0", "Q4_0", "Q4_1")
FORMATS = KINDS + STORAGES
with_kinds = pytest.mark.parametrize("kind", KINDS)
with_storages = pytest.mark.parametrize("storage", STORAGES)
with_formats = pytest.mark.parametrize("format_name", FORMATS)
SHAPES = ((1, 32), (15, 64), (16, 96), (17, 32), (43, 160), (100, 576))
with_shapes = pytest.mark.parametrize(("out_features", "in_features"), SHAPES)


@dataclass(frozen=True)
class Layer:
    """A packed layer and the weights it should hold, float64."""

    packed: PackedLinear
    weight: Tensor

    @property
    def quantizes_rows(self) -> bool:
        return self.packed.kind != "bf16"


def random_matrix(num_rows: int, width: int, seed: int) -> Tensor:
    """Rows of very different sizes, so that a change in the order of a sum is seen."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.exp(torch.randn(num_rows, 1, generator=generator))
    return torch.randn(num_rows, width, generator=generator) * scale


def gguf_blocks(weight: Tensor, storage: str) -> np.ndarray:
    return gguf.quants.quantize(weight.numpy(), gguf.GGMLQuantizationType[storage])


def random_blocks(storage: str) -> np.ndarray:
    """200 rows of 5 GGUF blocks, any bytes that make finite scales and minima."""
    generator = np.random.default_rng(2)
    num_bytes = {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20}[storage]
    blocks = generator.integers(0, 256, (1000, num_bytes), dtype=np.uint8)
    num_halves = 2 if storage == "Q4_1" else 1
    magnitudes = generator.integers(0, 0x7C00, (1000, num_halves), dtype=np.uint16)
    signs = generator.integers(0, 2, (1000, num_halves), dtype=np.uint16) << np.uint16(15)
    blocks[:, : 2 * num_halves] = (magnitudes | signs).view(np.uint8)
    return blocks.reshape(200, 5 * num_bytes)


def make_layer(format_name: str, out_features: int, in_features: int, seed: int = 1) -> Layer:
    weight = random_matrix(out_features, in_features, seed)
    if format_name in STORAGES:
        blocks = gguf_blocks(weight, format_name)
        packed = PackedLinear.from_gguf(blocks, format_name, (out_features, in_features))
        exact = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[format_name])
        return Layer(packed, torch.from_numpy(exact.copy()).double())
    packed = PackedLinear.from_tensor(weight, format_name)
    return Layer(packed, packed.unpack().double())


def rounded_rows(rows: Tensor, layer: Layer) -> Tensor:
    """What the layer multiplies instead of `rows`, float64: bfloat16, or 8-bit numbers in groups of 32."""
    if not layer.quantizes_rows:
        return rows.bfloat16().double()
    groups = rows.float().view(len(rows), -1, 32)
    largest = groups.abs().amax(dim=-1, keepdim=True)
    inverse = torch.where(largest > 0, torch.tensor(127.0) / largest, 0.0)
    return (torch.round(groups * inverse).double() * (largest / 127.0).double()).view(rows.shape)


def assert_close(result: Tensor, rows: Tensor, layer: Layer) -> None:
    """Equal up to the rounding of float32 sums."""
    exact = rounded_rows(rows, layer) @ layer.weight.T
    magnitude = rounded_rows(rows, layer).abs() @ layer.weight.abs().T
    assert ((result.double() - exact).abs() <= 1e-6 * magnitude + 1e-30).all()


@pytest.fixture(scope="module")
def threads() -> Threads:
    return Threads(2)


@with_storages
@with_shapes
def test_gguf_weights_are_kept_exactly(storage: str, out_features: int, in_features: int) -> None:
    layer = make_layer(storage, out_features, in_features)
    assert torch.equal(layer.packed.unpack().double(), layer.weight)


@with_storages
def test_every_number_of_a_gguf_block_is_kept_exactly(storage: str) -> None:
    """Random bytes, scales among them: subnormal, negative and large ones, and numbers that a quantiser never makes."""
    blocks = random_blocks(storage)
    exact = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[storage])
    unpacked = PackedLinear.from_gguf(blocks, storage, (200, 160)).unpack()
    assert torch.equal(unpacked, torch.from_numpy(exact.copy()))


@with_storages
@pytest.mark.parametrize("number", ["nan", "inf"])
def test_a_gguf_scale_that_is_not_finite_is_refused(storage: str, number: str) -> None:
    blocks = random_blocks(storage)
    blocks[17, :2] = np.frombuffer(np.float16(number).tobytes(), np.uint8)
    with pytest.raises(InvalidParameterError, match="not finite"):
        PackedLinear.from_gguf(blocks, storage, (200, 160))


def test_int8_is_the_q8_0_of_gguf_within_the_rounding_of_its_scale() -> None:
    weight = random_matrix(40, 96, seed=3)
    error = (PackedLinear.from_tensor(weight, "int8").unpack() - weight).abs().view(40, -1, 32)
    step = weight.view(40, -1, 32).abs().amax(dim=-1, keepdim=True) / 127
    assert (error <= 0.57 * step).all()


def test_int4_is_within_half_a_step_of_the_range_of_its_group() -> None:
    weight = random_matrix(40, 96, seed=4)
    groups = weight.view(40, -1, 32)
    step = (groups.amax(dim=-1, keepdim=True) - groups.amin(dim=-1, keepdim=True)) / 15
    error = (PackedLinear.from_tensor(weight, "int4").unpack() - weight).abs().view(40, -1, 32)
    assert (error <= 0.52 * step).all()


def test_bf16_keeps_bfloat16_weights_and_rounds_float32_ones() -> None:
    weight = random_matrix(21, 64, seed=5)
    rounded = weight.bfloat16()
    assert torch.equal(PackedLinear.from_tensor(weight, "bf16").unpack(), rounded.float())
    assert torch.equal(PackedLinear.from_tensor(rounded, "bf16").unpack(), rounded.float())


@with_kinds
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_threads_and_the_type_of_a_matrix_change_nothing(kind: str, dtype: torch.dtype) -> None:
    weight = random_matrix(53, 160, seed=6).bfloat16()
    expected = PackedLinear.from_tensor(weight.float(), kind).unpack()
    for num_threads in (1, 2, 3):
        packed = PackedLinear.from_tensor(weight.to(dtype), kind, Packing.together(Threads(num_threads)))
        assert torch.equal(packed.unpack(), expected)


@with_storages
def test_threads_change_nothing_in_a_gguf_tensor(storage: str) -> None:
    blocks = random_blocks(storage)
    packings = [Packing.together(Threads(count)) for count in (1, 2, 3)]
    unpacked = [PackedLinear.from_gguf(blocks, storage, (200, 160), packing).unpack() for packing in packings]
    assert torch.equal(unpacked[0], unpacked[1]) and torch.equal(unpacked[0], unpacked[2])


@with_kinds
def test_a_group_of_equal_or_zero_weights_is_kept(kind: str, threads: Threads) -> None:
    weight = torch.zeros(3, 64)
    weight[1] = 0.5
    packed = PackedLinear.from_tensor(weight, kind)
    assert torch.allclose(packed.unpack(), weight, atol=1e-4)
    assert torch.allclose(packed.apply(torch.ones(1, 64), threads), torch.tensor([[0.0, 32.0, 0.0]]), rtol=1e-2)


@with_levels
@with_formats
@with_shapes
def test_product_equals_its_definition(
    level: str, format_name: str, out_features: int, in_features: int, threads: Threads
) -> None:
    layer = make_layer(format_name, out_features, in_features)
    for num_rows in (1, 7, 50):
        rows = random_matrix(num_rows, in_features, seed=6)
        assert_close(layer.packed.apply(rows, threads), rows, layer)
        rows = rows.bfloat16()
        assert_close(layer.packed.apply(rows, threads), rows, layer)


@with_levels
@with_formats
def test_bias_residual_and_bfloat16_results(level: str, format_name: str, threads: Threads) -> None:
    layer = make_layer(format_name, 43, 96).packed
    rows = random_matrix(9, 96, seed=7)
    plain = layer.apply(rows, threads)
    bias = torch.linspace(-3, 3, 43)
    layer.set_bias(bias)
    biased = layer.apply(rows, threads)
    assert torch.equal(biased, plain + bias)
    assert torch.equal(layer.apply(rows, threads, torch.bfloat16), biased.bfloat16())
    before = random_matrix(9, 43, seed=8)
    after = before.clone()
    layer.add_to(after, rows, threads)
    assert torch.equal(after, before + biased)


@with_levels
@with_formats
def test_row_has_the_same_bits_for_every_number_of_rows_and_threads(level: str, format_name: str) -> None:
    layer = make_layer(format_name, 75, 160).packed
    rows = random_matrix(70, 160, seed=9)
    whole = layer.apply(rows, Threads(1))
    for num_threads in (1, 2, 3):
        pool = Threads(num_threads)
        counts = (*range(1, 41), 70)
        assert [count for count in counts if not torch.equal(layer.apply(rows[:count], pool), whole[:count])] == []


@with_levels
@with_formats
def test_row_has_the_same_bits_in_any_company(level: str, format_name: str, threads: Threads) -> None:
    layer = make_layer(format_name, 40, 96).packed
    rows = random_matrix(33, 96, seed=10)
    whole = layer.apply(rows, threads)
    order = torch.randperm(33, generator=torch.Generator().manual_seed(11))
    assert torch.equal(layer.apply(rows[order], threads), whole[order])
    others = torch.cat((rows[:5], torch.full((20, 96), float("nan")), 1e30 * rows[:9]))
    assert torch.equal(layer.apply(others, threads)[:5], whole[:5])


@with_levels
@with_formats
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_not_finite_is_never_hidden(
    level: str, format_name: str, poison: float, threads: Threads
) -> None:
    layer = make_layer(format_name, 20, 64).packed
    rows = random_matrix(3, 64, seed=12)
    rows[1, 40] = poison
    result = layer.apply(rows, threads)
    assert not result[1].isfinite().any()
    assert result[0].isfinite().all() and result[2].isfinite().all()


@with_levels
@with_formats
def test_empty_and_tiny_rows(level: str, format_name: str, threads: Threads) -> None:
    layer = make_layer(format_name, 20, 64).packed
    assert layer.apply(torch.zeros(0, 64), threads).shape == (0, 20)
    assert not layer.apply(torch.zeros(2, 64), threads).any()
    assert layer.apply(torch.full((2, 64), 1e-42), threads).abs().max() < 1e-30


def test_levels_multiply_integers_to_the_same_bits(monkeypatch: pytest.MonkeyPatch, threads: Threads) -> None:
    """One group of integer weights, whose sums are exact whatever the order."""
    rows = random_matrix(200, 32, seed=13)
    rows[::3] = rows[::3].bfloat16().float()  # where many quotients are ties
    weight = torch.randint(-127, 128, (16, 32), generator=torch.Generator().manual_seed(14)).float()
    weight[:, 0] = 127.0
    results = []
    for name in ("avx512", "avx2", "portable"):
        monkeypatch.setenv("AQUILINE_CPU_LEVEL", name)
        results.append(PackedLinear.from_tensor(weight, "int8").apply(rows, threads))
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_layers_of_equal_width_share_prepared_rows(threads: Threads) -> None:
    first, second = make_layer("Q8_0", 20, 64).packed, make_layer("Q4_1", 50, 64, seed=2).packed
    rows = random_matrix(4, 64, seed=15)
    prepared = first.prepare(rows)
    assert torch.equal(second.apply_prepared(prepared, threads), second.apply(rows, threads))
    with pytest.raises(InvalidParameterError, match="another size or format"):
        make_layer("bf16", 20, 64).packed.apply_prepared(prepared, threads)


@with_formats
def test_packed_weights_take_no_more_memory_than_they_need(format_name: str) -> None:
    bits = {"bf16": 16, "int8": 8.5, "Q8_0": 8.5, "Q4_0": 4.5, "int4": 5, "Q4_1": 5}[format_name]
    assert make_layer(format_name, 64, 576).packed.num_bytes == pytest.approx(64 * 576 * bits / 8, rel=0.01)
