"""Drafts on native kernels: the interface of `EagleModel`, every level one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from aquiline.kernels.cpu.extension import native
from aquiline.kernels.cpu.forward import check_tensor
from aquiline.kernels.cpu.packed import PackedLinear, Threads
from aquiline.models.eagle import DraftStates
from aquiline.models.kv_layer import KVLayer
from aquiline.models.llama import ForwardRows
from aquiline.models.model_config import EagleConfig
from aquiline.models.native_inputs import NativeInputs
from aquiline.models.native_llama import FLOATS, NativeLlama
from aquiline.models.native_weights import EmbeddingRows, WeightPacker, kind_of, layer_shape

if TYPE_CHECKING:
    from aquiline.kernels.cpu import _native


class NativeEagle:
    """A draft over slot-addressed K/V memory, made by `pack`.

    Attributes:
        draft_to_target_ids: # [draft_vocab] int64
        embedding: its own rows, or the target's.
        head: the packed matrix from hidden states to logits over the draft vocabulary.
        num_bytes: memory that the draft's own packed weights take.
        handle: the extension module's part of it.
        inputs: makes what the extension module takes of rows and memory.
    """

    def __init__(self, config: EagleConfig, embedding: EmbeddingRows, head: PackedLinear, target: NativeLlama) -> None:
        self.config = config
        self.draft_to_target_ids: Tensor
        self.embedding = embedding
        self.head = head
        self.threads = target.threads
        self.num_bytes = 0
        self.inputs = NativeInputs(config.layers)
        self.handle: _native.DraftForward

    @classmethod
    def pack(
        cls, config: EagleConfig, tensors: Mapping[str, Tensor], target: NativeLlama, quantization: str = "auto"
    ) -> NativeEagle:
        """Pack weights; what the draft file has none of its own is the target's, and so are the threads.

        Args:
            tensors: as `aquiline.models.loading.load_draft` names them, float32 or bfloat16.
            quantization: `none` packs bfloat16, `int8` and `int4` quantise, `auto` is int8: int4 is read
                quicker, but loses more by what it costs in acceptance.

        Raises:
            UnsupportedFeatureError: there are no native kernels.
            InvalidParameterError: an unknown quantization, or sizes that cannot be packed.
        """
        kind = kind_of("int8" if quantization == "auto" else quantization)
        packer = WeightPacker(tensors, kind, target.threads)
        embedding = packer.embedding("embed_tokens") if config.has_own_embedding else target.embedding
        head = packer.matrices("lm_head")[0] if config.has_own_head else target.head
        model = cls(config, embedding, head, target)
        model.draft_to_target_ids = tensors["draft_to_target_ids"]
        model.handle = _forward(config, packer, embedding, target.threads)
        model.num_bytes = packer.num_bytes
        return model

    def combine_features(self, features: Tensor) -> Tensor:
        """Bring target features [num_rows, feature_size] to the draft's width, float32 [num_rows, hidden]."""
        check_tensor(features, "features", FLOATS, (None, self.config.feature_size))
        combined = torch.empty((features.shape[0], self.config.layers.hidden_size))
        is_bfloat16 = features.dtype == torch.bfloat16
        self.handle.combine_features(features.data_ptr(), is_bfloat16, features.shape[0], combined.data_ptr())
        return combined

    def forward(self, rows: ForwardRows, hidden_states: Tensor, memory: Sequence[KVLayer]) -> DraftStates:
        """Run draft rows: `rows.token_ids` are the tokens one position ahead of `hidden_states`.

        Args:
            hidden_states: combined features, or `DraftStates.hidden_states` of the parent row; float32
                [num_rows, hidden].
        """
        step = self.inputs.step(rows, memory)
        shape = (step.num_rows, self.config.layers.hidden_size)
        token_ids, hidden_states = rows.token_ids.contiguous(), hidden_states.contiguous()
        check_tensor(token_ids, "token_ids", (torch.int64,), (step.num_rows,))
        check_tensor(hidden_states, "hidden_states", (torch.float32,), shape)
        head_inputs, next_hidden_states = torch.empty(shape), torch.empty(shape)
        self.handle.run(
            token_ids.data_ptr(),
            hidden_states.data_ptr(),
            step.handle,
            self.inputs.memory(memory).handle,
            head_inputs.data_ptr(),
            next_hidden_states.data_ptr(),
        )
        return DraftStates(head_inputs, head_inputs if self.config.norm_output else next_hidden_states)

    def logits(self, head_inputs: Tensor) -> Tensor:
        """Logits over the draft vocabulary, float32 [num_rows, draft_vocab]."""
        return self.head.apply(head_inputs, self.threads)


def _forward(
    config: EagleConfig, packer: WeightPacker, embedding: EmbeddingRows, threads: Threads
) -> _native.DraftForward:
    shape, module = layer_shape(config.layers), native()
    if config.kind == "eagle3":
        eagle3: _native.DraftForward = module.EagleForward(
            threads.handle, shape, embedding.handle, _weights(config, packer)
        )
        return eagle3
    layers = [packer.layer(f"layers.{index}.", has_input_norm=index > 0) for index in range(config.num_layers)]
    eagle1: _native.DraftForward = module.Eagle1Forward(
        threads.handle, shape, embedding.handle, packer.stack("fc"), layers
    )
    return eagle1


def _weights(config: EagleConfig, packer: WeightPacker) -> _native.EagleWeights:
    norms = [packer.norm(name) for name in config.feature_norms]
    hidden_norm, final_norm = packer.norm("layers.0.hidden_norm.weight"), packer.norm("norm.weight")
    weights: _native.EagleWeights = native().eagle_weights(
        packer.stack("fc"),
        [norm.data_ptr() for norm in norms],
        [packer.layer(f"layers.{index}.") for index in range(config.num_layers)],
        hidden_norm.data_ptr(),
        final_norm.data_ptr(),
        config.norm_before_residual,
    )
    return weights
