"""Options from a YAML file: its keys are the options without dashes in front, and the command line wins."""

from __future__ import annotations

import argparse
import json
from typing import Any

import yaml

from aquiline.cli.other_names import meant_key
from aquiline.cli.parser import LineParser
from aquiline.errors import InvalidParameterError


def read_config(path: str) -> dict[str, Any]:
    """The mapping in a YAML file, keys with underscores in place of dashes.

    Raises:
        InvalidParameterError: the file cannot be read, is no YAML, or holds no mapping of names.
    """
    try:
        with open(path, encoding="utf-8") as file:
            values = yaml.load(file, Loader=_StrictLoader)
    except OSError as error:
        raise InvalidParameterError(f"--config {path!r} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidParameterError(f"--config {path!r} is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise InvalidParameterError(f"--config {path!r} must hold option names and values, for example `port: 8000`")
    return values


def fill_from_config(parser: LineParser, args: argparse.Namespace, path: str) -> None:
    """Set every option that `path` names and the command line does not.

    Raises:
        InvalidParameterError: as `read_config`, or a name or value that the command does not take.
    """
    actions = {_name(action): action for action in parser._actions if _name(action) not in ("help", "config")}
    for key, value in read_config(path).items():
        name = key.replace("-", "_")
        if name not in actions:
            meant = meant_key(key, actions)
            hint = f"; perhaps {meant.replace('_', '-')} is meant" if meant else ""
            raise InvalidParameterError(
                f"--config {path!r} sets {key!r}, which is no option{hint}; see {parser.prog} --help"
            )
        action = actions[name]
        if _is_typed(parser, args, action):
            continue
        try:
            setattr(args, action.dest, _value(action, value))
        except (argparse.ArgumentTypeError, ValueError, InvalidParameterError) as error:
            raise InvalidParameterError(f"--config {path!r}, {key}: {error}") from None


class _StrictLoader(yaml.SafeLoader):
    """A loader of plain data that refuses a key given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} is there twice", node.start_mark)
        return super().construct_mapping(node, deep)


def _name(action: argparse.Action) -> str:
    return action.option_strings[-1].removeprefix("--").replace("-", "_") if action.option_strings else action.dest


def _is_typed(parser: LineParser, args: argparse.Namespace, action: argparse.Action) -> bool:
    if action.default is argparse.SUPPRESS:
        return hasattr(args, action.dest)
    return action.dest in parser.typed if action.option_strings else getattr(args, action.dest) != action.default


def _value(action: argparse.Action, value: object) -> object:
    """A value of YAML as the option stores it."""
    if action.nargs == 0:
        if value is not True:
            raise ValueError("it is a switch; give true, or leave it out")
        return action.const
    if isinstance(action, argparse._AppendAction):
        return [_single(action, entry) for entry in (value if isinstance(value, list) else [value])]
    return _single(action, value)


def _single(action: argparse.Action, value: object) -> object:
    if isinstance(value, bool) or value is None or isinstance(value, list):
        raise ValueError(f"{value!r} is not a value it takes")
    text = json.dumps(value) if isinstance(value, dict) else str(value)
    convert: Any = action.type or str
    return convert(text)
