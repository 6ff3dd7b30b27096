"""Checkpoints of a run: there as a whole or not at all, and enough to go on as if nothing had happened.

OUTPUT/checkpoints/
    step-00000400/
        state.safetensors    weights, moments of the optimiser, moving averages; float32
        progress.json        how far the run is, what it was told, and where it ran
        draft/               the head in bfloat16, as engines load it
    step-00000800/
    best.json                {"checkpoint": "step-00000400"}
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from aquiline.atomic_file import sync, write_atomically
from aquiline.errors import InvalidParameterError, ModelFormatError
from aquiline.training.dotted_names import by_dotted_names

STATE = "state.safetensors"
PROGRESS = "progress.json"
DRAFT = "draft"
BEST = "best.json"
FOLDER = "checkpoints"
PARTIAL_PREFIX = ".partial-"
CHECKPOINT_NAME = re.compile(r"step-\d{8,}")
# These change how a run is kept, not what comes out of it.
FREE_SETTINGS = ("checkpoint_every", "keep_checkpoints", "label_cache_gb", "label_folder")


@dataclass
class Progress:
    """How far a run is.

    Attributes:
        stage: number of the stage that runs, from 0; the number of stages when all have run.
        epoch: pass over the data.
        step_in_epoch: optimiser steps done in it.
        num_steps: optimiser steps done in all.
        num_tokens: trained tokens in all, each counted as often as it was visited.
        stage_tokens: the same in this stage.
        watch: state of `DivergenceWatch`.
    """

    stage: int = 0
    epoch: int = 0
    step_in_epoch: int = 0
    num_steps: int = 0
    num_tokens: int = 0
    stage_tokens: int = 0
    watch: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read.

    Attributes:
        state: as `DraftOptimiser.state` gave it.
    """

    folder: Path
    progress: Progress
    state: Mapping[str, Tensor]


class CheckpointFolder:
    """The checkpoints of one run.

    Args:
        output: folder of the run; made where it does not exist.
        identity: what the run was told and what it runs on, ready for JSON; a run is only continued by its equal.
        keep: newest checkpoints that stay, besides the best.
    """

    def __init__(self, output: Path, identity: Mapping[str, Any], keep: int) -> None:
        self._folder = output / FOLDER
        self._identity = json.loads(json.dumps(identity))
        self._keep = keep

    @property
    def newest(self) -> Path | None:
        """The checkpoint that a run goes on from."""
        found = self._all()
        return found[-1] if found else None

    @property
    def best(self) -> Path | None:
        """The checkpoint that was marked as the best."""
        path = self._folder / BEST
        if not path.exists():
            return None
        folder = self._folder / str(_read_json(path).get("checkpoint"))
        return folder if folder.is_dir() else None

    def mark_best(self, checkpoint: Path) -> None:
        """Keep a checkpoint, and name it as the best; the one before loses that place."""
        write_atomically(self._folder / BEST, json.dumps({"checkpoint": checkpoint.name}).encode())

    def write(
        self,
        progress: Progress,
        state: Mapping[str, Tensor],
        export: Callable[[Path], None],
        provenance: Mapping[str, Any],
    ) -> Path:
        """Write a checkpoint and drop old ones.

        Args:
            export: writes the draft into the folder it is given.
            provenance: where and with what it ran, ready for JSON.

        Raises:
            InvalidParameterError: the folder cannot be written.
        """
        name = f"step-{progress.num_steps:08d}"
        final, partial = self._folder / name, self._folder / f"{PARTIAL_PREFIX}{name}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for old in self._folder.glob(f"{PARTIAL_PREFIX}*"):
                shutil.rmtree(old)
            partial.mkdir()
            save_file({key: tensor.cpu().contiguous() for key, tensor in state.items()}, partial / STATE)
            export(partial / DRAFT)
            content = {"progress": asdict(progress), "identity": self._identity, "provenance": dict(provenance)}
            (partial / PROGRESS).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
            for path in [*partial.rglob("*"), partial]:
                sync(path)
            if final.exists():
                shutil.rmtree(final)
            os.rename(partial, final)
            sync(self._folder)
        except (OSError, SafetensorError) as error:
            raise InvalidParameterError(
                f"the checkpoint cannot be written to {self._folder}: {error}; make room or name another folder"
            ) from None
        self._prune()
        return final

    def read_newest(self) -> Checkpoint | None:
        """What a run goes on from; None at its beginning.

        Raises:
            InvalidParameterError: the checkpoint belongs to a run that was told other things.
            ModelFormatError: it is damaged.
        """
        folder = self.newest
        if folder is None:
            return None
        content = _read_json(folder / PROGRESS)
        self._compare(content.get("identity"), folder)
        try:
            return Checkpoint(folder, Progress(**content["progress"]), load_file(folder / STATE))
        except (OSError, SafetensorError, KeyError, TypeError) as error:
            raise _damaged(folder, error) from None

    def _all(self) -> list[Path]:
        if not self._folder.is_dir():
            return []
        names = [path for path in self._folder.iterdir() if CHECKPOINT_NAME.fullmatch(path.name) and path.is_dir()]
        return sorted(names, key=lambda path: int(path.name.removeprefix("step-")))

    def _prune(self) -> None:
        best = self.best
        for folder in self._all()[: -self._keep]:
            if folder != best:
                # Renamed first: what is left of an interrupted removal is no checkpoint any more.
                doomed = folder.with_name(f"{PARTIAL_PREFIX}{folder.name}")
                os.rename(folder, doomed)
                shutil.rmtree(doomed)

    def _compare(self, found: object, folder: Path) -> None:
        here, there = by_dotted_names(self._identity), by_dotted_names(found)
        for name in dict.fromkeys([*here, *there]):
            if here.get(name) != there.get(name) and name.rpartition(".")[2] not in FREE_SETTINGS:
                raise InvalidParameterError(
                    f"{name} is {here.get(name)!r}, and the run in {folder.parent.parent} was begun with "
                    f"{there.get(name)!r}; go on with that, or name another output folder"
                )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from None
    if not isinstance(content, dict):
        raise _damaged(path, "no object")
    return content


def _damaged(path: Path, reason: object) -> ModelFormatError:
    return ModelFormatError(f"{path} is damaged ({reason}); delete it to go on from the checkpoint before it")
