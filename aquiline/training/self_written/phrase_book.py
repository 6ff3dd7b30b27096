"""The phrases from which user turns are made: files of templates, topics and beginnings beside this one."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from importlib import resources

ENGLISH = "English"
OTHER_LANGUAGES = ("French", "Spanish", "German", "Italian")


@functools.cache
def phrase_book(name: str) -> Mapping[str, tuple[str, ...]]:
    """The lists of `phrases/NAME.toml` by name.

    A template has slots in braces, such as `{topic}`, that `filling.py` fills; a beginning is continued by the target.
    """
    text = resources.files(__package__).joinpath("phrases", f"{name}.toml").read_text(encoding="utf-8")
    return {key: tuple(phrases) for key, phrases in tomllib.loads(text).items()}
