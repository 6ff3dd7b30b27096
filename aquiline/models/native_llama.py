"""The target on native kernels: the interface of `LlamaModel`, every step one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from aquiline.kernels.cpu.extension import native
from aquiline.kernels.cpu.forward import check_tensor
from aquiline.kernels.cpu.packed import PackedLinear, Threads
from aquiline.kernels.cpu.sampling import NativeSampling
from aquiline.kernels.sampling_kernels import SamplingKernels
from aquiline.models.gguf_blocks import GgufBlocks
from aquiline.models.kv_layer import KVLayer
from aquiline.models.llama import ForwardRows, TargetStates
from aquiline.models.model_config import LlamaConfig
from aquiline.models.native_inputs import NativeInputs
from aquiline.models.native_weights import EmbeddingRows, WeightPacker, kind_of, layer_shape

if TYPE_CHECKING:
    from aquiline.kernels.cpu import _native

EMBEDDING, HEAD, FINAL_NORM = "model.embed_tokens", "lm_head", "model.norm.weight"
FLOATS = (torch.float32, torch.bfloat16)


class NativeLlama:
    """A Llama decoder over slot-addressed K/V memory, made by `pack`.

    Rows are float32 between operations; features have the dtype of the weights it was made from. The bits of a row do
    not depend on other rows, on the number of threads, or on where its K and V lie.

    Attributes:
        feature_dtype: of the features, float32 or bfloat16.
        embedding: the rows that tokens start from; a draft without its own reads them too.
        head: the packed matrix from hidden states to logits.
        sampling: what draws from the logits.
        num_bytes: memory that the packed weights take.
    """

    device = torch.device("cpu")

    def __init__(
        self,
        config: LlamaConfig,
        feature_dtype: torch.dtype,
        embedding: EmbeddingRows,
        head: PackedLinear,
        threads: Threads,
    ) -> None:
        self.config = config
        self.feature_dtype = feature_dtype
        self.embedding = embedding
        self.head = head
        self.threads = threads
        self.sampling: SamplingKernels = NativeSampling(threads)
        self.num_bytes = 0
        self._inputs = NativeInputs(config)
        self._num_features = 0
        self._native: _native.LlamaForward

    @classmethod
    def pack(
        cls,
        config: LlamaConfig,
        tensors: Mapping[str, Tensor],
        quantization: str = "auto",
        threads: Threads | None = None,
        aux_layer_ids: Sequence[int] = (),
        blocks: Mapping[str, GgufBlocks] | None = None,
    ) -> NativeLlama:
        """Pack weights, each matrix once.

        Args:
            tensors: as `aquiline.models.loading.load_target` names them, float32 or bfloat16.
            quantization: how matrices without `blocks` are packed: `int8` and `int4` quantise, `none` and `auto` keep
                bfloat16.
            threads: pack the weights and run the model; None: one.
            aux_layer_ids: as for `LlamaModel`.
            blocks: matrices that stay as a GGUF file stores them.

        Raises:
            InvalidParameterError: an unknown quantization, or sizes that cannot be packed.
            UnsupportedFeatureError: there are no native kernels.
        """
        kept = {} if blocks is None else blocks
        threads = threads or Threads(1)
        packer = WeightPacker(tensors, kind_of(quantization), threads, kept)
        norm = tensors[FINAL_NORM]
        feature_dtype, final_norm = norm.dtype, norm.float().contiguous()
        (head,) = packer.matrices(EMBEDDING if config.tie_word_embeddings else HEAD)
        # A head that holds every number of the file, as blocks and bfloat16 do, need not lie beside its own copy.
        is_exact = (packer.kind == "bf16" and feature_dtype is torch.bfloat16) or f"{EMBEDDING}.weight" in kept
        shares_head = config.tie_word_embeddings and is_exact
        embedding = EmbeddingRows.of_head(head) if shares_head else packer.embedding(EMBEDDING)
        model = cls(config, feature_dtype, embedding, head, threads)
        model._native = native().LlamaForward(
            model.threads.handle,
            layer_shape(config),
            embedding.handle,
            [packer.layer(f"model.layers.{index}.") for index in range(config.num_layers)],
            final_norm.data_ptr(),
            sorted(aux_layer_ids),
        )
        model._num_features = len(aux_layer_ids)
        model.num_bytes = packer.num_bytes
        return model

    def forward(self, rows: ForwardRows, memory: Sequence[KVLayer]) -> TargetStates:
        """Run every row through all layers, writing its K and V to its slot in each."""
        step = self._inputs.step(rows, memory)
        token_ids = rows.token_ids.contiguous()
        check_tensor(token_ids, "token_ids", (torch.int64,), (step.num_rows,))
        hidden_states, features = self._outputs(step.num_rows)
        self._native.run(
            token_ids.data_ptr(),
            step.handle,
            self._inputs.memory(memory).handle,
            hidden_states.data_ptr(),
            features.data_ptr(),
            features.dtype == torch.bfloat16,
        )
        return self._states(hidden_states, features)

    def forward_built(self, rows: _native.RowBuilder, memory: Sequence[KVLayer]) -> TargetStates:
        """The same for rows that were put together natively.

        Raises:
            IndexError: a row with a slot or token that does not exist.
        """
        hidden_states, features = self._outputs(rows.num_rows)
        self._native.run_built(
            rows,
            self._inputs.rotary(rows.max_position).handle,
            self._inputs.memory(memory).handle,
            hidden_states.data_ptr(),
            features.data_ptr(),
            features.dtype == torch.bfloat16,
        )
        return self._states(hidden_states, features)

    def move_rows(self, memory: Sequence[KVLayer], sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy K and V from slots to slots in every layer; all of a layer's are read before any is written."""
        self._inputs.memory(memory).handle.move_rows(sources, targets)

    def layer_parts(self, part: str) -> list[_native.LinearStack]:
        """One linear layer of every decoder layer, for programs that measure it.

        Args:
            part: query_key_value, output, gate_up or down.
        """
        module = native()
        kind = getattr(module.LayerPart, part)
        return [module.layer_part(self._native, index, kind) for index in range(self.config.num_layers)]

    def logits(self, hidden_states: Tensor) -> Tensor:
        """Next-token logits, float32 [num_rows, vocab], of hidden states after the final norm."""
        return self.head.apply(hidden_states, self.threads)

    def _outputs(self, num_rows: int) -> tuple[Tensor, Tensor]:
        """Memory for the hidden states and the features of a step."""
        width = self.config.hidden_size
        hidden_states = torch.empty((num_rows, width))
        return hidden_states, torch.empty((num_rows, width * self._num_features), dtype=self.feature_dtype)

    def _states(self, hidden_states: Tensor, features: Tensor) -> TargetStates:
        return TargetStates(hidden_states, features if self._num_features else hidden_states.to(features.dtype))
