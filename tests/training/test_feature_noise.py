"""Noise on the features of EAGLE-1."""

from __future__ import annotations

import pytest
import torch

from aquiline.training.feature_noise import with_noise
from aquiline.training.packing import Pack, make_pack
from tests.training.toy_run import toy_examples

WIDTH = 400


def pack_of(*example_ids: int) -> Pack:
    return make_pack(toy_examples(), example_ids, 100)


def test_noise_fills_a_band_that_is_narrower_in_longer_conversations() -> None:
    pack = pack_of(0, 1)
    noise = with_noise(torch.zeros(pack.num_rows, WIDTH), pack, 0.2, seed=1, step=3)
    for own, length in zip(noise.split(list(pack.lengths)), pack.lengths, strict=True):
        half = 0.2 * 512 / length / 2
        assert float(own.abs().max()) == pytest.approx(half, rel=0.02)
        assert float(own.mean()) == pytest.approx(0.0, abs=0.05 * half)
        assert float(own.std()) == pytest.approx(half / 3**0.5, rel=0.05)


def test_noise_is_added_and_follows_from_seed_step_and_example() -> None:
    features = torch.ones(pack_of(0).num_rows, WIDTH)
    first = with_noise(features, pack_of(0), 0.2, seed=1, step=3)
    assert torch.equal(with_noise(features, pack_of(0), 0.2, seed=1, step=3), first)
    assert float(first.mean()) == pytest.approx(1.0, abs=0.05)
    for seed, step in ((2, 3), (1, 4)):
        assert not torch.equal(with_noise(features, pack_of(0), 0.2, seed, step), first)


def test_noise_keeps_the_dtype() -> None:
    features = torch.ones(pack_of(0).num_rows, WIDTH, dtype=torch.bfloat16)
    assert with_noise(features, pack_of(0), 0.2, seed=1, step=3).dtype == torch.bfloat16
