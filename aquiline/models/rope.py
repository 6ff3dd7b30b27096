"""Rotary angles of every scaling that Llama checkpoints use.

Angles are a function of the row's own position, whatever prompt, chunk or batch it comes in. Sources: linear
interpolation (arXiv 2306.15595), NTK-aware `dynamic` scaling, YaRN (arXiv 2309.00071, section 3) and the frequency
blending of Llama 3.1.

`dynamic` stretches the base with the sequence length. A row at position p uses the length p + 1, which is what
decoding one token at a time gives; a one-shot prefill past the original context elsewhere may rotate all its rows by
the prompt's full length.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from aquiline.models.model_config import RopeConfig


class RotaryEmbedding:
    """Cosines and sines for given positions.

    Args:
        config: base and scaling.
        head_dim: width of an attention head, in elements; even.
    """

    def __init__(self, config: RopeConfig, head_dim: int, device: torch.device) -> None:
        self._config = config
        self._head_dim = head_dim
        self._exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
        frequencies = 1.0 / config.theta**self._exponents
        self._scale = 1.0
        if config.kind == "linear":
            frequencies = frequencies / config.factor
        elif config.kind == "llama3":
            frequencies = _blend_llama3(frequencies, config)
        elif config.kind == "yarn":
            frequencies = _blend_yarn(frequencies, config, head_dim)
            self._scale = _yarn_attention_factor(config)
        if config.frequency_factors is not None:
            frequencies = frequencies / torch.tensor(config.frequency_factors, device=device)
        self._frequencies = frequencies

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines, float32 [num_rows, head_dim / 2] each, for positions [num_rows]."""
        position = positions.float().unsqueeze(-1)
        frequencies = self._dynamic_frequencies(position) if self._config.kind == "dynamic" else self._frequencies
        angle = position * frequencies
        return torch.cos(angle) * self._scale, torch.sin(angle) * self._scale

    def _dynamic_frequencies(self, position: Tensor) -> Tensor:
        factor, original = self._config.factor, self._config.original_max_position
        length = torch.clamp(position + 1, min=original)
        stretch = factor * length / original - (factor - 1)
        # In float64, because a float32 power may round differently when there are other rows beside it.
        base = self._config.theta * stretch.double() ** (self._head_dim / (self._head_dim - 2))
        stretched = (1.0 / base ** self._exponents.double()).float()
        return torch.where(position < original, self._frequencies, stretched)


def _blend_llama3(frequencies: Tensor, config: RopeConfig) -> Tensor:
    """Divide long waves by the factor, keep short ones, and blend those between."""
    turns = config.original_max_position * frequencies / (2 * math.pi)
    smooth = (turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor)
    blended = (1 - smooth) * frequencies / config.factor + smooth * frequencies
    scaled = torch.where(turns < config.low_freq_factor, frequencies / config.factor, frequencies)
    between = (turns >= config.low_freq_factor) & (turns <= config.high_freq_factor)
    return torch.where(between, blended, scaled)


def _blend_yarn(frequencies: Tensor, config: RopeConfig, head_dim: int) -> Tensor:
    """Interpolate dimensions that turn less than beta_slow times, keep those above beta_fast, ramp between."""

    def dimension_of(turns: float) -> float:
        return head_dim * math.log(config.original_max_position / (turns * 2 * math.pi)) / (2 * math.log(config.theta))

    low, high = dimension_of(config.beta_fast), dimension_of(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    index = torch.arange(head_dim // 2, dtype=torch.float32, device=frequencies.device)
    interpolated = torch.clamp((index - low) / (high - low), 0, 1)
    return frequencies / config.factor * interpolated + frequencies * (1 - interpolated)


def _yarn_attention_factor(config: RopeConfig) -> float:
    """Factor on cosines and sines that offsets the flatter attention of a longer context (YaRN, section 3.4)."""

    def magnitude(multiplier: float) -> float:
        return 0.1 * multiplier * math.log(config.factor) + 1.0 if config.factor > 1 else 1.0

    if config.attention_factor is not None:
        return config.attention_factor
    if config.mscale and config.mscale_all_dim:
        return magnitude(config.mscale) / magnitude(config.mscale_all_dim)
    return magnitude(1.0)
