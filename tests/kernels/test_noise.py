from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from aquiline.kernels.reference import noise
from aquiline.kernels.reference.noise import NoiseStream, gumbel, mix_key, random_bits, uniform
from tests.kernels.chi_square import REJECTION_LEVEL, histogram, p_value

WORD = 0xFFFFFFFF


def mix_word(word: int) -> int:
    word ^= word >> 16
    word = word * 0x21F0AAAD & WORD
    word ^= word >> 15
    word = word * 0x735A2D97 & WORD
    return word ^ word >> 15


def plain_bits(seed: int, sample_index: int, position: int, stream: int, token_id: int) -> int:
    """The documented algorithm in unbounded integers."""
    words = []
    for start in (0x243F6A88, 0x85A308D3):
        state = start
        for word in (seed & WORD, seed >> 32, sample_index, position, stream):
            state = mix_word(state ^ word)
        words.append(state)
    return mix_word(mix_word(token_id ^ words[0]) ^ words[1])


def key_rows(
    num_rows: int, seed: int | Tensor = 7, sample_index: int | Tensor = 0, position: int | Tensor = 100, stream: int = 0
) -> Tensor:
    zeros = torch.zeros(num_rows, dtype=torch.int64)
    return mix_key(zeros + seed, zeros + sample_index, zeros + position, stream)


VECTORS = [
    # seed, sample index, position, stream, token id, bits
    (0, 0, 0, 0, 0, 1544796706),
    (1, 0, 0, 0, 0, 106105477),
    (2**63 - 1, 3, 4095, 1, 128255, 172029815),
    (2**32, 0, 17, 2, 3, 3130230812),
    (1234567890123456789, 1, 131071, 3, 49151, 3537372390),
]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"seed{vector[0]}")
def test_bits_have_their_documented_values(vector: tuple[int, ...]) -> None:
    seed, sample_index, position, stream, token_id, bits = vector
    keys = key_rows(1, seed, sample_index, position, stream)
    assert random_bits(keys, torch.tensor([token_id])).tolist() == [[bits]]


@given(
    seed=st.integers(0, 2**63 - 1),
    sample_index=st.integers(0, 1000),
    position=st.integers(0, WORD),
    stream=st.sampled_from(list(NoiseStream)),
    token_id=st.integers(0, WORD),
)
def test_bits_follow_the_integer_algorithm(
    seed: int, sample_index: int, position: int, stream: NoiseStream, token_id: int
) -> None:
    bits = random_bits(key_rows(1, seed, sample_index, position, stream), torch.tensor([token_id]))
    assert bits.item() == plain_bits(seed, sample_index, position, stream, token_id)


def test_numbers_at_the_ends_of_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    bits = torch.tensor([[0, 1, 2, 2**31, WORD]])
    monkeypatch.setattr(noise, "random_bits", lambda keys, token_ids: bits.clone())
    uniforms = uniform(bits, bits)[0]
    assert uniforms.dtype == torch.float32
    assert uniforms[0] > 0 and uniforms[-1] == 1 - 2.0**-24
    largest = [-math.log(-math.log1p(-(word + 0.5) * 2.0**-32)) for word in (0, 1, 2)]
    values = gumbel(bits, bits)[0]
    assert values[:3].tolist() == pytest.approx(largest, rel=1e-6)
    assert values[-1].item() == pytest.approx(-math.log(24 * math.log(2)), rel=1e-6)


def test_every_input_bit_reaches_every_output_bit() -> None:
    """Avalanche: flipping any bit of seed, sample index, position or token flips each output bit half of the time."""
    num_rows = 4000
    generator = torch.Generator().manual_seed(3)
    seeds = torch.randint(0, 2**63 - 1, (num_rows,), generator=generator)
    positions = torch.randint(0, 2**20, (num_rows,), generator=generator)
    tokens = torch.randint(0, 2**18, (num_rows, 1), generator=generator)
    before = random_bits(key_rows(num_rows, seeds, 1, positions), tokens)
    flipped = [random_bits(key_rows(num_rows, seeds ^ (1 << bit), 1, positions), tokens) for bit in range(63)]
    flipped += [random_bits(key_rows(num_rows, seeds, 1, positions ^ (1 << bit)), tokens) for bit in range(20)]
    flipped += [random_bits(key_rows(num_rows, seeds, 1 ^ (1 << bit), positions), tokens) for bit in range(8)]
    flipped += [random_bits(key_rows(num_rows, seeds, 1, positions), tokens ^ (1 << bit)) for bit in range(18)]
    changes = torch.stack(flipped).squeeze(2) ^ before.squeeze(1)  # [num_input_bits, num_rows]
    for bit in range(32):
        rates = ((changes >> bit) & 1).double().mean(dim=1)  # [num_input_bits]
        assert (rates - 0.5).abs().max() < 5.5 * 0.5 / math.sqrt(num_rows)


LINES: dict[str, Callable[[int], Tensor]] = {
    "tokens": lambda count: uniform(key_rows(1), torch.arange(count)),
    "positions": lambda count: uniform(key_rows(count, position=torch.arange(count)), torch.tensor([5])),
    "seeds": lambda count: uniform(key_rows(count, seed=torch.arange(count)), torch.tensor([5])),
    "high_seed_words": lambda count: uniform(key_rows(count, seed=torch.arange(count) << 32), torch.tensor([5])),
    "sample_indices": lambda count: uniform(key_rows(count, sample_index=torch.arange(count)), torch.tensor([5])),
}


@pytest.mark.parametrize("axis", LINES)
def test_numbers_are_uniform_along_each_input(axis: str) -> None:
    numbers = LINES[axis](100_000)
    cells = histogram((numbers * 256).long(), 256)
    assert p_value(cells, torch.ones(256)) > REJECTION_LEVEL


@pytest.mark.parametrize("axis", LINES)
@pytest.mark.parametrize("distance", [1, 2, 64])
def test_neighbours_are_independent(axis: str, distance: int) -> None:
    numbers = LINES[axis](100_000).flatten()
    left, right = numbers[:-distance], numbers[distance:]
    cells = histogram((left * 16).long() * 16 + (right * 16).long(), 256)
    assert p_value(cells, torch.ones(256)) > REJECTION_LEVEL
    correlation = torch.corrcoef(torch.stack([left, right]))[0, 1]
    assert abs(correlation.item()) < 4.5 / math.sqrt(len(left))


@pytest.mark.parametrize("stream", [NoiseStream.DRAFT, NoiseStream.ACCEPT, NoiseStream.RESIDUAL])
def test_streams_are_independent(stream: NoiseStream) -> None:
    token_ids = torch.arange(1000)
    target = uniform(key_rows(100, position=torch.arange(100)), token_ids)
    other = uniform(key_rows(100, position=torch.arange(100), stream=stream), token_ids)
    cells = histogram((target * 16).long() * 16 + (other * 16).long(), 256)
    assert p_value(cells, torch.ones(256)) > REJECTION_LEVEL


COUNTER = torch.arange(200_000)
KEYS = {
    "seeds": key_rows(200_000, seed=COUNTER),
    "positions": key_rows(200_000, position=COUNTER),
    "sample_indices": key_rows(200_000, sample_index=COUNTER),
}


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS.keys())
def test_gumbel_max_draws_in_proportion(keys: Tensor) -> None:
    probs = torch.tensor([0.4, 0.3, 0.2, 0.09, 0.009, 0.001])
    drawn = (probs.log() + gumbel(keys, torch.arange(6))).argmax(dim=1)
    assert p_value(histogram(drawn, 6), probs) > REJECTION_LEVEL
    assert p_value(histogram(drawn, 6), torch.tensor([0.4, 0.3, 0.19, 0.1, 0.009, 0.001])) < REJECTION_LEVEL


def test_draws_at_neighbouring_positions_are_independent() -> None:
    probs = torch.tensor([0.5, 0.3, 0.2])
    drawn = (probs.log() + gumbel(KEYS["positions"], torch.arange(3))).argmax(dim=1)
    cells = histogram(drawn[:-1] * 3 + drawn[1:], 9)
    assert p_value(cells, torch.outer(probs, probs)) > REJECTION_LEVEL


def test_a_number_depends_on_its_token_and_not_on_its_place() -> None:
    keys = key_rows(3, position=torch.tensor([1, 2, 3]))
    everywhere = gumbel(keys, torch.arange(50))
    chosen = torch.tensor([[49, 0], [3, 3], [37, 12]])
    assert torch.equal(gumbel(keys, chosen), everywhere.gather(1, chosen))
    assert torch.equal(gumbel(keys[1:2], torch.arange(37)), everywhere[1:2, :37])
