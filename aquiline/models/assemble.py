"""From files to the models an engine runs, on the kernels that suit them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from aquiline.config import Backend, Quantization
from aquiline.errors import DraftMismatchError, InvalidParameterError, UnsupportedFeatureError
from aquiline.kernels import cpu
from aquiline.kernels.cpu.packed import GROUP_SIZE, Threads
from aquiline.models.draft_metadata import served_quantization
from aquiline.models.eagle import EagleModel
from aquiline.models.gguf_blocks import KEPT_UNDER
from aquiline.models.interfaces import DraftModel, TargetModel
from aquiline.models.llama import LlamaModel
from aquiline.models.load_progress import LoadCallback, LoadProgress
from aquiline.models.loading import (
    LoadedDraft,
    LoadedTarget,
    expected_draft_tensors,
    expected_target_tensors,
    open_draft,
    open_target,
)
from aquiline.models.model_config import LlamaConfig
from aquiline.models.native_eagle import NativeEagle
from aquiline.models.native_llama import NativeLlama


@dataclass(frozen=True)
class ModelSettings:
    """How models are loaded.

    Attributes:
        backend: `cpu` is the native kernels, `pytorch` the reference; `auto` takes the native ones where they fit.
        quantization, draft_quantization: of the weights of target and draft on native kernels.
        num_threads: of native kernels.
    """

    dtype: torch.dtype
    backend: Backend
    quantization: Quantization
    num_threads: int
    draft_quantization: Quantization = "auto"


@dataclass(frozen=True)
class AssembledModels:
    """A target with its draft.

    Attributes:
        backend: the kernels both run on, `cpu` or `pytorch`.
    """

    target: TargetModel
    draft: DraftModel | None
    backend: Backend


def assemble_models(
    target_path: Path, draft_path: Path | None, settings: ModelSettings, on_progress: LoadCallback | None = None
) -> AssembledModels:
    """Load a target and its draft, one matrix after the other.

    Args:
        on_progress: called after each tensor with the number of weights that are loaded, and of how many.

    Raises:
        UserError: a file that cannot be used, a draft for another target, or a backend that cannot run them.
    """
    progress = LoadProgress(on_progress or (lambda num_done, num_total: None))
    target = open_target(
        target_path, settings.dtype, partial(progress.read, "target"), KEPT_UNDER[settings.quantization]
    )
    progress.expect("target", expected_target_tensors(target.config))
    draft = None
    if draft_path is not None:
        draft = open_draft(draft_path, target.config, settings.dtype, partial(progress.read, "draft"))
        progress.expect("draft", expected_draft_tensors(draft.config))
    models = _assemble(target, draft, settings)
    progress.finish()
    return models


def assemble_draft(
    path: Path, target: TargetModel, aux_layer_ids: Sequence[int], settings: ModelSettings
) -> DraftModel:
    """Load another draft for a target that is in memory, on the same kernels.

    Args:
        aux_layer_ids: layers whose outputs the target was assembled to hand out.

    Raises:
        DraftMismatchError: the draft reads other layers.
        UserError: a file that cannot be used, or sizes that the kernels cannot run.
    """
    loaded = open_draft(path, target.config, settings.dtype)
    if loaded.config.aux_layer_ids != tuple(aux_layer_ids):
        raise DraftMismatchError(
            f"{path} reads the outputs of layers {list(loaded.config.aux_layer_ids)}, and the target was loaded to "
            f"give those of {list(aux_layer_ids)}; load the target together with this draft"
        )
    if isinstance(target, NativeLlama):
        obstacle = _obstacle(target.config, loaded, settings)
        if obstacle is not None:
            raise UnsupportedFeatureError(f"{path}: {obstacle}; load the target with --backend pytorch")
        return _native_draft(loaded, target, settings)
    assert isinstance(target, LlamaModel)
    return EagleModel(loaded.config, dict(loaded.tensors), target.embedding, target.head)


def assemble_target(target: LoadedTarget, aux_layer_ids: Sequence[int], settings: ModelSettings) -> TargetModel:
    """A target alone that hands out the features of some layers, for a draft that does not exist yet.

    Args:
        aux_layer_ids: as for `LlamaModel`.

    Raises:
        UserError: a file that cannot be used, or a backend that cannot run it.
    """
    if _runs_on_pytorch(target, None, settings):
        return LlamaModel(target.config, dict(target.tensors), aux_layer_ids)
    return _native_target(target, aux_layer_ids, settings)


def _assemble(target: LoadedTarget, draft: LoadedDraft | None, settings: ModelSettings) -> AssembledModels:
    if _runs_on_pytorch(target, draft, settings):
        return _on_pytorch(target, draft)
    return _on_native_kernels(target, draft, settings)


def _runs_on_pytorch(target: LoadedTarget, draft: LoadedDraft | None, settings: ModelSettings) -> bool:
    """Whether the reference runs these models; raises where the settings ask for something else."""
    obstacle = _obstacle(target.config, draft, settings)
    if settings.backend == "cpu" and obstacle is not None:
        raise UnsupportedFeatureError(f"--backend is 'cpu', and {obstacle}; use --backend pytorch")
    if settings.backend == "pytorch" or obstacle is not None:
        _refuse_quantisation(settings, obstacle)
        return True
    return False


def _refuse_quantisation(settings: ModelSettings, obstacle: str | None) -> None:
    asked = {"--quantization": settings.quantization, "--draft-quantization": settings.draft_quantization}
    reason = "runs on PyTorch" if obstacle is None else f"runs on PyTorch because {obstacle}"
    for option, value in asked.items():
        if value not in ("auto", "none"):
            raise InvalidParameterError(
                f"{option} is {value!r}, but this model {reason}, which has no quantised weights; use auto or none"
            )


def _obstacle(target: LlamaConfig, draft: LoadedDraft | None, settings: ModelSettings) -> str | None:
    """Why native kernels cannot or should not run these models; None when they can."""
    if not cpu.is_available():
        return f"there are no native kernels: {cpu.why_not()}"
    if settings.dtype is not torch.bfloat16 and settings.backend == "auto":
        return "dtype float32 asks for the reference"
    for config in [target] if draft is None else [target, draft.config.layers]:
        sizes = (config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim)
        if any(size % GROUP_SIZE for size in sizes) or config.head_dim % 8:
            return f"its widths {sizes} are not all multiples of {GROUP_SIZE}, or its head width not of 8"
    return None


def _on_pytorch(loaded: LoadedTarget, draft: LoadedDraft | None) -> AssembledModels:
    tensors = dict(loaded.tensors)
    if draft is None:
        return AssembledModels(LlamaModel(loaded.config, tensors), None, "pytorch")
    target = LlamaModel(loaded.config, tensors, draft.config.aux_layer_ids)
    eagle = EagleModel(draft.config, dict(draft.tensors), target.embedding, target.head)
    return AssembledModels(target, eagle, "pytorch")


def _on_native_kernels(loaded: LoadedTarget, draft: LoadedDraft | None, settings: ModelSettings) -> AssembledModels:
    target = _native_target(loaded, () if draft is None else draft.config.aux_layer_ids, settings)
    if draft is None:
        return AssembledModels(target, None, "cpu")
    return AssembledModels(target, _native_draft(draft, target, settings), "cpu")


def _native_target(loaded: LoadedTarget, aux_layer_ids: Sequence[int], settings: ModelSettings) -> NativeLlama:
    threads = Threads(settings.num_threads)
    return NativeLlama.pack(
        loaded.config, loaded.tensors, settings.quantization, threads, aux_layer_ids=aux_layer_ids, blocks=loaded.blocks
    )


def _native_draft(loaded: LoadedDraft, target: NativeLlama, settings: ModelSettings) -> NativeEagle:
    quantization = served_quantization(settings.draft_quantization, loaded.metadata)
    return NativeEagle.pack(loaded.config, loaded.tensors, target, quantization)
