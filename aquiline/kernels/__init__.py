"""The operations a step is made of. `reference` defines what each one means."""

from aquiline.kernels.attention_inputs import AttentionGroup, AttentionInputs
from aquiline.kernels.reference.attention import CONTEXT_CHUNK, attention
from aquiline.kernels.reference.dense import linear, rms_norm, rotate, silu_multiply
from aquiline.kernels.reference.quantized_heads import quantize_heads

__all__ = [
    "CONTEXT_CHUNK",
    "AttentionGroup",
    "AttentionInputs",
    "attention",
    "linear",
    "quantize_heads",
    "rms_norm",
    "rotate",
    "silu_multiply",
]
