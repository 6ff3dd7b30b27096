"""Writes training data as it was asked for: by the target itself, from files, or from folders written before."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from aquiline.config import SpeculativeConfig
from aquiline.llm import LLM
from aquiline.model_store import resolve_model
from aquiline.models.load_progress import LoadCallback
from aquiline.models.loading import open_target
from aquiline.speculation import parse_speculation
from aquiline.tokenizer import Tokenizer
from aquiline.training.combining import combine, num_shards
from aquiline.training.data_settings import DataSettings
from aquiline.training.dataset import EVALUATION_FOLDER, DatasetFolder
from aquiline.training.evaluation_prompts import HELD_OUT_PROMPTS
from aquiline.training.examples import ExampleStore
from aquiline.training.exclusion import ExcludedPrompts, read_excluded
from aquiline.training.folder_lock import only_writer
from aquiline.training.importing import ConversationImporter, ImportReport, ImportSettings, files_fingerprint
from aquiline.training.masks import check_template
from aquiline.training.self_written.regeneration import AnswerWriter
from aquiline.training.self_written.settings import SelfWrittenSettings
from aquiline.training.self_written.writer import SelfWriter, WritingProgress

OnDone = Callable[[int, int | None], None]
"""Called with how much is done, answer tokens or lines, and of how much where that is known."""


@dataclass(frozen=True)
class DataSummary:
    """What lies in a folder of training data after a run.

    Attributes:
        num_answer_tokens: in conversations to train on, as are the other figures but those put aside.
        categories: answer tokens of each.
        num_skipped: conversations that this run dropped, by reason.
        first_skipped: file, line and reason of the first of each, where the data comes from files.
        seconds: that the run took, without loading the target.
        tokens_per_second: that the target wrote in this run, user turns and dropped texts included; None where it
            wrote nothing.
    """

    num_conversations: int
    num_tokens: int
    num_answer_tokens: int
    num_held_out: int
    categories: Mapping[str, int]
    num_skipped: Mapping[str, int]
    first_skipped: Mapping[str, str]
    seconds: float
    tokens_per_second: float | None

    def described(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


class DataRun:
    """One run.

    Args:
        on_done: see `OnDone`.
        on_load: called while the target is loaded.
    """

    def __init__(self, settings: DataSettings, on_done: OnDone, on_load: LoadCallback | None = None) -> None:
        self._settings = settings
        self._on_done = on_done
        self._on_load = on_load
        self._num_written = 0
        self._loading_seconds = 0.0

    def run(self) -> DataSummary:
        """Write the data, or what is missing of it.

        Raises:
            UserError: a model, file or folder that cannot be used, data of other settings in the output folder, or
                another run that writes there.
        """
        settings = self._settings
        excluded = read_excluded([HELD_OUT_PROMPTS, *map(Path, settings.exclude)])
        begun = time.perf_counter()
        with only_writer(settings.output):
            skipped, first = self._write(excluded)
        seconds = time.perf_counter() - begun - self._loading_seconds
        store = ExampleStore(settings.output)
        categories: Counter[str] = Counter()
        for shard in store.shards:
            for category, num_tokens in zip(shard.categories, shard.num_answer_tokens, strict=True):
                categories[category] += int(num_tokens)
        return DataSummary(
            num_conversations=len(store),
            num_tokens=store.num_tokens,
            num_answer_tokens=store.num_answer_tokens,
            num_held_out=len(ExampleStore(settings.output / EVALUATION_FOLDER)),
            categories=dict(categories),
            num_skipped=dict(skipped),
            first_skipped=dict(first),
            seconds=round(seconds, 3),
            tokens_per_second=round(self._num_written / seconds, 1) if self._num_written else None,
        )

    def _write(self, excluded: ExcludedPrompts) -> tuple[Mapping[str, int], Mapping[str, str]]:
        """Come to the data in the way that the settings say; returns what was skipped, and the first of each kind."""
        if self._settings.way == "self":
            return self._write_self(excluded), {}
        report = {"answers": self._answer, "files": self._import, "folders": self._combine}[self._settings.way](
            excluded
        )
        return report.num_skipped, report.first_skipped

    def _write_self(self, excluded: ExcludedPrompts) -> Mapping[str, int]:
        writing, llm = self._writing(), self._open_llm()
        writer = SelfWriter(llm, self._settings.output, writing, excluded, self._target())

        def show(progress: WritingProgress) -> None:
            self._num_written = progress.num_new_tokens
            self._on_done(progress.num_answer_tokens + progress.num_pending_tokens, progress.num_tokens)

        return writer.write(self._settings.num_tokens, show).num_dropped

    def _answer(self, excluded: ExcludedPrompts) -> ImportReport:
        writing = self._writing()
        described = {**self._target(), **self._files(excluded), **writing.described()}
        dataset = DatasetFolder(self._settings.output, described)
        llm = self._open_llm()
        answering = AnswerWriter(llm, self._importing(llm.engine.sizes.max_model_len), writing, excluded)

        def count(num_tokens: int) -> None:
            self._num_written += num_tokens
            self._on_done(self._num_written, None)

        return answering.run(self._settings.paths, dataset, lambda report: None, count)

    def _import(self, excluded: ExcludedPrompts) -> ImportReport:
        path = resolve_model(self._settings.target)
        config = open_target(path, torch.bfloat16).config
        tokenizer = Tokenizer.from_path(path)
        importing = self._importing(self._settings.max_length or config.max_position)
        described = {
            "target": self._settings.target,
            **self._files(excluded),
            "max_length": importing.max_length,
            "held_out_share": importing.held_out_share,
            "seed": importing.seed,
        }
        eos_token_ids = tokenizer.eos_token_ids | frozenset(config.eos_token_ids)
        importer = ConversationImporter(tokenizer, eos_token_ids, importing, excluded)
        dataset = DatasetFolder(self._settings.output, described)
        return importer.run(self._settings.paths, dataset, self._count_lines)

    def _combine(self, excluded: ExcludedPrompts) -> ImportReport:
        tokenizer = Tokenizer.from_path(resolve_model(self._settings.target))
        described = {
            "target": self._settings.target,
            "folders": {str(path.resolve()): num_shards(path) for path in self._settings.paths},
            "excluded": excluded.fingerprint,
        }
        dataset = DatasetFolder(self._settings.output, described)
        return combine(self._settings.paths, dataset, tokenizer, excluded, self._count_lines)

    def _count_lines(self, report: ImportReport) -> None:
        self._on_done(report.num_read, None)

    def _open_llm(self) -> LLM:
        settings, begun = self._settings, time.perf_counter()
        # Large batches leave nothing to gain from speculation, and the texts would be the same.
        plain = SpeculativeConfig(parse_speculation("off"))
        llm = LLM(
            settings.target,
            draft=None,
            config=replace(settings.engine, speculative=plain),
            num_threads=settings.num_threads,
            on_load_progress=self._on_load,
        )
        check_template(llm.tokenizer)
        self._loading_seconds = time.perf_counter() - begun
        return llm

    def _writing(self) -> SelfWrittenSettings:
        settings = self._settings
        return SelfWrittenSettings(
            seed=settings.seed,
            num_turns_per_round=settings.num_turns_per_round,
            max_answer_tokens=settings.max_answer_tokens,
            held_out_share=settings.held_out_share,
        )

    def _importing(self, max_length: int) -> ImportSettings:
        settings = self._settings
        return ImportSettings(max_length, settings.seed, settings.held_out_share, settings.skips_bad_lines)

    def _target(self) -> dict[str, object]:
        """What the texts of the target depend on."""
        engine = self._settings.engine
        return {
            "target": self._settings.target,
            "dtype": engine.dtype,
            "backend": engine.backend,
            "quantization": engine.quantization,
            "kv_cache_dtype": engine.cache.kv_cache_dtype,
            "max_model_len": engine.scheduler.max_model_len,
        }

    def _files(self, excluded: ExcludedPrompts) -> dict[str, object]:
        return {
            "files": files_fingerprint(self._settings.paths),
            "excluded": excluded.fingerprint,
            "skips_bad_lines": self._settings.skips_bad_lines,
        }
