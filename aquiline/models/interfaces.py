"""What the engine asks of a target and of a draft, whatever kernels they run on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from aquiline.kernels.sampling_kernels import SamplingKernels
from aquiline.models.eagle import DraftStates
from aquiline.models.kv_layer import KVLayer
from aquiline.models.llama import ForwardRows, TargetStates
from aquiline.models.model_config import EagleConfig, LlamaConfig


class TargetModel(Protocol):
    """A target; `LlamaModel` says what each part means."""

    config: LlamaConfig
    feature_dtype: torch.dtype
    device: torch.device
    sampling: SamplingKernels  # what draws from its logits

    def forward(self, rows: ForwardRows, memory: Sequence[KVLayer]) -> TargetStates:
        """Run every row through all layers."""

    def logits(self, hidden_states: Tensor) -> Tensor:
        """Next-token logits, float32 [num_rows, vocab]."""


class DraftModel(Protocol):
    """A draft; `EagleModel` says what each part means."""

    config: EagleConfig
    draft_to_target_ids: Tensor  # [draft_vocab]

    def combine_features(self, features: Tensor) -> Tensor:
        """Bring target features to the draft's width."""

    def forward(self, rows: ForwardRows, hidden_states: Tensor, memory: Sequence[KVLayer]) -> DraftStates:
        """Run draft rows."""

    def logits(self, head_inputs: Tensor) -> Tensor:
        """Logits over the draft vocabulary, float32 [num_rows, draft_vocab]."""
