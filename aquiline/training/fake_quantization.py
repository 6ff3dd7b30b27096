"""Weights in training as they will be served: rounded as the native kernels round them.

A head that is trained with exact weights loses some of its acceptance where it is served in four bits. Trained with the
rounded ones, it finds weights that still draft well when they are rounded. Rounding has no useful derivative, so the
gradient passes as if it were not there (the straight-through estimator of Bengio et al., arXiv 1308.3432, section 4).
"""

from __future__ import annotations

import torch
from torch import Tensor

from aquiline.kernels.cpu.packed import GROUP_SIZE
from aquiline.training.settings import ServedQuantization

LARGEST_INT8 = 127.0
LARGEST_INT4 = 15.0


def fake_quantized(weight: Tensor, quantization: ServedQuantization) -> Tensor:
    """The values that a matrix has when it is served; its gradient is that of the exact weights.

    Groups of 32 neighbouring inputs share a float16 scale, and for int4 a float16 minimum, as in `PackedLinear`.

    They are quantised as they are written, in bfloat16.

    Worked example, int4, a group from -0.3 to 1.2: the scale is 0.1, and 0.46 is served as -0.3 + 8 * 0.1 = 0.5.

    Args:
        weight: float32 [out_features, in_features]; where groups do not fit into a row, it is served as it is.
    """
    if quantization == "none" or weight.ndim != 2 or weight.shape[1] % GROUP_SIZE:
        return weight
    with torch.no_grad():
        groups = weight.bfloat16().float().reshape(len(weight), -1, GROUP_SIZE)
        served = _int4(groups) if quantization == "int4" else _int8(groups)
        change = served.flatten(1) - weight
    return weight + change


def _int8(groups: Tensor) -> Tensor:
    scale = _float16(groups.abs().amax(dim=-1, keepdim=True) / LARGEST_INT8)
    return scale * _quotients(groups, scale).clamp_(-LARGEST_INT8, LARGEST_INT8).round_()


def _int4(groups: Tensor) -> Tensor:
    lowest, highest = groups.aminmax(dim=-1, keepdim=True)
    scale, minimum = _float16((highest - lowest) / LARGEST_INT4), _float16(lowest)
    return scale * _quotients(groups - minimum, scale).clamp_(0.0, LARGEST_INT4).round_() + minimum


def _quotients(numbers: Tensor, scale: Tensor) -> Tensor:
    return numbers / torch.where(scale == 0.0, 1.0, scale)


def _float16(numbers: Tensor) -> Tensor:
    return numbers.half().float()
