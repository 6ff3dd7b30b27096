"""Where draft models lie: those that come with Aquiline, and those that are named."""

from __future__ import annotations

import os
from pathlib import Path

from aquiline.errors import ModelFormatError, ModelNotFoundError
from aquiline.model_store import resolve_model

_PACKAGE = Path(__file__).resolve().parent


def shipped_draft(name: str) -> Path:
    """Folder of a shipped draft: inside an installed package, or beside the package in a source tree.

    Raises:
        ModelNotFoundError: this installation has none under that name.
    """
    for folder in (_PACKAGE / "drafts" / name, _PACKAGE.parent / "drafts" / name):
        if folder.is_dir():
            return folder
    raise ModelNotFoundError(
        f"the draft {name!r} is missing from this installation of Aquiline; reinstall it, or use --draft none"
    )


def resolve_draft(name: str) -> Path:
    """The folder that a `--draft` value other than `auto` and `none` stands for.

    Raises:
        ModelNotFoundError: nothing under that name.
        ModelFormatError, DownloadError: it is a file; or as for `resolve_model`.
    """
    if os.path.isfile(name):
        raise ModelFormatError(f"{name} is a file; a draft is a folder with config.json and its weights")
    try:
        return resolve_model(name)
    except ModelNotFoundError as error:
        if name and Path(name).expanduser().is_dir():
            raise ModelNotFoundError(
                f"the folder {name} is no draft, for it has no config.json; name a folder with config.json and weights"
            ) from error
        raise ModelNotFoundError(
            f"no draft {name!r} here or on the hub; a draft is a folder with config.json and weights, or a hub id such "
            "as org/name; auto is the one that comes with a known model"
        ) from error
