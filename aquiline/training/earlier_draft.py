"""Training that goes on from a draft that is there already: one of an earlier run, or anyone's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from aquiline.errors import InvalidParameterError
from aquiline.models.loading import load_draft
from aquiline.models.model_config import EagleConfig, LlamaConfig
from aquiline.models.tensor_shapes import HEAD, ID_MAP

# Beside the mean variance of a column.
RIDGE = 0.1
SAME_DRAFT = (
    "kind",
    "aux_layer_ids",
    "norm_before_residual",
    "fc_norm",
    "norm_before_fc",
    "norm_output",
    "fc_bias",
    "has_own_embedding",
    "has_own_head",
)
SAME_LAYERS = (
    "num_layers",
    "hidden_size",
    "intermediate_size",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "rms_norm_eps",
    "rope",
    "attention_bias",
    "attention_output_bias",
    "mlp_bias",
)


def take_over(
    weights: dict[str, Tensor], folder: Path, config: EagleConfig, target: LlamaConfig, target_ids: Sequence[int]
) -> None:
    """Put the weights of a draft in place of `weights`.

    Its vocabulary may be another one. A token that it does not know gets the row of the head that training would have
    made of the target's, judged by the tokens that both know: training turns and shrinks rows, and those left as they
    are outshine all that were trained.

    Args:
        weights: of a new draft, by the names of `expected_draft_tensors(config)` but the id map; float32.
        target_ids: the target's id of every draft id of the new draft.

    Raises:
        InvalidParameterError: the draft has other shapes or options than `config`.
        UserError: there is no draft in the folder, or it does not fit the target.
    """
    draft = load_draft(folder, target, torch.float32)
    _compare(folder, draft.config, config)
    for name, tensor in draft.tensors.items():
        if name not in (HEAD, ID_MAP):
            weights[name] = tensor.clone()
    if HEAD not in weights:
        return
    old_row = torch.full((target.vocab_size,), -1, dtype=torch.long)
    old_ids = draft.tensors[ID_MAP]
    old_row[old_ids] = torch.arange(len(old_ids))
    rows = old_row[torch.tensor(target_ids, dtype=torch.long)]  # [draft_vocab]
    known = rows >= 0
    if not known.any():
        return
    trained = draft.tensors[HEAD][rows[known]]
    weights[HEAD][~known] = _extended(weights[HEAD][known], trained, weights[HEAD][~known])
    weights[HEAD][known] = trained


def _extended(before: Tensor, after: Tensor, others: Tensor) -> Tensor:
    """Other rows under the affine map from `before` to `after` (ridge regression); all are [rows, hidden]."""
    before_mean, after_mean = before.mean(dim=0), after.mean(dim=0)
    centred = before - before_mean
    covariance = centred.t() @ centred
    ridge = RIDGE * covariance.diagonal().mean() + torch.finfo(torch.float32).tiny
    penalised = covariance + ridge * torch.eye(len(covariance))
    slope: Tensor = torch.linalg.solve(penalised, centred.t() @ (after - after_mean))
    return (others - before_mean) @ slope + after_mean


def _compare(folder: Path, found: EagleConfig, wanted: EagleConfig) -> None:
    pairs = [(name, getattr(found, name), getattr(wanted, name)) for name in SAME_DRAFT]
    pairs += [(name, getattr(found.layers, name), getattr(wanted.layers, name)) for name in SAME_LAYERS]
    for name, theirs, ours in pairs:
        if theirs != ours:
            raise InvalidParameterError(
                f"start is {str(folder)!r}, whose {name} is {theirs}, and this run's is {ours}; set what is different"
                " as it is there, or start with copy or random"
            )
