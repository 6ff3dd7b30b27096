"""The loss of packs: which rows it reaches, what is counted, and that it does not depend on how rows are packed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from aquiline.training.labels import TargetLabeller, TargetLabels, Teacher
from aquiline.training.network import DraftNetwork, trained_names
from aquiline.training.packing import Pack, make_pack
from aquiline.training.settings import DraftSettings, StageSettings
from aquiline.training.start import draft_config, initial_weights
from aquiline.training.step_loss import LossPlan, StepTally, pack_loss
from aquiline.training.trainer import StepRecord, TrainerCallbacks
from aquiline.training.unrolling import unroll
from tests.training.toy_run import AUX_LAYER_IDS, DRAFT_IDS, toy_examples, toy_settings, toy_target, toy_trainer

EAGLE3 = DraftSettings(draft_vocab_size=len(DRAFT_IDS), aux_layer_ids=AUX_LAYER_IDS)
EXAMPLES = toy_examples()
NUM_STEPS = 3


class Learner:
    """A network with its target, ready to be asked for losses."""

    def __init__(self, draft: DraftSettings = EAGLE3) -> None:
        self.target = toy_target(draft.kind)
        self.config = draft_config(draft, self.target.config)
        self.ids = DRAFT_IDS if draft.kind == "eagle3" else tuple(range(61))
        weights = initial_weights(self.config, self.target.config, self.target.tensors, self.ids, "copy", seed=1)
        frozen = self.target.frozen_weights(torch.float32, torch.device("cpu"))
        self.network = DraftNetwork(self.config, weights, frozen, trained_names(self.config, freeze_head=False))
        self.teacher = Teacher(self.target.head_rows(frozen, self.ids), self.ids, 61)
        self.plan = LossPlan.of("kl" if draft.kind == "eagle3" else "eagle1", NUM_STEPS, 0.8)

    def labels(self, pack: Pack) -> TargetLabels:
        return TargetLabeller(self.target.model, torch.float32).label(pack)

    def loss(self, pack: Pack, labels: TargetLabels | None = None) -> tuple[Tensor, StepTally]:
        found = pack_loss(
            self.network, self.network.used_weights(), pack, labels or self.labels(pack), self.teacher, self.plan
        )
        return found.loss, found.tally

    def gradients(self, loss: Tensor) -> dict[str, Tensor]:
        names = list(self.network.parameters)
        return dict(zip(names, torch.autograd.grad(loss, list(self.network.parameters.values())), strict=True))


@pytest.mark.parametrize("draft", [EAGLE3, DraftSettings("eagle1", 1, None)], ids=["eagle3", "eagle1"])
def test_the_first_drafted_token_is_trained_and_nothing_behind_the_end_is(draft: DraftSettings) -> None:
    learner = Learner(draft)
    pack = make_pack(EXAMPLES, [1], 100)
    labels = learner.labels(pack)
    features = labels.features.clone().requires_grad_()
    states = next(unroll(learner.network, learner.network.used_weights(), pack, features, 1)).states
    first, last = int(pack.trained_rows(0)[0]), int(pack.trained_rows(0)[-1])
    answer_start = EXAMPLES[1].is_answer.index(True)
    assert first == answer_start - 1
    (reached,) = torch.autograd.grad(states.head_inputs[0].sum(), features, retain_graph=True)
    assert reached[first].any()
    (reached,) = torch.autograd.grad(states.head_inputs.sum(), features)
    assert reached[: last + 1].any(dim=1).all()
    assert not reached[last + 1 :].any()


@pytest.mark.parametrize("draft", [EAGLE3, replace(EAGLE3, num_layers=2)], ids=["one layer", "two layers"])
def test_packing_changes_neither_losses_nor_gradients(draft: DraftSettings) -> None:
    learner = Learner(draft)
    together, tally = learner.loss(make_pack(EXAMPLES, range(5), 100))
    sums, total = StepTally.empty(NUM_STEPS), torch.zeros(())
    for index in range(5):
        loss, own = learner.loss(make_pack(EXAMPLES, [index], 100))
        sums.add(own)
        total = total + loss
    torch.testing.assert_close(together, total)
    torch.testing.assert_close(tally.sums, sums.sums, rtol=1e-5, atol=1e-4)
    expected = learner.gradients(total)
    for name, gradient in learner.gradients(together).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-3, atol=1e-4)


def test_the_tally_counts_rows_that_were_right_at_all_steps() -> None:
    learner = Learner()
    pack = make_pack(EXAMPLES, range(5), 100)
    labels = learner.labels(pack)
    _, tally = learner.loss(pack, labels)
    says = dict(zip(pack.label_rows.tolist(), labels.token_ids.tolist(), strict=True))
    right: list[dict[int, bool]] = []
    weights = learner.network.used_weights()
    for step in unroll(learner.network, weights, pack, labels.features, NUM_STEPS):
        best = (step.states.head_inputs @ learner.network.head(weights).T).argmax(dim=-1).tolist()
        rows = zip(step.rows.tolist(), step.label_rows.tolist(), best, strict=True)
        right.append({row: DRAFT_IDS[token] == says[label] for row, label, token in rows})
    for index, hits in enumerate(right):
        reached = [row for row in hits if all(right[earlier][row] for earlier in range(index))]
        counts = [len(hits), sum(hits.values()), len(reached), sum(hits[row] for row in reached)]
        assert tally.sums[index, 1:].tolist() == counts
    assert tally.accuracies[0] == sum(right[0].values()) / len(right[0])
    assert tally.conditional_accuracies[0] == tally.accuracies[0]


def test_figures_of_steps_that_no_row_reaches_are_zero() -> None:
    assert StepTally.empty(2).losses == (0.0, 0.0)
    assert StepTally.empty(2).conditional_accuracies == (0.0, 0.0)


@pytest.mark.parametrize("num_layers", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["eagle3", "eagle1"])
def test_losses_of_any_number_of_layers_are_finite_and_fall(kind: str, num_layers: int, tmp_path: Path) -> None:
    settings = toy_settings(kind)
    loss = settings.stages[0].loss
    settings = replace(
        settings,
        draft=replace(settings.draft, num_layers=num_layers),
        stages=(StageSettings(3, 3e-3, 8.0, loss),),
        tokens_per_step=60,
        checkpoint_every=10**9,
    )
    records: list[StepRecord] = []
    toy_trainer(tmp_path, settings).run(TrainerCallbacks(on_step=records.append))
    assert len(records) >= 10
    assert sum(record.loss for record in records[-3:]) < 0.97 * 3 * records[0].loss


def test_a_frozen_head_stays_and_all_else_moves(tmp_path: Path) -> None:
    trainer = toy_trainer(tmp_path, toy_settings(freeze_head=True))
    head = trainer.network.fixed["lm_head.weight"].clone()
    before = {name: weight.detach().clone() for name, weight in trainer.network.parameters.items()}
    trainer.run()
    assert torch.equal(trainer.network.fixed["lm_head.weight"], head)
    assert "lm_head.weight" not in before
    assert all(not torch.equal(before[name], weight) for name, weight in trainer.network.parameters.items())
