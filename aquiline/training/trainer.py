"""The training loop: labels from the frozen target, losses of all self-fed steps, one optimiser step after another."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from aquiline.engine.sizing import DTYPES
from aquiline.errors import TrainingDataError
from aquiline.models.draft_metadata import DraftMetadata
from aquiline.training.checkpoint import Checkpoint, CheckpointFolder, Progress
from aquiline.training.divergence import DivergenceWatch, check_weights
from aquiline.training.examples import TrainingExample
from aquiline.training.export import export_draft
from aquiline.training.feature_noise import with_noise
from aquiline.training.label_cache import LabelCache, LabelShape, LabelSource
from aquiline.training.labels import TargetLabeller, TargetLabels, Teacher
from aquiline.training.network import DraftNetwork, trained_names
from aquiline.training.optimiser import DraftOptimiser, learning_rate
from aquiline.training.packing import DataOrder, ExampleIndex, Pack, StepPlan, digest_of, make_pack, split_into_packs
from aquiline.training.parallel import Processes
from aquiline.training.settings import StageSettings, TrainingSettings
from aquiline.training.start import draft_config, initial_weights
from aquiline.training.step_loss import LossPlan, StepTally, pack_loss
from aquiline.training.target import FrozenTarget

LABELS = "labels"
RATE_SMOOTHING = 0.9


@dataclass(frozen=True)
class StepRecord:
    """What one optimiser step did.

    Attributes:
        step, stage, epoch: numbers; steps count from 1, the others from 0.
        num_tokens: trained tokens so far, each as often as it was visited.
        total_tokens: the same at the end of the run.
        loss: weighted sum over self-fed steps, per trained token.
        losses, accuracies, conditional_accuracies: by self-fed step, as in `StepTally`.
        gradient_norm: before clipping.
        seconds: of this step; `label_seconds` of them went to the target.
        tokens_per_second: trained tokens of all processes, smoothed over steps.
    """

    step: int
    stage: int
    epoch: int
    num_tokens: int
    total_tokens: int
    loss: float
    losses: tuple[float, ...]
    accuracies: tuple[float, ...]
    conditional_accuracies: tuple[float, ...]
    learning_rate: float
    gradient_norm: float
    seconds: float
    label_seconds: float
    tokens_per_second: float


def _ignore(_: object) -> None:
    """What happens where nobody asked."""


@dataclass(frozen=True)
class TrainerCallbacks:
    """Called by the first process alone.

    Attributes:
        on_step: after every optimiser step.
        on_checkpoint: with the folder of every new checkpoint; its subfolder `draft` is a draft model.
    """

    on_step: Callable[[StepRecord], None] = _ignore
    on_checkpoint: Callable[[Path], None] = _ignore


@dataclass(frozen=True)
class TrainingData:
    """What a draft is trained on.

    Attributes:
        target_ids: the target's id of every draft id, ascending.
        provenance: where the examples come from, ready for JSON.
    """

    examples: Sequence[TrainingExample]
    target_ids: Sequence[int]
    provenance: Mapping[str, Any] = field(default_factory=dict)


class Trainer:
    """Trains one draft.

    Args:
        target: its auxiliary layers are those of `draft_config(settings.draft, target.config)`.
        output: folder of the run; where it holds checkpoints of the same run, that run goes on.
        processes: those that share out the work.

    Raises:
        InvalidParameterError: settings that do not fit the target, or a folder of another run.
        TrainingDataError: no example has two answer tokens in a row.
    """

    def __init__(
        self,
        settings: TrainingSettings,
        target: FrozenTarget,
        data: TrainingData,
        output: Path,
        processes: Processes | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.settings = settings
        self._target = target
        self._data = data
        self._processes = processes or Processes()
        self._device = device or torch.device("cpu")
        self._index = ExampleIndex.of(data.examples, settings.max_length)
        self._order = DataOrder(self._index.num_trained, settings.tokens_per_step, settings.seed)
        if not self._order.tokens_per_epoch:
            raise TrainingDataError(
                f"none of the {len(data.examples)} examples has two answer tokens in a row within max_length "
                f"{settings.max_length}; a draft learns from those"
            )
        dtype = DTYPES[settings.dtype]
        frozen = target.frozen_weights(dtype, self._device)
        draft = replace(settings.draft, draft_vocab_size=len(data.target_ids))
        self.config = draft_config(draft, target.config)
        start = initial_weights(
            self.config, target.config, target.tensors, data.target_ids, settings.draft.start, settings.seed
        )
        start = {name: tensor.to(self._device) for name, tensor in start.items()}
        names = trained_names(self.config, settings.freeze_head)
        self.network = DraftNetwork(self.config, start, frozen, names, settings.quantization_aware)
        self._teacher = Teacher(target.head_rows(frozen, data.target_ids), data.target_ids, target.config.vocab_size)
        self._optimiser = DraftOptimiser(self.network.parameters, settings)
        self.checkpoints = CheckpointFolder(output, self._identity(), settings.keep_checkpoints)
        self._progress = Progress()
        self._watch = DivergenceWatch()
        self._rate = 0.0
        self._resume(self.checkpoints.read_newest())
        self._labels = self._label_source(output)

    @property
    def progress(self) -> Progress:
        """How far the run is."""
        return self._progress

    @property
    def total_tokens(self) -> int:
        """Trained tokens of the whole run, each as often as it is visited."""
        return sum(self._tokens_of(stage) for stage in self.settings.stages)

    @property
    def is_finished(self) -> bool:
        return self._progress.stage >= len(self.settings.stages)

    def run(self, callbacks: TrainerCallbacks | None = None) -> Path:
        """Train to the end, from wherever the run is.

        Returns:
            The newest checkpoint.

        Raises:
            TrainingDivergedError: the loss went astray; the last checkpoint is kept.
        """
        called = callbacks if callbacks is not None and self._processes.is_first else TrainerCallbacks()
        last_saved = self._progress.num_tokens
        while not self.is_finished:
            for plan in self._order.steps(self._progress.epoch, self._progress.step_in_epoch):
                called.on_step(self._step(plan))
                ends_stage = self._finish_step(plan)
                if ends_stage or self._progress.num_tokens - last_saved >= self.settings.checkpoint_every:
                    last_saved = self._progress.num_tokens
                    called.on_checkpoint(self._save())
                if ends_stage:
                    break
            else:
                self._progress.epoch += 1
                self._progress.step_in_epoch = 0
        self._end()
        newest = self.checkpoints.newest
        assert newest is not None, "a stage ends with a checkpoint"
        return newest

    def _label_source(self, output: Path) -> LabelSource:
        """The target, behind what it said before where that is kept."""
        labeller = TargetLabeller(self._target.model, DTYPES[self.settings.dtype])
        max_bytes = int(self.settings.label_cache_gb * 2**30)
        if not max_bytes:
            return labeller
        shape = LabelShape(self.config.feature_size, self._target.config.hidden_size, self._target.model.feature_dtype)
        identity = {
            "target": self._target.name,
            "numerics": self._target.numerics,
            "features": [self.config.kind, *self.config.aux_layer_ids],
            "data_digest": self._index.digest,
            "max_length": self.settings.max_length,
        }
        folder = Path(self.settings.label_folder or output / LABELS)
        return LabelCache(folder, labeller, self._index, shape, identity, max_bytes, self._processes.rank)

    def _tokens_of(self, stage: StageSettings) -> int:
        return math.ceil(stage.epochs * self._order.tokens_per_epoch)

    def _step(self, plan: StepPlan) -> StepRecord:
        """One optimiser step; the progress is counted afterwards."""
        start = time.perf_counter()
        progress, stage = self._progress, self.settings.stages[self._progress.stage]
        loss_plan = LossPlan.of(stage.loss, stage.ttt_steps, self.settings.step_decay)
        tally, label_seconds = StepTally.empty(stage.ttt_steps), 0.0
        total = torch.zeros((), dtype=torch.float64)
        for example_ids in self._packs(plan):
            pack = make_pack(self._data.examples, example_ids, self.settings.max_length)
            before = time.perf_counter()
            labels = self._labels_of(pack)
            label_seconds += time.perf_counter() - before
            found = pack_loss(self.network, self.network.used_weights(), pack, labels, self._teacher, loss_plan)
            (found.loss / plan.num_tokens).backward()  # type: ignore[no-untyped-call]
            total += found.loss.detach().double().cpu() / plan.num_tokens
            tally.add(found.tally)
        self._processes.add_up([tally.sums, total])
        self._processes.add_up_gradients(self.network.parameters)
        gradient_norm = float(self._optimiser.gradient_norm())
        self._watch.check(progress.num_steps + 1, tally.losses[0], gradient_norm)
        share_done = (progress.stage_tokens + plan.num_tokens / 2) / self._tokens_of(stage)
        rate = learning_rate(stage, self.settings, share_done)
        self._optimiser.step(rate, gradient_norm)
        seconds = time.perf_counter() - start
        now = plan.num_tokens / seconds
        self._rate = RATE_SMOOTHING * self._rate + (1 - RATE_SMOOTHING) * now if self._rate else now
        return StepRecord(
            step=progress.num_steps + 1,
            stage=progress.stage,
            epoch=progress.epoch,
            num_tokens=progress.num_tokens + plan.num_tokens,
            total_tokens=self.total_tokens,
            loss=float(total),
            losses=tally.losses,
            accuracies=tally.accuracies,
            conditional_accuracies=tally.conditional_accuracies,
            learning_rate=rate,
            gradient_norm=gradient_norm,
            seconds=seconds,
            label_seconds=label_seconds,
            tokens_per_second=self._rate,
        )

    def _packs(self, plan: StepPlan) -> list[list[int]]:
        own = self._processes.share(plan.example_ids)
        return split_into_packs(own, [self._index.num_rows[i] for i in own], self.settings.rows_per_pack)

    def _labels_of(self, pack: Pack) -> TargetLabels:
        labels, width = self._labels.label(pack), self.settings.feature_noise
        if self.config.kind != "eagle1" or not width:
            return labels
        features = with_noise(labels.features, pack, width, self.settings.seed, self._progress.num_steps)
        return replace(labels, features=features)

    def _finish_step(self, plan: StepPlan) -> bool:
        """Count a step; whether it was the last of its stage."""
        progress = self._progress
        progress.num_steps += 1
        progress.step_in_epoch += 1
        progress.num_tokens += plan.num_tokens
        progress.stage_tokens += plan.num_tokens
        if progress.stage_tokens < self._tokens_of(self.settings.stages[progress.stage]):
            return False
        progress.stage += 1
        progress.stage_tokens = 0
        self._watch.restart()
        return True

    def _save(self) -> Path:
        """Write a checkpoint; the first process does, the others wait."""
        if isinstance(self._labels, LabelCache):
            self._labels.flush()
        check_weights(self._progress.num_steps, self.network.parameters)
        self._progress.watch = self._watch.state()
        if self._processes.is_first:
            self.checkpoints.write(self._progress, self._optimiser.state(), self.export, self._provenance())
        self._processes.wait()
        newest = self.checkpoints.newest
        assert newest is not None
        return newest

    def _end(self) -> None:
        """Drop the labels that only this run needed."""
        self._processes.wait()
        if isinstance(self._labels, LabelCache) and self.settings.label_folder is None and self._processes.is_first:
            self._labels.remove()

    def export(self, folder: Path) -> None:
        """Write the draft as it stands, ready to be loaded."""
        weights = self.network.fixed | self._optimiser.exported()
        metadata = DraftMetadata(
            target=self._target.name,
            num_target_layers=self._target.config.num_layers,
            quantization=self.settings.said_quantization,
            provenance=self._provenance(),
        )
        export_draft(folder, self.config, weights, self._data.target_ids, metadata)

    def _resume(self, checkpoint: Checkpoint | None) -> None:
        if checkpoint is not None:
            self._optimiser.restore(checkpoint.state)
            self._progress = checkpoint.progress
            self._watch = DivergenceWatch(checkpoint.progress.watch)

    def _identity(self) -> dict[str, Any]:
        """What must be equal for a run to go on."""
        return {
            "settings": asdict(self.settings),
            "target": self._target.name,
            "target_numerics": self._target.numerics,
            "data_digest": self._index.digest,
            "vocabulary_digest": digest_of(self._data.target_ids),
            "num_processes": self._processes.count,
        }

    def _provenance(self) -> dict[str, Any]:
        """Where the weights come from; folders by their names, for a head is passed on and its machine is not."""
        settings = asdict(self.settings)
        settings["draft"]["start"] = Path(self.settings.draft.start).name
        del settings["label_folder"]
        return {
            "data": dict(self._data.provenance),
            "num_examples": len(self._data.examples),
            "num_trained_tokens": self._progress.num_tokens,
            "num_unique_tokens": self._order.tokens_per_epoch,
            "settings": settings,
            "torch": torch.__version__,
        }
