"""Everything a training run is told beside the recipe itself, checked once and never changed afterwards."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from aquiline.atomic_file import scratch_of, write_atomically
from aquiline.config import CacheConfig, EngineConfig, SchedulerConfig, SpeculativeConfig
from aquiline.errors import InvalidParameterError
from aquiline.speculation import parse_speculation
from aquiline.training.data_settings import DataSettings
from aquiline.training.dataset import holds_conversations
from aquiline.training.dotted_names import by_dotted_names
from aquiline.training.evaluation_prompts import EvaluationPrompt
from aquiline.training.evaluation_settings import EvaluationSettings
from aquiline.training.folder_lock import NOTE
from aquiline.training.settings import TrainingSettings

DeviceName = Literal["auto", "cpu", "cuda"]
RUN, DATA = "run.json", "data"
WRITING_BATCH_SIZE, WRITING_CACHE_GB = 64, 2.0
# These change how a run is kept or shown, not what comes out of it.
FREE = (
    "training.checkpoint_every",
    "training.keep_checkpoints",
    "training.label_cache_gb",
    "training.label_folder",
)


@dataclass(frozen=True)
class RunSettings:
    """A run.

    Attributes:
        target: the model to draft for: a known name, a file, a folder or a hub id.
        output: folder of the run.
        data: folders that `train-data` has written; or JSONL files, or `self`, from which it is written first.
        prompts: on which checkpoints are compared; none of them may be in the data.
        engine: how target and draft are served, and so which features the draft learns from.
        num_tokens: answer tokens that the target writes where data is `self`.
        exclude: JSONL files of prompts that data which is written here must not hold.
        num_threads: None: as for `LLM`.
        device: where the draft is trained; `auto` takes a CUDA device if there is one. Evaluations always serve on the
            CPU.
        has_plot: draw the course of the run.
    """

    target: str
    output: Path
    data: tuple[str, ...]
    prompts: tuple[EvaluationPrompt, ...]
    training: TrainingSettings = field(default_factory=TrainingSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    engine: EngineConfig = field(default_factory=EngineConfig)
    num_tokens: int = 1_000_000
    exclude: tuple[str, ...] = ()
    num_threads: int | None = None
    device: DeviceName = "auto"
    has_plot: bool = True

    def __post_init__(self) -> None:
        checked = self.writing
        if checked.way == "answers":
            raise InvalidParameterError("answers are written anew by train-data --regenerate; give its folder as data")
        if not self.prompts:
            raise InvalidParameterError("prompts is empty; checkpoints are compared on at least one prompt")
        if self.device not in get_args(DeviceName):
            raise InvalidParameterError(f"device is {self.device!r}; it must be auto, cpu or cuda")
        if self.engine.dtype != self.training.dtype:
            raise InvalidParameterError(
                f"dtype is {self.training.dtype!r} in training and {self.engine.dtype!r} in serving; a draft learns "
                "from the features it will be served with, so make them equal"
            )
        aware, served = self.training.said_quantization, self.engine.draft_quantization
        if aware and served not in ("auto", aware):
            raise InvalidParameterError(
                f"quantization_aware is {aware!r} and draft_quantization {served!r}; a head is measured as it is "
                "trained to be served, so make them equal, or leave one out"
            )

    @property
    def serving(self) -> EngineConfig:
        """Of the engine that evaluates."""
        return EngineConfig(
            dtype=self.engine.dtype,
            backend=self.engine.backend,
            quantization=self.engine.quantization,
            draft_quantization=self.engine.draft_quantization,
            speculative=SpeculativeConfig(parse_speculation("chain:1"), draft_check="off"),
        )

    @property
    def writing(self) -> DataSettings:
        """How the data is written where `data` does not name folders; also checks `data`."""
        serving = self.engine
        return DataSettings(
            target=self.target,
            output=self.output / DATA,
            data=self.data,
            num_tokens=self.num_tokens,
            exclude=self.exclude,
            engine=EngineConfig(
                dtype=serving.dtype,
                backend=serving.backend,
                quantization=serving.quantization,
                cache=CacheConfig(kv_cache_gb=WRITING_CACHE_GB),
                scheduler=SchedulerConfig(max_num_seqs=WRITING_BATCH_SIZE),
            ),
            num_threads=self.num_threads,
        )

    @property
    def data_folders(self) -> tuple[str, ...]:
        """Where the examples lie once they are written."""
        return self.data if self.writing.way == "folders" else (str(self.output / DATA),)

    def identity(self) -> dict[str, Any]:
        """What must be equal for a run to go on, by dotted names."""
        prompts = json.dumps([[prompt.category, *map(dict, prompt.messages)] for prompt in self.prompts])
        told = {
            "target": self.target,
            "data": list(self.data),
            "num_tokens": self.num_tokens if self.writing.way == "self" else None,
            "backend": self.engine.backend,
            "quantization": self.engine.quantization,
            "draft_quantization": self.engine.draft_quantization,
            "training": asdict(self.training),
            "evaluation": asdict(self.evaluation),
            "evaluation prompts": hashlib.sha256(prompts.encode()).hexdigest()[:16],
        }
        flat = by_dotted_names(json.loads(json.dumps(told)))
        return {name: value for name, value in flat.items() if name not in FREE}

    def claim_output(self) -> None:
        """Make the folder of the run, or check that it holds a run of the same settings.

        A run that was refused before it wrote anything, for a mistyped name or data that cannot be used say, binds
        nobody to its settings.

        Raises:
            InvalidParameterError: it belongs to another run, or cannot be written; the message names what differs.
        """
        here, path = self.identity(), self.output / RUN
        # The note of a process that holds the folder, and what one that was killed while it wrote `path` leaves.
        known = {path, self.output / NOTE, scratch_of(path)}
        if path.exists() and not holds_conversations(self.output / DATA):
            known.add(self.output / DATA)
        if path.exists() and set(self.output.iterdir()) - known:
            there = json.loads(path.read_text(encoding="utf-8"))
            for name in sorted(here.keys() | there.keys()):
                if here.get(name) != there.get(name):
                    raise InvalidParameterError(
                        f"{name} is {here.get(name)!r}, and the run in {self.output} was begun with "
                        f"{there.get(name)!r}; go on with that, or name another output folder"
                    )
            return
        try:
            self.output.mkdir(parents=True, exist_ok=True)
            if set(self.output.iterdir()) - known:
                raise InvalidParameterError(f"{self.output} holds other files; name an empty folder, or a new one")
            write_atomically(path, (json.dumps(here, indent=1) + "\n").encode())
        except OSError as error:
            raise InvalidParameterError(f"{self.output} cannot be written: {error.strerror}; name another") from None
