"""The sampler on native kernels: exact laws, the tokens of PyTorch, and the same ones with any tree."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aquiline.config import AcceptanceRule
from aquiline.engine.sample import Sampler
from aquiline.kernels import cpu
from aquiline.kernels.cpu import Threads
from aquiline.kernels.reference.sampling import LogitRules
from aquiline.request import SamplingParams
from tests.engine.test_sample import (
    DRAFT,
    FILTERS,
    NUM_SAMPLES,
    RANDOM,
    TARGET,
    WIDE,
    WIDE_DRAFT,
    WIDE_TARGET,
    generate,
    joint_counts,
    joint_law,
    make_request,
    sampling_params,
    transitions,
)
from tests.engine.toy_decoder import ToyDecoder, first_tokens, many_requests
from tests.kernels.chi_square import REJECTION_LEVEL, p_value

if cpu.is_available():
    from aquiline.kernels.cpu.sampling import NativeSampling

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason=cpu.why_not())


def native_sampler(vocab_size: int, acceptance: AcceptanceRule = "keyed") -> Sampler:
    return Sampler(vocab_size, acceptance, NativeSampling(Threads(2)))


@pytest.mark.parametrize("branching", [(), (2, 2)], ids=["plain", "2x2"])
def test_three_tokens_have_the_targets_joint_law(branching: tuple[int, ...]) -> None:
    inputs = many_requests(NUM_SAMPLES, RANDOM)
    tokens = first_tokens(ToyDecoder(native_sampler(4), TARGET, DRAFT, branching), inputs, first=0, length=3)
    assert p_value(joint_counts(tokens), joint_law(TARGET.exp(), 0, 3)) > REJECTION_LEVEL
    assert p_value(joint_counts(tokens), joint_law(DRAFT.exp(), 0, 3)) < REJECTION_LEVEL


@pytest.mark.parametrize("case", FILTERS)
def test_joint_law_with_sampling_parameters(case: str) -> None:
    inputs = many_requests(NUM_SAMPLES, FILTERS[case])
    tokens = first_tokens(ToyDecoder(native_sampler(4), TARGET, DRAFT, (2, 2)), inputs, first=0, length=2)
    assert p_value(joint_counts(tokens), joint_law(transitions(FILTERS[case]), 0, 2)) > REJECTION_LEVEL
    assert p_value(joint_counts(tokens), joint_law(TARGET.exp(), 0, 2)) < REJECTION_LEVEL


def test_tokens_are_those_of_the_reference_with_every_tree() -> None:
    inputs = many_requests(500, LogitRules(temperatures=torch.full((500,), 0.9)))
    expected = first_tokens(ToyDecoder(Sampler(4), TARGET, DRAFT), inputs, first=2, length=8)
    for branching in ((), (1,), (1, 1, 1), (4, 2), (3, 1, 2)):
        decoder = ToyDecoder(native_sampler(4), TARGET, DRAFT, branching)
        assert torch.equal(first_tokens(decoder, inputs, first=2, length=8), expected)


@settings(deadline=None, max_examples=40)
@given(
    params=st.lists(sampling_params(), min_size=1, max_size=4),
    branching=st.sampled_from([(1,), (1, 1, 1), (2, 2), (3, 1), (2, 2, 1)]),
    seed=st.integers(0, 2**63 - 1),
)
def test_every_parameter_means_the_same_with_any_tree_and_in_any_batch(
    params: list[SamplingParams], branching: tuple[int, ...], seed: int
) -> None:
    together = [make_request(i, p, seed=seed) for i, p in enumerate(params)]
    generate(ToyDecoder(native_sampler(WIDE), WIDE_TARGET, WIDE_DRAFT, branching), together, 10)
    for i, p in enumerate(params):
        alone = make_request(0, p, seed=seed)
        generate(ToyDecoder(native_sampler(WIDE), WIDE_TARGET, WIDE_DRAFT), [alone], 10)
        assert together[i].token_ids == alone.token_ids


@pytest.mark.parametrize("seed", range(4))
def test_greedy_requests_do_not_notice_the_multi_round_rule(seed: int) -> None:
    greedy = SamplingParams(temperature=0.0, frequency_penalty=0.5, logit_bias={4: 1.0})
    together = [make_request(0, greedy, seed=seed), make_request(1, SamplingParams(top_p=0.9), seed=seed)]
    generate(ToyDecoder(native_sampler(WIDE, "multi_round"), WIDE_TARGET, WIDE_DRAFT, (2, 2)), together, 10)
    alone = make_request(0, greedy, seed=seed)
    generate(ToyDecoder(native_sampler(WIDE), WIDE_TARGET, WIDE_DRAFT), [alone], 10)
    assert together[0].token_ids == alone.token_ids


def test_requests_without_a_tree_draw_as_in_a_step_without_trees() -> None:
    """Under the multi-round rule; the trees of the others must not change what a bare root draws."""
    inputs = many_requests(60, LogitRules(temperatures=torch.full((60,), 1.3)))
    sampler = native_sampler(WIDE, "multi_round")
    last, positions = torch.arange(60) % WIDE, torch.full((60,), 2)
    decoder = ToyDecoder(sampler, WIDE_TARGET, WIDE_DRAFT, (2,))
    tree, paths = decoder.grow(inputs, last, positions)
    bare = torch.arange(60) % 2 == 0
    cut = replace(tree, parents=torch.where(bare.unsqueeze(1), -1, tree.parents))
    rows = decoder.logit_rows(inputs, cut, paths, positions)
    step = sampler.accept(inputs, cut, rows)
    plain = ToyDecoder(sampler, WIDE_TARGET, WIDE_DRAFT).step(inputs, last, positions)
    assert torch.equal(step.bonus[bare], plain.bonus[bare])
    assert step.num_accepted[bare].tolist() == [0] * 30
