"""Rotary angles against transformers, near the start and far beyond the original context."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig as TransformersConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from aquiline.models.model_config import RopeConfig
from aquiline.models.rope import RotaryEmbedding

HEAD_DIM = 16
CONTEXT = 32768
POSITIONS = torch.tensor([*range(130), 1000, 1023, 1024, 8000, 8191, 8192, 9000, 16384, 19999, 20000])
YARN = RopeConfig(10000.0, "yarn", 8.0, 4096)

KINDS: dict[str, RopeConfig] = {
    "default": RopeConfig(500.0),
    "linear": RopeConfig(10000.0, "linear", 4.0),
    "llama3": RopeConfig(500000.0, "llama3", 8.0, 8192),
    "llama3_of_another_blend": RopeConfig(10000.0, "llama3", 32.0, 1024, 1.5, 7.0),
    "yarn": YARN,
    "yarn_factor_below_one": replace(YARN, factor=0.5),
    "yarn_attention_factor": replace(YARN, attention_factor=0.75),
    "yarn_mscale": replace(YARN, mscale=0.7, mscale_all_dim=1.3),
    "yarn_only_one_mscale": replace(YARN, mscale=0.7),
    "yarn_betas": replace(YARN, beta_fast=20.0, beta_slow=3.0),
    "yarn_not_truncated": replace(YARN, truncate=False),
    "yarn_short_context": replace(YARN, original_max_position=64, theta=500.0),
}


def rope_parameters(rope: RopeConfig) -> dict[str, Any]:
    """The settings as transformers writes them."""
    names = {
        "linear": ("factor",),
        "dynamic": ("factor",),
        "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
        "yarn": ("factor", "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate"),
    }.get(rope.kind, ())
    settings = {"rope_type": rope.kind, "rope_theta": rope.theta} | {name: getattr(rope, name) for name in names}
    if rope.original_max_position and rope.kind != "dynamic":
        settings["original_max_position_embeddings"] = rope.original_max_position
    return {key: value for key, value in settings.items() if value is not None}


def transformers_rotary(rope: RopeConfig, max_position: int = CONTEXT) -> LlamaRotaryEmbedding:
    config = TransformersConfig(
        hidden_size=4 * HEAD_DIM,
        num_attention_heads=4,
        head_dim=HEAD_DIM,
        max_position_embeddings=max_position,
        rope_parameters=rope_parameters(rope),
    )
    return LlamaRotaryEmbedding(config)


def transformers_angles(rotary: LlamaRotaryEmbedding, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines [num_rows, head_dim / 2]; transformers repeats them for the second half of a head."""
    cos, sin = rotary(torch.zeros(1), positions.unsqueeze(0))
    assert torch.equal(cos[0, :, : HEAD_DIM // 2], cos[0, :, HEAD_DIM // 2 :])
    return cos[0, :, : HEAD_DIM // 2], sin[0, :, : HEAD_DIM // 2]


def our_angles(rope: RopeConfig, positions: Tensor) -> tuple[Tensor, Tensor]:
    return RotaryEmbedding(rope, HEAD_DIM, torch.device("cpu")).angles(positions)


def distance(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> Tensor:
    """Largest difference of any cosine or sine at each position: [num_rows]."""
    return torch.cat(first, dim=1).sub(torch.cat(second, dim=1)).abs().amax(dim=1)


def rounding(positions: Tensor) -> Tensor:
    """What float32 leaves uncertain: the angle is at most the position in size, and holds 24 bits."""
    return 1e-6 + positions * 2.0**-22


@pytest.mark.filterwarnings("ignore:.*rope:UserWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_angles_equal_those_of_transformers(kind: str) -> None:
    rope = KINDS[kind]
    expected = transformers_angles(transformers_rotary(rope), POSITIONS)
    assert (distance(our_angles(rope, POSITIONS), expected) <= rounding(POSITIONS)).all()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "default"])
def test_a_scaling_that_is_not_applied_is_noticed(kind: str) -> None:
    rope = KINDS[kind]
    plain = our_angles(RopeConfig(rope.theta), POSITIONS)
    far = POSITIONS >= 1000
    assert (distance(our_angles(rope, POSITIONS), plain) > 100 * rounding(POSITIONS))[far].all()


def test_every_setting_of_yarn_matters() -> None:
    variants = [rope for kind, rope in KINDS.items() if kind.startswith("yarn") and kind != "yarn_only_one_mscale"]
    tables = [torch.cat(our_angles(rope, POSITIONS[:100]), dim=1) for rope in variants]
    for index, table in enumerate(tables):
        for other in tables[:index]:
            assert (table - other).abs().max() > 1e-3


def test_dynamic_equals_default_within_the_original_length() -> None:
    rope = RopeConfig(10000.0, "dynamic", 2.0, 64)
    positions = torch.arange(64)
    expected = transformers_angles(transformers_rotary(rope, max_position=64), positions)
    assert (distance(our_angles(rope, positions), expected) <= rounding(positions)).all()
    assert distance(our_angles(rope, positions), our_angles(RopeConfig(10000.0), positions)).max() == 0


def test_dynamic_grows_as_decoding_token_by_token_does() -> None:
    """Position 63 is the last of the original 64; the row at 64 is the first to be stretched, by length 65."""
    rope = RopeConfig(10000.0, "dynamic", 2.0, 64)
    rotary = transformers_rotary(rope, max_position=64)
    positions = torch.tensor([*range(60, 200), 1000, 8000, 9000, 20000])
    steps = [transformers_angles(rotary, positions[index : index + 1]) for index in range(len(positions))]
    expected = torch.cat([cos for cos, _ in steps]), torch.cat([sin for _, sin in steps])
    ours = our_angles(rope, positions)
    assert (distance(ours, expected) <= rounding(positions)).all()
    differs = distance(ours, our_angles(RopeConfig(10000.0), positions)) > 1e-3
    assert differs.tolist() == [position >= 64 for position in positions.tolist()]


@pytest.mark.parametrize("kind", [*KINDS, "dynamic"])
def test_angle_depends_on_its_own_position_alone(kind: str) -> None:
    rope = KINDS.get(kind, RopeConfig(10000.0, "dynamic", 2.0, 64))
    order = torch.randperm(len(POSITIONS), generator=torch.Generator().manual_seed(0))
    together, permuted = our_angles(rope, POSITIONS), our_angles(rope, POSITIONS[order])
    alone = [our_angles(rope, POSITIONS[index : index + 1]) for index in range(len(POSITIONS))]
    for part in range(2):
        assert torch.equal(together[part][order], permuted[part])
        assert torch.equal(together[part], torch.cat([row[part] for row in alone]))


def test_frequency_factors_are_divisors() -> None:
    """GGUF files store llama3 scaling as what each frequency was divided by."""
    scaled = KINDS["llama3"]
    plain_rotary, scaled_rotary = transformers_rotary(RopeConfig(scaled.theta)), transformers_rotary(scaled)
    factors = plain_rotary.inv_freq.double() / scaled_rotary.inv_freq.double()
    assert factors.min() == 1 and factors.max() == 8
    by_factors = RopeConfig(scaled.theta, frequency_factors=tuple(factors.tolist()))
    expected = transformers_angles(scaled_rotary, POSITIONS)
    assert (distance(our_angles(by_factors, POSITIONS), expected) <= rounding(POSITIONS)).all()


def test_angles_equal_the_formula() -> None:
    """Pair i of position p turns by p / theta ** (2 i / head_dim)."""
    pair = torch.arange(HEAD_DIM // 2, dtype=torch.float64)
    angle = POSITIONS.double().unsqueeze(1) / 500.0 ** (2 * pair / HEAD_DIM)
    ours = our_angles(RopeConfig(500.0), POSITIONS)
    assert ours[0].dtype == torch.float32
    assert (distance(ours, (torch.cos(angle), torch.sin(angle))) <= rounding(POSITIONS)).all()
