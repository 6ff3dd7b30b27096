"""Single native operations with the arguments of their references, in float32."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from aquiline.errors import InvalidParameterError
from aquiline.kernels.attention_inputs import AttentionInputs
from aquiline.kernels.cpu.extension import native
from aquiline.kernels.cpu.forward import GroupArrays, LayerMemories, LayerMemory, MemoryShape, check_tensor
from aquiline.kernels.cpu.packed import GROUP_SIZE, Threads
from aquiline.kernels.reference.quantized_heads import QuantizedHeads

FLOAT32 = (torch.float32,)


def rms_norm(rows: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Divide each row [num_rows, width] by its root mean square, then scale by `weight` [width]."""
    check_tensor(rows, "rows", FLOAT32, (None, None))
    check_tensor(weight, "weight", FLOAT32, (rows.shape[1],))
    out = torch.empty_like(rows)
    native().rms_norm(rows.data_ptr(), weight.data_ptr(), eps, rows.shape[0], rows.shape[1], out.data_ptr())
    return out


def silu_multiply(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up for tensors of one shape."""
    check_tensor(gate, "gate", FLOAT32, gate.shape)
    check_tensor(up, "up", FLOAT32, gate.shape)
    out = torch.empty_like(gate)
    native().silu_multiply(gate.data_ptr(), up.data_ptr(), gate.numel(), out.data_ptr())
    return out


def exponential(numbers: Tensor) -> Tensor:
    """e to the power of each number, as attention and silu take it: 0 below -87.3, no more than e^88.3 above."""
    check_tensor(numbers, "numbers", FLOAT32, numbers.shape)
    out = torch.empty_like(numbers)
    native().exponentials(numbers.data_ptr(), numbers.numel(), out.data_ptr())
    return out


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding: heads [num_rows, num_heads, head_dim], cos and sin [num_rows, head_dim / 2]."""
    check_tensor(heads, "heads", FLOAT32, (None, None, None))
    num_rows, num_heads, head_dim = heads.shape
    check_tensor(cos, "cos", FLOAT32, (num_rows, head_dim // 2))
    check_tensor(sin, "sin", FLOAT32, (num_rows, head_dim // 2))
    if head_dim % 2:
        raise InvalidParameterError(f"head_dim is {head_dim}; it must be even")
    out = heads.clone()
    native().rotate(out.data_ptr(), cos.data_ptr(), sin.data_ptr(), num_rows, num_heads, head_dim // 2)
    return out


def quantize_heads(heads: Tensor) -> QuantizedHeads:
    """Round heads [num_rows, num_heads, head_dim] to 8-bit integers with one scale each."""
    check_tensor(heads, "heads", FLOAT32, (None, None, None))
    num_rows, num_heads, head_dim = heads.shape
    result = QuantizedHeads(torch.empty(heads.shape, dtype=torch.int8), torch.empty(num_rows, num_heads))
    native().quantize_heads(
        heads.data_ptr(), num_rows * num_heads, head_dim, result.numbers.data_ptr(), result.scales.data_ptr()
    )
    return result


def quantize_rows(rows: Tensor) -> QuantizedHeads:
    """Round rows [num_rows, num_groups, 32] to 8-bit integers with a scale for each group, as quantised layers do.

    Raises:
        InvalidParameterError: rows of another type, device, layout or shape.
    """
    check_tensor(rows, "rows", FLOAT32, (None, None, GROUP_SIZE))
    num_rows, num_groups, _ = rows.shape
    result = QuantizedHeads(torch.empty(rows.shape, dtype=torch.int8), torch.empty(num_rows, num_groups))
    if num_groups:
        native().quantize_rows(
            rows.data_ptr(), num_rows, num_groups * GROUP_SIZE, result.numbers.data_ptr(), result.scales.data_ptr()
        )
    return result


def attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    inputs: AttentionInputs,
    threads: Threads,
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
) -> Tensor:
    """softmax(query . key / sqrt(head_dim)) . value for grouped-query heads; arguments as for `prepared_attention`."""
    return prepared_attention(query, key_cache, value_cache, inputs, threads, key_scales, value_scales)()


def prepared_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    inputs: AttentionInputs,
    threads: Threads,
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
) -> Callable[[], Tensor]:
    """Attention whose arguments are checked and handed over once; each call computes it anew.

    Args:
        query: float32 [num_rows, num_heads, head_dim].
        key_cache, value_cache: float32, bfloat16 or int8 [num_slots, num_kv_heads, head_dim].
        key_scales, value_scales: float32 [num_slots, num_kv_heads], only with int8.

    Raises:
        InvalidParameterError: a tensor of another type, shape, device or layout.
        IndexError: a slot or length that does not exist, or groups that do not cover the rows.
    """
    check_tensor(query, "query", FLOAT32, (None, None, None))
    num_rows, num_heads, head_dim = query.shape
    num_kv_heads = key_cache.shape[1] if key_cache.dim() == 3 else 0
    if not num_kv_heads or num_heads % num_kv_heads:
        raise InvalidParameterError(f"{num_heads} heads cannot share {num_kv_heads} K/V heads evenly")
    layer = LayerMemory(key_cache, value_cache, key_scales, value_scales)
    memory = LayerMemories([layer], MemoryShape(1, num_kv_heads, head_dim))
    groups = GroupArrays(inputs)
    module = native()

    def run() -> Tensor:
        call = module.attention_call(num_heads, memory.handle)
        out = torch.empty_like(query)
        module.attention(
            threads.handle, call, query.data_ptr(), num_rows, groups.handles, groups.first_position, out.data_ptr()
        )
        return out

    return run


def random_bits(key: tuple[int, int], first_id: int, count: int) -> Tensor:
    """32 random bits, as int64 in [0, 2**32), of the ids first_id, first_id + 1, ..."""
    out = torch.empty(count, dtype=torch.int32)
    native().noise_bits(first_id, count, key[0], key[1], out.data_ptr())
    return out.to(torch.int64) & 0xFFFFFFFF


def gumbel(key: tuple[int, int], first_id: int, count: int) -> Tensor:
    """Standard Gumbel numbers of the ids first_id, first_id + 1, ..."""
    out = torch.empty(count, dtype=torch.float32)
    native().gumbel_noise(first_id, count, key[0], key[1], out.data_ptr())
    return out
