"""A draft that has learnt one conversation by heart is accepted almost to full depth when it is served."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from aquiline.models.eagle import EagleModel
from aquiline.models.llama import LlamaModel
from aquiline.models.loading import load_draft
from aquiline.request import SamplingParams
from aquiline.training.examples import TrainingExample
from aquiline.training.settings import DraftSettings, StageSettings
from aquiline.training.trainer import StepRecord, Trainer, TrainerCallbacks, TrainingData
from tests.tiny import TinySettings, run_prompts, tiny_engine
from tests.training.toy_run import AUX_LAYER_IDS, toy_settings, toy_target

DEPTH = 4
PROMPT = (3, 17, 9, 44, 21, 8)
GREEDY = SamplingParams(temperature=0.0, max_tokens=1 + 10 * (DEPTH + 1), ignore_eos=True)
DRAFTS = {
    "eagle3": DraftSettings(draft_vocab_size=61, aux_layer_ids=AUX_LAYER_IDS),
    "EAGLE-3.1, two layers": DraftSettings(
        num_layers=2, draft_vocab_size=61, aux_layer_ids=AUX_LAYER_IDS, fc_norm=True, norm_output=True
    ),
}


@pytest.mark.parametrize("draft", DRAFTS.values(), ids=DRAFTS)
def test_served_acceptance_of_a_conversation_learnt_by_heart(draft: DraftSettings, tmp_path: Path) -> None:
    target = toy_target()
    assert isinstance(target.model, LlamaModel)
    (plain,) = run_prompts(tiny_engine(target=target.model), [PROMPT], GREEDY)
    answer = plain.outputs[0].token_ids
    example = TrainingExample((*PROMPT, *answer), (*(False for _ in PROMPT), *(True for _ in answer)))
    stages = (StageSettings(DEPTH, 5e-3, 120.0, "ce"),)
    settings = toy_settings(draft=draft, stages=stages, checkpoint_every=10**9)
    records: list[StepRecord] = []
    trainer = Trainer(settings, target, TrainingData([example], range(61)), tmp_path)
    checkpoint = trainer.run(TrainerCallbacks(on_step=records.append))
    loaded = load_draft(checkpoint / "draft", target.config, torch.float32)
    model = EagleModel(loaded.config, loaded.tensors, target.model.embedding, target.model.head)
    engine = tiny_engine(TinySettings(speculate=f"chain:{DEPTH}"), target.model, model)
    (served,) = run_prompts(engine, [PROMPT], GREEDY)
    assert served.outputs[0].token_ids == answer
    # The first token comes with the prompt, before there is anything to draft from.
    figures = served.outputs[0].speculation
    length = (figures.num_committed_tokens - 1) / (figures.num_verify_steps - 1)
    assert length >= 0.9 * (DEPTH + 1)
    predicted = 1.0
    survival = 1.0
    for accuracy in records[-1].conditional_accuracies:
        survival *= accuracy
        predicted += survival
    assert predicted == pytest.approx(length, rel=0.1)
