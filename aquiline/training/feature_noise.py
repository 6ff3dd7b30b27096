"""Noise on the features of EAGLE-1 in training (arXiv 2401.15077), so that a draft bears its own mistakes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from aquiline.training.packing import Pack

FULL_NOISE_LENGTH = 512


def with_noise(features: Tensor, pack: Pack, width: float, seed: int, step: int) -> Tensor:
    """Features with uniform noise, weaker in longer conversations: width * 512 / length on either side of half of it.

    Args:
        features: [num_rows, feature_size].
        step: number of the optimiser step, from which the noise follows: a run that goes on draws the same.
    """
    sequence = np.random.SeedSequence([seed, step, pack.example_ids[0]])
    generator = torch.Generator().manual_seed(int(sequence.generate_state(1)[0]))
    noise = torch.rand(features.shape, generator=generator) - 0.5
    lengths = torch.tensor(pack.lengths).repeat_interleave(torch.tensor(pack.lengths))  # [num_rows]
    return features + (noise * (width * FULL_NOISE_LENGTH / lengths).unsqueeze(-1)).to(features)
