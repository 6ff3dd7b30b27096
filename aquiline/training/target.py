"""The frozen target of a training run: the model that labels, and the weights that a draft borrows or starts from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aquiline.models.interfaces import TargetModel
from aquiline.models.model_config import LlamaConfig
from aquiline.models.native_llama import NativeLlama
from aquiline.models.tensor_shapes import EMBEDDING, HEAD
from aquiline.training.network import FrozenWeights


@dataclass(frozen=True)
class FrozenTarget:
    """A target that is only run.

    Attributes:
        model: hands out the features of the layers that the draft wants.
        tensors: its weights, by the names of `expected_target_tensors`.
        name: of the model, for the files that are written.
    """

    model: TargetModel
    tensors: Mapping[str, Tensor]
    name: str

    @property
    def config(self) -> LlamaConfig:
        return self.model.config

    @property
    def numerics(self) -> str:
        """On which kernels and with what precision it runs, in words; other numerics give other labels."""
        dtype = str(self.model.feature_dtype).removeprefix("torch.")
        if isinstance(self.model, NativeLlama):
            return f"native kernels, {dtype}, head {self.model.head.kind}, {self.model.num_bytes} bytes of weights"
        return f"PyTorch on {self.model.device.type}, {dtype}"

    def frozen_weights(self, dtype: torch.dtype, device: torch.device) -> FrozenWeights:
        """Embedding and head; one tensor where they are tied."""
        embedding = self.tensors[EMBEDDING].to(device, dtype)
        head = embedding if self.config.tie_word_embeddings else self.tensors[HEAD].to(device, dtype)
        return FrozenWeights(embedding, head)

    def head_rows(self, frozen: FrozenWeights, target_ids: Sequence[int]) -> Tensor:
        """Rows of the head that belong to a draft vocabulary [draft_vocab, hidden]."""
        if len(target_ids) == self.config.vocab_size:
            return frozen.head
        return frozen.head[torch.tensor(target_ids, dtype=torch.long, device=frozen.head.device)]
