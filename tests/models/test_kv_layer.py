"""K/V memory of a layer: what is written comes back, and rows move whole."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from aquiline.kernels import quantize_heads
from aquiline.kernels.reference.quantized_heads import read_heads
from aquiline.models.kv_layer import KVLayer
from tests.models.native_models import memory_of, packable_config

DTYPES = (torch.float32, torch.bfloat16, torch.int8)
# Of the largest number of a head: half a step of 127, or of a mantissa of 8 bits.
PRECISION = {torch.float32: 0.0, torch.bfloat16: 2.0**-8, torch.int8: 0.501 / 127}
EVERY_SLOT = torch.arange(12)

with_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def random_heads(num_rows: int, seed: int) -> Tensor:
    config = packable_config()
    shape = (num_rows, config.num_kv_heads, config.head_dim)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def new_layer(dtype: torch.dtype) -> KVLayer:
    return memory_of(packable_config(), len(EVERY_SLOT), dtype)[0]


def read(layer: KVLayer, slots: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values in float32."""
    return read_heads(layer.keys, layer.key_scales, slots), read_heads(layer.values, layer.value_scales, slots)


@with_dtypes
def test_what_is_written_comes_back(dtype: torch.dtype) -> None:
    layer, slots, written = new_layer(dtype), torch.tensor([7, 0, 3]), (random_heads(3, 1), random_heads(3, 2))
    layer.write(slots, *written)
    for heads, wanted in zip(read(layer, slots), written, strict=True):
        step = PRECISION[dtype] * wanted.abs().amax(dim=-1, keepdim=True)
        assert bool(((heads - wanted).abs() <= step).all())
    others = torch.tensor([slot for slot in EVERY_SLOT.tolist() if slot not in slots])
    assert all(bool(heads.isnan().all()) for heads in read(layer, others))


@with_dtypes
def test_rows_move_whole_even_where_they_overlap(dtype: torch.dtype) -> None:
    layer = new_layer(dtype)
    layer.write(EVERY_SLOT, random_heads(12, 1), random_heads(12, 2))
    before = read(layer, EVERY_SLOT)
    layer.move(torch.tensor([3, 4, 5]), torch.tensor([2, 3, 4]))
    expected = torch.tensor([0, 1, 3, 4, 5, 5, 6, 7, 8, 9, 10, 11])
    for heads, original in zip(read(layer, EVERY_SLOT), before, strict=True):
        assert torch.equal(heads, original[expected])


def test_a_head_is_quantised_by_its_own_largest_number() -> None:
    heads = torch.tensor([[[1.0, -0.5, 0.25, 0.0], [1000.0, -500.0, 4.0, 2.0]]])
    result = quantize_heads(heads)
    # -500 / 1000 * 127 = -63.5 lies between two integers: the even one is taken.
    assert result.numbers.tolist() == [[[127, -64, 32, 0], [127, -64, 1, 0]]]
    assert torch.allclose(result.scales * 127, torch.tensor([[1.0, 1000.0]]))


def test_bits_of_a_row_do_not_depend_on_other_rows() -> None:
    heads = random_heads(9, 3)
    whole = quantize_heads(heads)
    for row in range(9):
        alone = quantize_heads(heads[row : row + 1])
        assert torch.equal(alone.numbers[0], whole.numbers[row])
        assert torch.equal(alone.scales[0], whole.scales[row])
