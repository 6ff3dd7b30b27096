"""The operations a step is made of. `reference` defines what each one means."""

from aquiline.kernels.attention_inputs import AttentionGroup, AttentionInputs
from aquiline.kernels.reference.attention import CONTEXT_CHUNK, attention
from aquiline.kernels.reference.dense import linear, rms_norm, rotate, silu_multiply

__all__ = [
    "CONTEXT_CHUNK",
    "AttentionGroup",
    "AttentionInputs",
    "attention",
    "linear",
    "rms_norm",
    "rotate",
    "silu_multiply",
]
