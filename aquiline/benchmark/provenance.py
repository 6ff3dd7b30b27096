"""Who measured what, where, with which versions: the part of a result that makes it worth keeping."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from aquiline.engine.profile import processor_name

PACKAGES = ("aquiline", "torch", "numpy", "tokenizers", "safetensors", "gguf")


def provenance(arguments: Sequence[str]) -> dict[str, Any]:
    """What is needed to repeat a measurement.

    Args:
        arguments: the command line, without the program's name.

    Returns:
        `commit` (with `+` behind it when files have changed since; None outside a git checkout), `versions`,
        `machine`, `arguments` and `date` (UTC).
    """
    return {
        "commit": _commit(),
        "versions": {"python": platform.python_version(), **_versions()},
        "machine": {"processor": processor_name(), "num_cpus": os.cpu_count(), "system": platform.system()},
        "arguments": list(arguments),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
    }


def _commit() -> str | None:
    folder = Path(__file__).resolve().parent
    try:
        head = _git(folder, "rev-parse", "--short=12", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+" if changed else "")


def _git(folder: Path, *command: str) -> str:
    result = subprocess.run(["git", *command], cwd=folder, capture_output=True, text=True, check=True)
    return result.stdout.strip()


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
