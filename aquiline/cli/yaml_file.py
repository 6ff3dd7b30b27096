"""Settings from YAML files, each with the line it stands on; whatever is not understood is refused with that line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from aquiline.errors import InvalidParameterError

# YAML 1.1 takes 1e-3 for a text, which nobody means.
FLOAT = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+")


@dataclass(frozen=True)
class YamlEntry:
    """A value and where it stands.

    Attributes:
        place: file and line, for messages.
    """

    value: Any
    place: str


def read_yaml(path: str) -> dict[str, YamlEntry]:
    """The settings of a file.

    Raises:
        InvalidParameterError: the file cannot be read, is not YAML, is not a mapping, or names a setting twice.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidParameterError(f"--config {path!r} cannot be read: {error.strerror}; name a YAML file") from None
    except UnicodeDecodeError:
        raise InvalidParameterError(f"--config {path!r} is not UTF-8; save it as UTF-8") from None
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return {}
        for node in _mappings(root):
            _check_keys(path, node)
        if not isinstance(root, yaml.MappingNode):
            raise InvalidParameterError(
                f"{_place(path, root)}: a mapping of settings is expected, such as target: NAME"
            )
        return {
            key.value: YamlEntry(loader.construct_object(value, deep=True), _place(path, key))
            for key, value in root.value
        }
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path} line {mark.line + 1}" if mark is not None else path
        raise InvalidParameterError(f"{place} is not YAML: {getattr(error, 'problem', None) or error}") from None
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):
    """Plain values only, and 1e-3 is a number."""


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+0123456789"))


def _mappings(node: yaml.Node) -> Iterator[yaml.MappingNode]:
    """All mappings below a node, itself included."""
    if isinstance(node, yaml.MappingNode):
        yield node
        for _, value in node.value:
            yield from _mappings(value)
    elif isinstance(node, yaml.SequenceNode):
        for entry in node.value:
            yield from _mappings(entry)


def _check_keys(path: str, node: yaml.MappingNode) -> None:
    seen: dict[str, str] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
            raise InvalidParameterError(f"{_place(path, key)}: a setting's name must be a text")
        if key.value in seen:
            raise InvalidParameterError(f"{_place(path, key)}: {key.value} is given twice, first in {seen[key.value]}")
        seen[key.value] = f"line {key.start_mark.line + 1}"


def _place(path: str, node: yaml.Node) -> str:
    return f"{path} line {node.start_mark.line + 1}"
