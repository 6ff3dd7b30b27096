"""Argument parsing that complains on one line, and options described by the records they fill."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from aquiline.cli.other_names import meant_option
from aquiline.cli.output import write
from aquiline.errors import InvalidParameterError


class LineParser(argparse.ArgumentParser):
    """An ArgumentParser that raises InvalidParameterError instead of printing usage and leaving."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)
        self.typed: set[str] = set()
        for name in (None, "store"):
            self.register("action", name, StoreOnce)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """As the base class, but the parser that meets unknown arguments complains, so that the right help is named."""
        self.typed.clear()
        namespace, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._meant(unknown[0])}")
        return namespace, unknown

    def _meant(self, unknown: str) -> str:
        """What an argument that nobody knows was probably meant to be, or nothing."""
        options = {*self._option_string_actions, *(str(action.metavar) for action in self._get_positional_actions())}
        if not unknown.startswith("-"):
            return "; a text to answer is given as --prompt TEXT" if "--prompt" in options else ""
        option = meant_option(unknown, options)
        if option is None:
            return ""
        return f"; perhaps {option} is meant" + ("" if option.startswith("-") else ", without an option before it")

    def error(self, message: str) -> NoReturn:
        """Raise InvalidParameterError with `message` and the way to help."""
        if message.endswith("expected one argument"):
            message += " (a value that begins with a dash is joined on: --option=-value)"
        raise InvalidParameterError(f"{message}; see {self.prog} --help")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help or version like any other output; the base class would not notice that it cannot be written."""
        write(file or sys.stderr, message)


class StoreOnce(argparse._StoreAction):
    """Stores the value of an option, and complains about a second one instead of dropping the first."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        if self.dest in parser.typed:
            parser.error(f"{option_string} is given twice; give it once")
        parser.typed.add(self.dest)
        super().__call__(parser, namespace, values, option_string)


@dataclasses.dataclass(frozen=True)
class Option:
    """One command-line option that fills one field of a settings record.

    Attributes:
        flag: as typed, for example `--top-p`.
        field: the field of the record.
        help: one phrase; the default is added to it.
        parse: text to value; None for a switch without a value.
        metavar: how the value is written in help.
        switch_value: what a switch stores.
        is_repeatable: may be given several times, and fills the field with the list of all values.
        default: what the command line uses where it differs from the record's own default.
    """

    flag: str
    field: str
    help: str
    parse: Callable[[str], object] | None = None
    metavar: str | None = None
    switch_value: bool = True
    is_repeatable: bool = False
    default: object = None


def add_options(group: argparse._ArgumentGroup, options: Sequence[Option], records: Sequence[type]) -> None:
    """Add `options` to `group`; only those that were typed appear in the namespace, under the field's name."""
    for option in options:
        if option.parse is None:
            group.add_argument(
                option.flag,
                dest=option.field,
                action="store_const",
                const=option.switch_value,
                default=argparse.SUPPRESS,
                help=option.help,
            )
        else:
            group.add_argument(
                option.flag,
                dest=option.field,
                type=option.parse,
                metavar=option.metavar,
                action="append" if option.is_repeatable else "store",
                default=argparse.SUPPRESS,
                help=f"{option.help} ({spell_default(option, records)})",
            )


def values_given(args: argparse.Namespace, options: Sequence[Option]) -> dict[str, Any]:
    """Field name to value for the options that were typed, and for those with a command-line default of their own."""
    own_defaults = {option.field: option.default for option in options if option.default is not None}
    typed = {option.field: getattr(args, option.field) for option in options if hasattr(args, option.field)}
    return own_defaults | typed


def spell_default(option: Option, records: Sequence[type]) -> str:
    """The default of `option` in words, for help and documentation."""
    default = option.default if option.default is not None else record_defaults(records)[option.field]
    if option.is_repeatable:
        return "may be repeated"
    return "no default" if default is None else f"default {getattr(default, 'text', default)}"


def record_defaults(records: Sequence[type]) -> Mapping[str, object]:
    """Default of every field of the dataclasses `records`, by field name."""
    defaults: dict[str, object] = {}
    for record in records:
        for field in dataclasses.fields(record):
            if field.default_factory is not dataclasses.MISSING:
                defaults[field.name] = field.default_factory()
            else:
                defaults[field.name] = field.default
    return defaults


def integer(text: str) -> int:
    """Parse a whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer") from None


def integer_or_none(text: str) -> int | None:
    """Parse a whole number or the word `none`."""
    if text == "none":
        return None
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither an integer nor none") from None


def number(text: str) -> float:
    """Parse a number; ranges, nan and inf are the business of the record that receives it."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def token_bias(text: str) -> tuple[int, float]:
    """Parse `ID=VALUE`."""
    token_id, equals, bias = text.partition("=")
    try:
        if equals:
            return int(token_id), float(bias)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not ID=VALUE, for example 42=-1.5")
