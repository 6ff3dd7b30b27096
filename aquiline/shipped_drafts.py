"""Draft models that come with Aquiline."""

from __future__ import annotations

from pathlib import Path

from aquiline.errors import ModelNotFoundError

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
