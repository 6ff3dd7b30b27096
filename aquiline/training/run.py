"""A training run from its settings to a head with its card, checkpoint by checkpoint.

OUTPUT/
    run.json         what the run was told
    start/           the head before training; evaluations begin with it
    costs.json       what a step costs on this machine; measured once, so that all checkpoints are compared alike
    checkpoints/     see `checkpoint`
    history.jsonl    see `history`
    progress.png     see `plot`
    head/            the best checkpoint so far, ready to be served, with its card
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from aquiline.atomic_file import NO_ROOM, write_atomically
from aquiline.engine.sizing import DTYPES
from aquiline.errors import InvalidParameterError, TrainingDataError
from aquiline.models.llama import LlamaModel
from aquiline.speculation import chain
from aquiline.training.card import write_head
from aquiline.training.checkpoint import DRAFT, FOLDER
from aquiline.training.costs import StepCosts
from aquiline.training.data_run import DataSummary
from aquiline.training.evaluate import HeadEvaluator, HeadFigures
from aquiline.training.folder_lock import only_writer
from aquiline.training.history import History, Record, StepMeans
from aquiline.training.parallel import Processes, join_processes, leave_processes
from aquiline.training.plot import require_plotting, write_plot
from aquiline.training.prepare import START, PreparedRun, prepare, torch_device, write_data
from aquiline.training.run_settings import RunSettings
from aquiline.training.start import check_start
from aquiline.training.target import FrozenTarget
from aquiline.training.trained_ranks import rank_by_training
from aquiline.training.trainer import StepRecord, Trainer, TrainerCallbacks, TrainingData
from aquiline.training.walk import tally

COSTS, HISTORY, PLOT, HEAD = "costs.json", "history.jsonl", "progress.png", "head"
STEPS_PER_RECORD = 25
# What a system answers when there is no room (any more).


def _ignore(*_: object) -> None:
    """What happens where nobody watches."""


@dataclass(frozen=True)
class Watcher:
    """Called while a run goes on, by its first process.

    Attributes:
        on_work: with a word for what is done now, how much of it is done, and of how much.
        on_data: with what was written and left out, where the data did not lie in folders.
        on_step: after every optimiser step.
        on_record: with every new record of the history.
    """

    on_work: Callable[[str, int, int], None] = _ignore
    on_data: Callable[[DataSummary], None] = _ignore
    on_step: Callable[[StepRecord], None] = _ignore
    on_record: Callable[[Record], None] = _ignore


def train(settings: RunSettings, watcher: Watcher | None = None) -> Record:
    """Train a head, or go on with the run of the same settings in the output folder.

    Returns:
        The record of the result: the figures of the best checkpoint, predicted and served.

    Raises:
        UserError: settings, data or models that do not fit, a folder of another run, or of this one where it still
            goes on, or a full disk.
        TrainingDivergedError: the loss went astray; the last checkpoint is kept.
    """
    watcher = watcher or Watcher()
    if settings.has_plot:
        require_plotting()
    device = torch_device(settings.device)
    processes = join_processes(device)
    try:
        if not processes.is_first:
            watcher = Watcher()
        if processes.count > 1 and settings.writing.way != "folders":
            raise InvalidParameterError(
                f"data is {', '.join(settings.data)}, and several processes take part; write it into a folder with "
                "train-data first"
            )
        with only_writer(settings.output) if processes.is_first else nullcontext():
            return _train_among(processes, settings, watcher, device)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise TrainingDataError(
            f"{error.filename or settings.output} cannot be written ({error.strerror}); make room, and give the "
            "command again to go on"
        ) from error
    finally:
        leave_processes()


def _train_among(processes: Processes, settings: RunSettings, watcher: Watcher, device: torch.device) -> Record:
    """One process's part of a run."""
    if processes.is_first:
        check_start(settings.training.draft.start)
        settings.claim_output()
        written = write_data(settings, watcher.on_work)
        if written is not None:
            watcher.on_data(written)
    processes.wait()
    prepared = prepare(settings, watcher.on_work)
    torch.set_num_threads(prepared.llm.num_threads)
    target = _frozen_target(settings, prepared, device)
    data = TrainingData(prepared.examples, prepared.vocabulary.target_ids, prepared.data_provenance)
    trainer = Trainer(settings.training, target, data, settings.output, processes, device)
    if processes.is_first:
        return _Run(settings, prepared, trainer, watcher).run()
    trainer.run()
    return {}


def _frozen_target(settings: RunSettings, prepared: PreparedRun, device: torch.device) -> FrozenTarget:
    """The target that labels: the one that serves, or its weights in PyTorch on another device."""
    opened, model = prepared.opened, prepared.llm.models.target
    if device.type != "cpu":
        tensors = {name: tensor.to(device) for name, tensor in opened.tensors.items()}
        model = LlamaModel(opened.config, tensors, prepared.config.aux_layer_ids)
    return FrozenTarget(model, opened.tensors, settings.target)


class _Run:
    """The first process of a run: it evaluates, chooses, draws and writes."""

    def __init__(self, settings: RunSettings, prepared: PreparedRun, trainer: Trainer, watcher: Watcher) -> None:
        self._settings = settings
        self._prepared = prepared
        self._trainer = trainer
        self._watcher = watcher
        self._means = StepMeans(STEPS_PER_RECORD)
        self._history = History(settings.output / HISTORY)
        self._evaluator: HeadEvaluator | None = None

    def run(self) -> Record:
        results = self._history.of_kind("result")
        if self._trainer.is_finished and results:
            return results[-1]
        self._history.forget_after(self._trainer.progress.num_steps)
        if not any(record["step"] == 0 for record in self._history.of_kind("evaluation")):
            self._evaluate(self._settings.output / START, 0, 0)
        newest = self._trainer.checkpoints.newest
        if newest is not None and not self._is_evaluated(self._trainer.progress.num_steps):
            self._evaluate_checkpoint(newest)
        self._settle_best()
        self._trainer.run(TrainerCallbacks(self._on_step, self._on_checkpoint))
        return self._finish()

    def _on_step(self, step: StepRecord) -> None:
        self._watcher.on_step(step)
        for record in self._means.push(step):
            self._add(record)

    def _on_checkpoint(self, folder: Path) -> None:
        for record in self._means.rest():
            self._add(record)
        self._evaluate_checkpoint(folder)
        self._settle_best()

    def _evaluate_checkpoint(self, folder: Path) -> None:
        progress = self._trainer.progress
        self._evaluate(folder / DRAFT, progress.num_steps, progress.num_tokens)

    def _evaluate(self, head: Path, step: int, num_tokens: int) -> None:
        figures = self._figures(head, is_served=False)
        self._add({"kind": "evaluation", "step": step, "num_tokens": num_tokens, **figures.as_json()})
        if self._settings.has_plot:
            write_plot(self._history.records, self._settings.output / PLOT)

    def _figures(self, head: Path, is_served: bool) -> HeadFigures:
        num_threads = torch.get_num_threads()
        # Beside the pool of native kernels PyTorch gets one thread, as in serving.
        if self._prepared.llm.backend == "cpu":
            torch.set_num_threads(1)
        try:
            return self._evaluated().evaluate(str(head), is_served)
        finally:
            torch.set_num_threads(num_threads)

    def _evaluated(self) -> HeadEvaluator:
        """The evaluator, once it is needed: the target answers all prompts for it."""
        if self._evaluator is None:
            path = self._settings.output / COSTS
            costs = StepCosts.from_json(json.loads(path.read_text())) if path.exists() else None
            prompts, settings = self._settings.prompts, self._settings.evaluation
            self._evaluator = HeadEvaluator(self._prepared.llm, prompts, settings, costs, self._watcher.on_work)
            if costs is None:
                write_atomically(path, json.dumps(self._evaluator.costs.as_json()).encode())
        return self._evaluator

    def _is_evaluated(self, step: int) -> bool:
        return any(record["step"] == step for record in self._history.of_kind("evaluation"))

    def _settle_best(self) -> None:
        """Mark the checkpoint with the lowest time per committed token, and bring its head out."""
        best = best_evaluation(self._history.of_kind("evaluation"))
        if best is None:
            return
        folder = self._checkpoint(best["step"])
        if self._trainer.checkpoints.best == folder and (self._settings.output / HEAD / "config.json").exists():
            return
        write_head(self._settings.output / HEAD, folder / DRAFT, self._prepared.opened.config, best)
        # Marked last: a run that is killed in between writes the head once more.
        self._trainer.checkpoints.mark_best(folder)

    def _finish(self) -> Record:
        best = best_evaluation(self._history.of_kind("evaluation"))
        assert best is not None, "a run ends with a checkpoint"
        folder = self._checkpoint(best["step"])
        figures = self._figures(folder / DRAFT, is_served=True)
        training = self._settings.training
        frozen = FrozenTarget(
            self._prepared.llm.models.target, self._prepared.opened.tensors, self._settings.target
        ).frozen_weights(DTYPES[training.dtype], torch.device("cpu"))
        config, texts = self._prepared.opened.config, self._evaluated().texts
        depth = self._settings.evaluation.max_depth
        ranked = rank_by_training(folder / DRAFT, config, frozen, texts, depth, training.quantization_aware)
        served, trained = figures.served["chain"], tally(ranked, chain(depth))
        record = {
            "kind": "result",
            "step": self._trainer.progress.num_steps,
            "num_tokens": self._trainer.progress.num_tokens,
            "best_step": best["step"],
            "head": str(self._settings.output / HEAD),
            **figures.as_json(),
            "trained": {"chain": trained.figures()},
            "served_over_trained": round(served.acceptance_length / trained.acceptance_length, 4),
        }
        write_head(self._settings.output / HEAD, folder / DRAFT, self._prepared.opened.config, record)
        self._add(record)
        if self._settings.has_plot:
            write_plot(self._history.records, self._settings.output / PLOT)
        return record

    def _checkpoint(self, step: int) -> Path:
        return self._settings.output / FOLDER / f"step-{step:08d}"

    def _add(self, record: Record) -> None:
        self._history.add(record)
        self._watcher.on_record(record)


def best_evaluation(evaluations: list[Record]) -> Record | None:
    """The evaluation of a checkpoint with the lowest time per committed token, the earliest of equals.

    The head before training, at step 0, is no checkpoint.
    """
    trained = [record for record in evaluations if record["step"] > 0]
    return min(trained, key=lambda record: float(record["time_per_committed_token_ms"]), default=None)
