"""Training-time test: a draft run on true features, then on its own outputs, as it is when serving.

Which row is trained at which step, and from which label, is worked out with letters in `packing.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from aquiline.models.eagle import DraftStates
from aquiline.training.network import DraftNetwork, UnrolledRows, Weights
from aquiline.training.packing import Pack
from aquiline.training.unrolled_attention import AttentionPlan


@dataclass(frozen=True)
class UnrolledStep:
    """What one step of training-time test leaves behind.

    Attributes:
        rows: rows of the pack that are trained at this step, ascending.
        states: of those rows.
        label_rows: row of the pack at which the target says what each of them should have said.
    """

    rows: Tensor  # [num_trained]
    states: DraftStates
    label_rows: Tensor  # [num_trained]


def unroll(
    network: DraftNetwork, weights: Weights, pack: Pack, features: Tensor, num_steps: int
) -> Iterator[UnrolledStep]:
    """Run a draft over a pack for up to `num_steps` steps; fewer where no answer is long enough.

    The target is not asked again: later steps see the keys of step 0 and their own.

    Worked example, one conversation of tokens t0..t5, rows 0..4, of which a2..a5 are the answer:

        step 0    all rows run, for their keys; rows 1 2 3 are trained      next tokens a2 a3 a4    positions 1 2 3
        step 1    rows 1 2, with the outputs of step 0 as features          next tokens a3 a4       positions 2 3
        step 2    row 1                                                     next token  a4          position  3

    Args:
        features: of all rows [num_rows, feature_size], in the dtype of the network.
    """
    rows = pack.trained_rows(0)
    if not len(rows):
        return
    device = features.device
    every = torch.arange(pack.num_rows)
    inner_plan = AttentionPlan.of(every, pack.starts, pack.lengths, device)
    step_rows = UnrolledRows(
        pack.next_token_ids.to(device),
        pack.positions.to(device),
        inner_plan,
        rows.to(device),
        AttentionPlan.of(rows, pack.starts, pack.lengths, device),
    )
    memory = network.new_memory()
    states = network.run(weights, step_rows, network.combine_features(weights, features), memory)
    yield UnrolledStep(rows, states, rows + 1)
    for step in range(1, num_steps):
        later = pack.trained_rows(step)
        if not len(later):
            return
        kept = torch.searchsorted(rows, later).to(device)
        for layer in memory:
            layer.keep(kept)
        rows = later
        step_rows = UnrolledRows(
            pack.next_token_ids[rows + step].to(device),
            (pack.positions[rows] + step).to(device),
            AttentionPlan.of(rows, pack.starts, pack.lengths, device),
        )
        states = network.run(weights, step_rows, states.hidden_states[kept], memory)
        yield UnrolledStep(rows, states, rows + 1 + step)
