"""Measured costs on disk: one small JSON file for each combination of model, settings and machine.

A profile is never trusted beyond what it was measured for: the file is named by a hash of its key, carries the key in
full, and one that was written by another version, or holds another key, is measured again.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from aquiline.atomic_file import put_in_place
from aquiline.engine.cost_curve import Curve
from aquiline.engine.cost_model import CostProfile
from aquiline.errors import ModelFormatError, UserError

FORMAT = "aquiline-cost-profile"
VERSION = 3
CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class ProfileKey:
    """All that a step's time depends on, beside its size.

    Attributes:
        model, draft: what tells one model from another of other costs; draft None: none.
        kernels: instruction set of native kernels, or the version of PyTorch.
        machine: processor, number of processors and memory.
        release: version of Aquiline, whose kernels may change.
    """

    model: str
    draft: str | None
    backend: str
    quantization: str
    draft_quantization: str
    dtype: str
    kv_dtype: str
    num_threads: int
    device: str
    kernels: str
    machine: str
    release: str

    @property
    def file_name(self) -> str:
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24] + ".json"

    def difference(self, other: dict[str, Any]) -> str | None:
        """The first field in which a stored key differs; None: it is the same."""
        own = asdict(self)
        return next((name for name in own if other.get(name) != own[name]), None)


@dataclass(frozen=True)
class StoredProfile:
    """A profile and where it comes from.

    Attributes:
        num_steps: timed steps behind it.
        date: UTC.
        is_short: measured within about a second when a model was opened.
    """

    key: ProfileKey
    costs: CostProfile
    num_steps: int
    date: str
    is_short: bool


def processor_name(cpuinfo: Path = CPUINFO) -> str:
    """Name of the processor, as the system tells it; its kind where there is no name."""
    try:
        names = [line.partition(":")[2] for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
    except OSError:
        names = []
    return names[0].strip() if names else platform.processor() or platform.machine()


def machine_identity(cpuinfo: Path = CPUINFO) -> str:
    """Processor, number of processors and GiB of memory, as the system tells them."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{processor_name(cpuinfo)}, {os.cpu_count()} processors, {memory:.0f} GiB"


def save_profile(folder: Path, stored: StoredProfile) -> Path:
    """Write a profile, whole or not at all; returns where.

    Raises:
        UserError: the folder cannot be written.
    """
    content = {"format": FORMAT, "version": VERSION, **asdict(stored)}
    path = folder / stored.key.file_name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with put_in_place(path) as file:
            file.write_text(json.dumps(content, indent=1))
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; free space there, or set AQUILINE_HOME") from error
    return path


def load_profile(folder: Path, key: ProfileKey) -> StoredProfile | None:
    """The profile of a key; None where none was measured.

    Raises:
        ModelFormatError: there is one, but it is damaged, of another version, or for something else; it says what.
    """
    path = folder / key.file_name
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelFormatError(f"the cost profile {path} cannot be read: {error}; measure again") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT or content.get("version") != VERSION:
        raise ModelFormatError(f"{path} is no cost profile of version {VERSION}; measure again")
    difference = key.difference(content["key"]) if isinstance(content.get("key"), dict) else "key"
    if difference is not None:
        raise ModelFormatError(f"the cost profile {path} is for another {difference}; measure again")
    try:
        costs = _costs(content["costs"])
        return StoredProfile(key, costs, int(content["num_steps"]), str(content["date"]), content["is_short"] is True)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFormatError(f"the cost profile {path} is damaged ({error}); measure again") from error


def _costs(content: dict[str, Any]) -> CostProfile:
    values: dict[str, Any] = {}
    for field in fields(CostProfile):
        value = content[field.name]
        values[field.name] = _curve(value) if isinstance(value, dict) else _seconds(value)
    return CostProfile(**values)


def _curve(content: dict[str, Any]) -> Curve:
    rows = tuple(int(count) for count in content["rows"])
    seconds = tuple(_seconds(value) for value in content["seconds"])
    if not rows or len(rows) != len(seconds) or sorted(set(rows)) != list(rows) or sorted(seconds) != list(seconds):
        raise ValueError("a curve does not rise")
    return Curve(rows, seconds)


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < math.inf:
        raise ValueError(f"{value!r} is no time")
    return float(value)
