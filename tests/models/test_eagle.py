"""Draft heads against a plain implementation: one forward over true features, and chains fed by their own output."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from aquiline.kernels import AttentionGroup, AttentionInputs
from aquiline.models.eagle import DraftStates, EagleModel
from aquiline.models.llama import ForwardRows
from aquiline.models.loading import expected_draft_tensors
from aquiline.models.model_config import EagleConfig, RopeConfig
from tests.models.eagle_oracle import EagleOracle, OracleOutput
from tests.models.forward_rows import new_memory, scrambled_slots
from tests.tiny import random_tensors, tiny_eagle_config, tiny_llama_config

TOLERANCE = 1e-5
TARGET = tiny_llama_config(rope=RopeConfig(theta=50.0))
EAGLE1 = tiny_eagle_config(TARGET, "eagle1")
EAGLE3 = tiny_eagle_config(TARGET)


def with_layers(config: EagleConfig, **changes: object) -> EagleConfig:
    return replace(config, layers=replace(config.layers, **changes))  # type: ignore[arg-type]


HEADS: dict[str, EagleConfig] = {
    "eagle1": EAGLE1,
    "eagle1_fc_bias": replace(EAGLE1, fc_bias=True),
    "eagle1_two_layers": with_layers(EAGLE1, num_layers=2),
    "eagle1_three_layers_fc_bias": replace(with_layers(EAGLE1, num_layers=3), fc_bias=True),
    "eagle1_own_embedding": replace(EAGLE1, has_own_embedding=True),
    "eagle3": EAGLE3,
    "eagle3_norm_before_residual": replace(EAGLE3, norm_before_residual=True),
    "eagle3_fc_norm": replace(EAGLE3, fc_norm=True),
    "eagle3_norm_before_fc": replace(EAGLE3, norm_before_fc=True),
    "eagle3_norm_output": replace(EAGLE3, norm_output=True),
    "eagle3_all_norms": replace(EAGLE3, norm_before_residual=True, fc_norm=True, norm_output=True),
    "eagle3_fc_bias": replace(EAGLE3, fc_bias=True),
    "eagle3_two_layers": with_layers(EAGLE3, num_layers=2),
    "eagle3_three_layers_all_norms": replace(
        with_layers(EAGLE3, num_layers=3), norm_before_residual=True, fc_norm=True, norm_output=True
    ),
    "eagle3_whole_vocabulary": replace(EAGLE3, draft_vocab_size=TARGET.vocab_size),
    "eagle3_head_of_the_target": replace(EAGLE3, draft_vocab_size=TARGET.vocab_size, has_own_head=False),
    "eagle3_own_embedding": replace(EAGLE3, has_own_embedding=True),
    "eagle3_wider_target": replace(EAGLE3, target_hidden_size=44, has_own_embedding=True),
    "eagle3_biases": with_layers(EAGLE3, attention_bias=True, attention_output_bias=True, mlp_bias=True),
    "eagle3_one_kv_head_each": with_layers(EAGLE3, num_kv_heads=4),
}
with_heads = pytest.mark.parametrize("config", HEADS.values(), ids=HEADS)


@dataclass(frozen=True)
class Heads:
    """The same weights in both implementations."""

    model: EagleModel
    oracle: EagleOracle


def random_heads(config: EagleConfig, oracle_config: EagleConfig | None = None) -> Heads:
    """Both implementations of a random head; the oracle may be told another configuration."""
    tensors = random_tensors(expected_draft_tensors(config), seed=3, scale=0.15)
    tensors["draft_to_target_ids"] = torch.arange(config.draft_vocab_size)
    shared = random_tensors({"embedding": (61, 32), "head": (61, 32)}, seed=4, scale=0.5)
    model = EagleModel(config, tensors, shared["embedding"], shared["head"])
    return Heads(model, EagleOracle(oracle_config or config, tensors, shared["embedding"], shared["head"]))


def random_features(config: EagleConfig, num_pairs: int) -> Tensor:
    return torch.randn(num_pairs, config.feature_size, generator=torch.Generator().manual_seed(5))


def random_tokens(*shape: int) -> Tensor:
    return torch.randint(0, TARGET.vocab_size, shape, generator=torch.Generator().manual_seed(6))


class Sequence:
    """Draft rows of one sequence, kept the way the engine keeps them.

    Pair i (hidden of position i, token of position i + 1) goes to slot i + 1 and turns by i; slot 0 stays unwritten.
    """

    def __init__(self, model: EagleModel, num_pairs: int) -> None:
        self.model = model
        self.num_pairs = num_pairs
        self.slots = scrambled_slots(num_pairs + 1)
        self.scratch = len(self.slots) + torch.arange(64)
        self.memory = new_memory(model.config.layers, len(self.slots) + 64)

    def extend(self, features: Tensor, token_ids: Tensor, first: int = 0) -> DraftStates:
        """Pairs first, first + 1, ... from true features."""
        pairs = torch.arange(first, first + len(token_ids))
        group = AttentionGroup(0, self.slots.unsqueeze(0), (pairs + 2).unsqueeze(0))
        rows = ForwardRows(token_ids, pairs, self.slots[pairs + 1], AttentionInputs((group,), first_position=1))
        return self.model.forward(rows, self.model.combine_features(features), self.memory)

    def guess(self, hidden_states: Tensor, token_ids: Tensor, depth: int) -> DraftStates:
        """One level of guesses, one per branch; branch b at depth d lies in scratch place d * num_branches + b."""
        num_branches = len(token_ids)
        places = torch.arange(1, depth + 1) * num_branches + torch.arange(num_branches).unsqueeze(1)
        path_slots = self.scratch[places]  # [num_branches, depth]
        visible = torch.full((1, num_branches), self.num_pairs + 1)
        lens = torch.full((1, num_branches), depth)
        group = AttentionGroup(0, self.slots.unsqueeze(0), visible, path_slots.unsqueeze(0), lens)
        positions = torch.full((num_branches,), self.num_pairs + depth - 1)
        rows = ForwardRows(token_ids, positions, path_slots[:, -1], AttentionInputs((group,), first_position=1))
        return self.model.forward(rows, hidden_states, self.memory)


def largest_difference(model: EagleModel, states: DraftStates, expected: OracleOutput) -> float:
    """Over logits and the hidden states that go to the next step, as a share of the largest of each, at least 1."""
    logits = model.logits(states.head_inputs)
    assert logits.dtype == torch.float32 and logits.shape == expected.logits.shape
    pairs = ((logits, expected.logits), (states.hidden_states, expected.next_hidden))
    return max(float((ours - exact).abs().max() / exact.abs().max().clamp_min(1.0)) for ours, exact in pairs)


@with_heads
@pytest.mark.parametrize("num_pairs", [1, 2, 33])
def test_rows_from_true_features_equal_the_oracle(config: EagleConfig, num_pairs: int) -> None:
    heads = random_heads(config)
    features, token_ids = random_features(config, num_pairs), random_tokens(num_pairs)
    states = Sequence(heads.model, num_pairs).extend(features, token_ids)
    expected = heads.oracle.run(heads.oracle.fuse(features), token_ids.tolist())
    assert largest_difference(heads.model, states, expected) < TOLERANCE
    assert expected.logits.shape[1] == config.draft_vocab_size and expected.logits.std() > 0.1


@with_heads
def test_chains_fed_by_their_own_output_equal_the_oracle(config: EagleConfig) -> None:
    """Two branches of other tokens grow side by side behind 31 pairs; a chunk border lies inside."""
    num_pairs, num_branches, depth = 31, 2, 5
    heads = random_heads(config)
    features, token_ids = random_features(config, num_pairs), random_tokens(num_pairs)
    guesses = random_tokens(depth, num_branches)
    sequence = Sequence(heads.model, num_pairs)
    last = sequence.extend(features, token_ids).hidden_states[-1:]
    states = DraftStates(last, last.expand(num_branches, -1))
    fused = heads.oracle.fuse(features)
    start = heads.oracle.run(fused, token_ids.tolist()).next_hidden[-1:]
    hidden = [torch.cat([fused, start]) for _ in range(num_branches)]
    for level in range(depth):
        states = sequence.guess(states.hidden_states, guesses[level], level + 1)
        for branch in range(num_branches):
            tokens = token_ids.tolist() + guesses[: level + 1, branch].tolist()
            output = heads.oracle.run(hidden[branch], tokens)
            expected = OracleOutput(output.logits[-1:], output.next_hidden[-1:])
            own = DraftStates(states.head_inputs[branch : branch + 1], states.hidden_states[branch : branch + 1])
            assert largest_difference(heads.model, own, expected) < TOLERANCE
            hidden[branch] = torch.cat([hidden[branch], expected.next_hidden])


@with_heads
def test_rows_in_chunks_have_the_same_bits(config: EagleConfig) -> None:
    heads = random_heads(config)
    features, token_ids = random_features(config, 40), random_tokens(40)
    whole = Sequence(heads.model, 40).extend(features, token_ids)
    sequence, parts = Sequence(heads.model, 40), []
    for first, end in ((0, 1), (1, 9), (9, 33), (33, 40)):
        parts.append(sequence.extend(features[first:end], token_ids[first:end], first))
    assert torch.equal(whole.head_inputs, torch.cat([part.head_inputs for part in parts]))
    assert torch.equal(whole.hidden_states, torch.cat([part.hidden_states for part in parts]))


MISREAD: dict[str, tuple[EagleConfig, dict[str, object]]] = {
    "norm_before_residual_ignored": (HEADS["eagle3_norm_before_residual"], {"norm_before_residual": False}),
    "norm_before_residual_assumed": (EAGLE3, {"norm_before_residual": True}),
    "norm_output_ignored": (HEADS["eagle3_norm_output"], {"norm_output": False}),
    "norm_output_assumed": (EAGLE3, {"norm_output": True}),
    "fc_norm_ignored": (HEADS["eagle3_fc_norm"], {"fc_norm": False}),
    "norm_before_fc_ignored": (HEADS["eagle3_norm_before_fc"], {"norm_before_fc": False}),
    "second_layer_ignored": (HEADS["eagle3_two_layers"], {"layers": EAGLE3.layers}),
    "eagle3_rope_ignored": (EAGLE3, {"layers": replace(EAGLE3.layers, rope=RopeConfig(theta=500.0))}),
    "eagle1_rope_ignored": (EAGLE1, {"layers": replace(EAGLE1.layers, rope=RopeConfig(theta=500.0))}),
}


@pytest.mark.parametrize("case", MISREAD)
def test_a_setting_that_is_misread_is_noticed(case: str) -> None:
    config, misread = MISREAD[case]
    heads = random_heads(config, replace(config, **misread))  # type: ignore[arg-type]
    features, token_ids = random_features(config, 12), random_tokens(12)
    states = Sequence(heads.model, 12).extend(features, token_ids)
    expected = heads.oracle.run(heads.oracle.fuse(features), token_ids.tolist())
    assert largest_difference(heads.model, states, expected) > 100 * TOLERANCE


@pytest.mark.parametrize("config", [EAGLE1, EAGLE3], ids=["eagle1", "eagle3"])
def test_a_shift_by_one_is_noticed(config: EagleConfig) -> None:
    heads = random_heads(config)
    features, token_ids = random_features(config, 12), random_tokens(12)
    expected = heads.oracle.run(heads.oracle.fuse(features), token_ids.tolist())
    for wrong_features, wrong_tokens in ((features.roll(1, 0), token_ids), (features, token_ids.roll(1, 0))):
        states = Sequence(heads.model, 12).extend(wrong_features, wrong_tokens)
        assert largest_difference(heads.model, states, expected) > 100 * TOLERANCE


def test_captured_layers_are_fused_in_order() -> None:
    heads = random_heads(EAGLE3)
    features = random_features(EAGLE3, 3)
    low, middle, high = features.chunk(3, dim=1)
    fused = heads.model.combine_features(features)
    weight = heads.oracle.weights["fc.weight"]
    by_layer = [part.double() @ weight[:, start : start + 32].T for part, start in ((low, 0), (middle, 32), (high, 64))]
    assert (fused - sum(by_layer)).abs().max() < TOLERANCE
    assert (heads.model.combine_features(torch.cat([high, middle, low], dim=1)) - fused).abs().max() > 0.1


def test_feature_of_an_eagle1_head_is_taken_as_it_is() -> None:
    features = random_features(EAGLE1, 3)
    assert torch.equal(random_heads(EAGLE1).model.combine_features(features), features)
