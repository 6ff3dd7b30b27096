"""The frozen target of a training run: the model that labels, and the weights that a draft borrows or starts from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from aquiline.models.assemble import ModelSettings, assemble_target
from aquiline.models.gguf_blocks import KEPT_UNDER
from aquiline.models.interfaces import TargetModel
from aquiline.models.llama import LlamaModel
from aquiline.models.loading import open_target
from aquiline.models.model_config import LlamaConfig
from aquiline.models.native_llama import NativeLlama
from aquiline.models.tensor_shapes import EMBEDDING, HEAD
from aquiline.training.network import FrozenWeights
from aquiline.training.settings import DraftSettings
from aquiline.training.start import draft_config


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


def load_frozen_target(
    path: Path, name: str, draft: DraftSettings, settings: ModelSettings, device: torch.device | None = None
) -> FrozenTarget:
    """Read the target that a draft is trained for.

    Args:
        path: a Hugging Face folder or a GGUF file.
        name: of the model, for the files that are written.
        draft: says which layers' features are wanted.
        settings: those of serving give the features of serving.
        device: other than the CPU: the reference runs there, in `settings.dtype`; None: the CPU.

    Raises:
        UserError: a model that cannot be read, or that does not fit the draft's settings.
    """
    loaded = open_target(path, settings.dtype, kept_types=KEPT_UNDER[settings.quantization])
    aux_layer_ids = draft_config(draft, loaded.config).aux_layer_ids
    if device is None or device.type == "cpu":
        return FrozenTarget(assemble_target(loaded, aux_layer_ids, settings), loaded.tensors, name)
    tensors = {key: tensor.to(device) for key, tensor in loaded.tensors.items()}
    return FrozenTarget(LlamaModel(loaded.config, tensors, aux_layer_ids), tensors, name)
