"""From the settings of a run to everything that it works on: data, vocabulary, target, and the head it starts with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, overload

import torch

from aquiline.engine.sizing import DTYPES
from aquiline.errors import InvalidParameterError, TrainingDataError
from aquiline.llm import LLM
from aquiline.model_store import resolve_model
from aquiline.models.draft_metadata import DraftMetadata
from aquiline.models.loading import LoadedTarget, open_target
from aquiline.models.model_config import EagleConfig
from aquiline.tokenizer import Tokenizer
from aquiline.training.data_run import DataRun, DataSummary
from aquiline.training.data_settings import SELF
from aquiline.training.examples import ExampleStore, TrainingExample
from aquiline.training.export import export_draft
from aquiline.training.run_settings import RunSettings
from aquiline.training.start import draft_config, initial_weights
from aquiline.training.vocabulary import DraftVocabulary, choose_vocabulary, count_answer_tokens

START = "start"
OnWork = Callable[[str, int, int], None]


@dataclass(frozen=True)
class PreparedRun:
    """What a run works on.

    Attributes:
        llm: the target with the head before training, as they are served.
        opened: the target's settings, and weights that are read when they are looked up.
        config: of the draft.
        data_provenance: where the examples come from, ready for JSON.
    """

    llm: LLM
    opened: LoadedTarget
    config: EagleConfig
    examples: Sequence[TrainingExample]
    vocabulary: DraftVocabulary
    data_provenance: Mapping[str, Any]


def torch_device(name: str) -> torch.device:
    """The device that `RunSettings.device` names.

    Raises:
        InvalidParameterError: there is none of that kind.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise InvalidParameterError("device is 'cuda', and PyTorch finds no CUDA device; use auto or cpu")
    is_cuda = name == "cuda" or (name == "auto" and torch.cuda.is_available())
    return torch.device("cuda" if is_cuda else "cpu")


def write_data(settings: RunSettings, on_work: OnWork) -> DataSummary | None:
    """Write the data of a run where it does not lie in folders yet, or what is missing of it.

    Returns:
        What was written, and what was left out; None where the data lies in folders.

    Raises:
        UserError: files or a model that cannot be used.
    """
    if settings.writing.way == "folders":
        return None
    return DataRun(
        settings.writing,
        lambda num_done, num_all: on_work("writing data", num_done, num_all or 0),
        lambda num_done, num_all: on_work("packing weights", num_done, num_all),
    ).run()


def prepare(settings: RunSettings, on_work: OnWork) -> PreparedRun:
    """Read the data, choose the draft vocabulary, write the head before training, and load the target with it.

    Raises:
        UserError: data or a model that cannot be used, or settings that do not fit them.
    """
    path = resolve_model(settings.target)
    opened = open_target(path, DTYPES[settings.training.dtype])
    on_work("reading data", 0, 0)
    examples = read_examples(settings.data_folders)
    eos_token_ids = Tokenizer.from_path(path).eos_token_ids | frozenset(opened.config.eos_token_ids)
    vocabulary = draft_vocabulary(settings, examples, opened.config.vocab_size, eos_token_ids)
    draft = replace(settings.training.draft, draft_vocab_size=len(vocabulary.target_ids))
    config = draft_config(draft, opened.config)
    start = settings.output / START
    weights = initial_weights(
        config, opened.config, opened.tensors, vocabulary.target_ids, draft.start, settings.training.seed
    )
    metadata = DraftMetadata(
        target=settings.target,
        num_target_layers=opened.config.num_layers,
        quantization=settings.training.said_quantization,
    )
    export_draft(start, config, weights, vocabulary.target_ids, metadata)
    llm = LLM(
        settings.target,
        draft=str(start),
        config=settings.serving,
        num_threads=settings.num_threads,
        on_load_progress=lambda num_done, num_all: on_work("packing weights", num_done, num_all),
    )
    provenance = {
        "source": [name if name == SELF else Path(name).name for name in settings.data],
        "num_answer_tokens": sum(example.num_answer_tokens for example in examples),
        "vocabulary_coverage": round(vocabulary.coverage, 5),
    }
    return PreparedRun(llm, opened, config, examples, vocabulary, provenance)


class JoinedExamples(Sequence[TrainingExample]):
    """The examples of several stores, one store after the other; they are read when they are looked up."""

    def __init__(self, stores: Sequence[ExampleStore]) -> None:
        self._stores = stores

    def __len__(self) -> int:
        return sum(map(len, self._stores))

    def __iter__(self) -> Iterator[TrainingExample]:
        return chain.from_iterable(self._stores)

    @overload
    def __getitem__(self, index: int) -> TrainingExample: ...
    @overload
    def __getitem__(self, index: slice) -> list[TrainingExample]: ...
    def __getitem__(self, index: int | slice) -> TrainingExample | list[TrainingExample]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        for store in self._stores:
            if 0 <= place < len(store):
                return store[place]
            place -= len(store)
        raise IndexError(f"there is no example {index} among {len(self)}")


def read_examples(folders: Sequence[str]) -> Sequence[TrainingExample]:
    """The examples of all folders, one folder after the other.

    Raises:
        TrainingDataError: a folder that is none, or damaged, or no example in any.
    """
    examples = JoinedExamples([ExampleStore(Path(folder)) for folder in folders])
    if not len(examples):
        raise TrainingDataError(f"there is no example in {', '.join(folders)}; write data with train-data first")
    return examples


def draft_vocabulary(
    settings: RunSettings, examples: Sequence[TrainingExample], vocab_size: int, eos_token_ids: frozenset[int]
) -> DraftVocabulary:
    """The ids that the draft may propose: all for an EAGLE-1 head, or where no size is asked for."""
    size = settings.training.draft.draft_vocab_size
    if settings.training.draft.kind == "eagle1" or size is None:
        return DraftVocabulary(tuple(range(vocab_size)), 1.0)
    return choose_vocabulary(count_answer_tokens(examples, vocab_size), size, eos_token_ids)
