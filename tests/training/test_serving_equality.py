"""P10: what the trainer gives a draft, and gets from it, is what the engine gives and gets."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from aquiline.engine.draft_inputs import DraftInputBuilder
from aquiline.engine.inputs import InputBuilder, StepLayout
from aquiline.engine.kv_pool import KVPool
from aquiline.engine.schedule import ScheduledRequest
from aquiline.engine.slots import SlotLayout
from aquiline.kernels import AttentionGroup, AttentionInputs
from aquiline.models.eagle import EagleModel
from aquiline.models.llama import ForwardRows
from aquiline.models.tensor_shapes import ID_MAP
from aquiline.request import Request, SamplingParams
from aquiline.training.labels import TargetLabeller
from aquiline.training.network import DraftNetwork, trained_names
from aquiline.training.packing import Pack, make_pack
from aquiline.training.settings import DraftSettings
from aquiline.training.start import draft_config, initial_weights
from aquiline.training.target import FrozenTarget
from aquiline.training.unrolling import unroll
from tests.tiny import tiny_engine
from tests.training.toy_run import AUX_LAYER_IDS, DRAFT_IDS, toy_examples, toy_target

EAGLE3 = DraftSettings(draft_vocab_size=len(DRAFT_IDS), aux_layer_ids=AUX_LAYER_IDS)
DRAFTS = {
    "eagle3": EAGLE3,
    "three layers": replace(EAGLE3, num_layers=3),
    "EAGLE-3.1": replace(EAGLE3, fc_norm=True, norm_output=True),
    "norm before residual": replace(EAGLE3, norm_before_residual=True, start="random"),
    "eagle1": DraftSettings("eagle1", draft_vocab_size=None),
    "eagle1, two layers": DraftSettings("eagle1", 2, draft_vocab_size=None),
}
NUM_STEPS = 4
each_draft = pytest.mark.parametrize("draft", DRAFTS.values(), ids=DRAFTS)


class Pair:
    """One draft twice: the trainer's network and the engine's model."""

    def __init__(self, draft: DraftSettings) -> None:
        self.target: FrozenTarget = toy_target(draft.kind)
        self.config = draft_config(draft, self.target.config)
        self.ids = DRAFT_IDS if draft.kind == "eagle3" else tuple(range(self.target.config.vocab_size))
        start = draft.start
        weights = initial_weights(self.config, self.target.config, self.target.tensors, self.ids, start, seed=5)
        frozen = self.target.frozen_weights(torch.float32, torch.device("cpu"))
        self.network = DraftNetwork(self.config, weights, frozen, trained_names(self.config, freeze_head=False))
        self.model = EagleModel(self.config, weights | {ID_MAP: torch.tensor(self.ids)}, frozen.embedding, frozen.head)


class EngineRows:
    """The draft rows of one conversation as the engine runs them: slots, positions, keys and all."""

    def __init__(self, pair: Pair, token_ids: tuple[int, ...]) -> None:
        self.pair = pair
        num_computed = len(token_ids) - 1
        layout = SlotLayout(num_blocks=1, block_size=len(token_ids), max_num_seqs=1, scratch_per_row=NUM_STEPS)
        engine = tiny_engine(target=pair.target.model, draft=pair.model)
        self.pool = KVPool(layout, pair.target.config, pair.config.layers, replace(engine.pool.memory, poison=True))
        self.builder = InputBuilder(layout, pair.target.model.device)
        request = Request("one", token_ids, SamplingParams(), seed=0, block_ids=[0])
        scheduled = ScheduledRequest(request, num_computed, draws_token=False, max_draft_depth=0)
        rows = self.builder.target_rows(StepLayout((), (), (scheduled,), 1), None)
        self.features = pair.target.model.forward(rows, self.pool.target_layers).features
        request.num_computed_tokens = num_computed
        self.draft_inputs = DraftInputBuilder(layout, self.builder)
        self.extend = self.draft_inputs.extend_rows([request], [num_computed]).forward
        combined = pair.model.combine_features(self.features)
        self.states = pair.model.forward(self.extend, combined, self.pool.draft_layers)

    def self_fed(self, row: int, token_ids: tuple[int, ...], num_steps: int) -> list[Tensor]:
        """Logits of a chain of self-fed rows below `row`, one after another as when serving."""
        root, hidden = row + 1, self.states.hidden_states[row : row + 1]
        key_slots = self.builder.key_slots([[0]], root + 1)
        scratch = self.builder.scratch_slots([0], NUM_STEPS)
        logits = []
        for depth in range(1, num_steps + 1):
            slots = scratch[:, :depth]
            group = AttentionGroup(
                0, key_slots, torch.tensor([[root + 1]]), slots.unsqueeze(1), torch.tensor([[depth]])
            )
            rows = ForwardRows(
                torch.tensor([token_ids[root + depth]]),
                torch.tensor([root + depth - 1]),
                slots[0, -1:],
                AttentionInputs((group,), 1),
            )
            states = self.pair.model.forward(rows, hidden, self.pool.draft_layers)
            hidden = states.hidden_states
            logits.append(self.pair.model.logits(states.head_inputs)[0])
        return logits


def packed(num_examples: int = 3) -> Pack:
    return make_pack(toy_examples(), range(num_examples), max_length=100)


def assert_same_logits(found: Tensor, expected: Tensor) -> None:
    """Up to rounding in float32, measured by the largest logit: features of EAGLE-1 grow with every self-fed step."""
    torch.testing.assert_close(found, expected, atol=5e-5 * float(expected.abs().max()), rtol=0)


@each_draft
def test_inputs_and_outputs_of_every_row_are_the_engines(draft: DraftSettings) -> None:
    pair, pack = Pair(draft), packed()
    labels = TargetLabeller(pair.target.model, torch.float32).label(pack)
    step = next(unroll(pair.network, pair.network.used_weights(), pack, labels.features, 1))
    head = pair.network.head(pair.network.used_weights())
    trained: list[int] = step.rows.tolist()
    for index, start, length in zip(pack.example_ids, pack.starts, pack.lengths, strict=True):
        token_ids = toy_examples()[index].token_ids[: length + 1]
        engine = EngineRows(pair, token_ids)
        own = slice(start, start + length)
        assert torch.equal(labels.features[own], engine.features)
        assert pack.next_token_ids[own].tolist() == engine.extend.token_ids.tolist()
        assert pack.positions[own].tolist() == engine.extend.positions.tolist()
        rows = [row for row in trained if start <= row < start + length]
        mine = step.states.head_inputs[[trained.index(row) for row in rows]] @ head.T
        right = pair.model.logits(engine.states.head_inputs[[row - start for row in rows]])
        assert_same_logits(mine, right)


@each_draft
def test_step_i_is_the_engines_draft_fed_with_itself_row_by_row(draft: DraftSettings) -> None:
    pair, pack = Pair(draft), packed()
    labels = TargetLabeller(pair.target.model, torch.float32).label(pack)
    weights = pair.network.used_weights()
    steps = list(unroll(pair.network, weights, pack, labels.features, NUM_STEPS))
    assert len(steps) == NUM_STEPS
    num_compared = 0
    for index, start, length in zip(pack.example_ids, pack.starts, pack.lengths, strict=True):
        token_ids = toy_examples()[index].token_ids[: length + 1]
        engine = EngineRows(pair, token_ids)
        for row in [row for row in steps[-1].rows.tolist() if start <= row < start + length][::5]:
            chain = engine.self_fed(row - start, token_ids, NUM_STEPS - 1)
            for step, expected in zip(steps[1:], chain, strict=True):
                place = step.rows.tolist().index(row)
                mine = pair.network.head(weights) @ step.states.head_inputs[place]
                assert_same_logits(mine, expected)
                num_compared += 1
    assert num_compared >= 20


def test_labels_are_what_the_target_says_at_the_next_row() -> None:
    target, pack = toy_target(), packed()
    labels = TargetLabeller(target.model, torch.float32).label(pack)
    states = EngineRows(Pair(EAGLE3), toy_examples()[0].token_ids[: pack.lengths[0] + 1])
    logits = target.model.logits(
        target.model.forward(
            states.builder.target_rows(_whole(pack, states), None), states.pool.target_layers
        ).hidden_states
    )
    own = pack.label_rows < pack.lengths[0]
    rows = pack.label_rows[own]
    assert torch.equal(labels.token_ids[own], logits[rows].argmax(dim=-1))
    torch.testing.assert_close(labels.log_normalisers[own], logits[rows].logsumexp(dim=-1))


def _whole(pack: Pack, engine: EngineRows) -> StepLayout:
    token_ids = toy_examples()[0].token_ids[: pack.lengths[0] + 1]
    request = Request("one", token_ids, SamplingParams(), seed=0, block_ids=[0])
    return StepLayout((), (), (ScheduledRequest(request, pack.lengths[0], False, 0),), 1)
