"""Aquiline serves Llama models with EAGLE speculative decoding.

`LLM` is loaded on first use: it needs PyTorch, and what only handles requests and settings must start without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aquiline.config import (
    CacheConfig,
    EngineConfig,
    GrammarConfig,
    Objective,
    SchedulerConfig,
    SpeculateTable,
    SpeculativeConfig,
)
from aquiline.errors import (
    AquilineError,
    ConsistencyError,
    DownloadError,
    DraftMismatchError,
    EndpointError,
    InternalError,
    InvalidParameterError,
    ModelFormatError,
    ModelNotFoundError,
    PromptError,
    TrainingDataError,
    TrainingDivergedError,
    UnsupportedFeatureError,
    UserError,
)
from aquiline.guided import GuidedParams
from aquiline.request import (
    CompletionOutput,
    FinishReason,
    RequestOutput,
    SamplingParams,
    TokenLogprob,
)
from aquiline.speculation import parse_speculation
from aquiline.speculation_figures import SpeculationFigures

if TYPE_CHECKING:
    from aquiline.llm import LLM

__all__ = [
    "LLM",
    "AquilineError",
    "CacheConfig",
    "CompletionOutput",
    "ConsistencyError",
    "DownloadError",
    "DraftMismatchError",
    "EndpointError",
    "EngineConfig",
    "FinishReason",
    "GrammarConfig",
    "GuidedParams",
    "InternalError",
    "InvalidParameterError",
    "ModelFormatError",
    "ModelNotFoundError",
    "Objective",
    "PromptError",
    "RequestOutput",
    "SamplingParams",
    "SchedulerConfig",
    "SpeculateTable",
    "SpeculationFigures",
    "SpeculativeConfig",
    "TokenLogprob",
    "TrainingDataError",
    "TrainingDivergedError",
    "UnsupportedFeatureError",
    "UserError",
    "parse_speculation",
]


def __getattr__(name: str) -> object:
    if name == "LLM":
        from aquiline.llm import LLM

        return LLM
    raise AttributeError(f"module 'aquiline' has no attribute {name!r}")
