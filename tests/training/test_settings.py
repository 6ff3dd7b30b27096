"""Settings of a training run: what is refused, and with which words."""

from __future__ import annotations

from typing import Any

import pytest

from aquiline.errors import InvalidParameterError
from aquiline.training.settings import DraftSettings, StageSettings, TrainingSettings

WRONG_DRAFTS: list[tuple[dict[str, Any], str]] = [
    ({"kind": "medusa"}, "kind is 'medusa'; it must be eagle3 or eagle1"),
    ({"num_layers": 0}, "num_layers is 0; it must be an integer, from 1 to 4"),
    ({"num_layers": 5}, "num_layers is 5; it must be an integer, from 1 to 4"),
    ({"num_layers": True}, "num_layers is True"),
    ({"draft_vocab_size": 0}, "draft_vocab_size is 0; it must be an integer, at least 1"),
    ({"intermediate_size": 1.5}, "intermediate_size is 1.5"),
    ({"aux_layer_ids": (3, 1)}, "must be a tuple of ascending layer numbers"),
    ({"aux_layer_ids": [1, 2]}, "must be a tuple of ascending layer numbers"),
    ({"aux_layer_ids": ()}, "must be a tuple of ascending layer numbers"),
    ({"aux_layer_ids": (-1, 2)}, "must be a tuple of ascending layer numbers"),
    ({"aux_layer_ids": (1, "2")}, "must be a tuple of ascending layer numbers"),
    ({"kind": "eagle1", "aux_layer_ids": (1,)}, "aux_layer_ids is an option of eagle3 heads"),
    ({"kind": "eagle1", "fc_norm": True}, "fc_norm is an option of eagle3 heads"),
    ({"norm_output": 1}, "norm_output is 1; it must be true or false"),
    ({"start": ""}, "start is ''; it must be copy, random or the folder of a draft"),
]
WRONG_STAGES: list[tuple[dict[str, Any], str]] = [
    ({"ttt_steps": 0}, "ttt_steps is 0; it must be an integer, from 1 to 16"),
    ({"learning_rate": 0.0}, "learning_rate is 0.0; it must be a number above 0 and at most 1"),
    ({"learning_rate": float("nan")}, "learning_rate is nan"),
    ({"epochs": -1}, "epochs is -1; it must be a number above 0"),
    ({"loss": "mse"}, "loss is 'mse'; it must be kl or ce or lk or lk_hybrid or eagle1"),
]
WRONG_RUNS: list[tuple[dict[str, Any], str]] = [
    ({"draft": None}, "draft is None; it must be a DraftSettings"),
    ({"stages": ()}, "it must be a tuple of StageSettings, not empty"),
    ({"stages": [StageSettings()]}, "it must be a tuple of StageSettings, not empty"),
    ({"stages": (StageSettings(loss="eagle1"),)}, "for eagle3 drafts, is 'eagle1'; it must be kl or ce or lk"),
    ({"step_decay": 1.5}, "step_decay is 1.5; it must be a number at least 0 and at most 1"),
    ({"beta2": 1.0}, "beta2 is 1, which never moves"),
    ({"ema_decay": 1.0}, "ema_decay is 1, which never moves"),
    ({"tokens_per_step": 0}, "tokens_per_step is 0"),
    ({"max_length": 3}, "max_length is 3; it must be an integer, at least 4"),
    ({"rows_per_pack": 0}, "rows_per_pack is 0"),
    ({"checkpoint_every": 0}, "checkpoint_every is 0"),
    ({"keep_checkpoints": 0}, "keep_checkpoints is 0"),
    ({"seed": -1}, "seed is -1"),
    ({"dtype": "float16"}, "dtype is 'float16'; it must be float32 or bfloat16"),
    ({"weight_decay": -0.1}, "weight_decay is -0.1"),
    ({"max_gradient_norm": 0}, "max_gradient_norm is 0; it must be a number above 0"),
    ({"label_cache_gb": float("inf")}, "label_cache_gb is inf"),
    ({"label_folder": ""}, "label_folder is ''; it must be the name of a folder, or None"),
    ({"label_folder": "labels", "label_cache_gb": 0}, "label_folder is set and label_cache_gb is 0"),
    ({"freeze_head": "no"}, "freeze_head is 'no'; it must be true or false"),
]


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        *((DraftSettings, *case) for case in WRONG_DRAFTS),
        *((StageSettings, *case) for case in WRONG_STAGES),
        *((TrainingSettings, *case) for case in WRONG_RUNS),
    ],
)
def test_wrong_settings_are_refused_with_what_is_allowed(kind: type[Any], values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        kind(**values)
    assert message in str(caught.value)


def test_the_defaults_train_true_features_first_and_then_self_fed() -> None:
    stages = TrainingSettings().stages
    assert [(stage.ttt_steps, stage.learning_rate, stage.loss) for stage in stages] == [
        (1, 1e-3, "kl"),
        (4, 6e-4, "kl"),
    ]
