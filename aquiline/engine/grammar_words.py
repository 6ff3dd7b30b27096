"""Whether a grammar has a text that ends: rules may lead to each other for ever, and an answer would never come.

root ::= "a" root            no
root ::= "a" root | "b"      yes, "b"
root ::= "a" other           yes if `other` has one
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from aquiline.errors import InvalidParameterError

_TOKEN = re.compile(
    r"""\s*(?:(?P<text>"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\])|(?P<apart>\(=|[\w.-]+\()|(?P<name>[\w.-]+)"""
    r"""|(?P<count>[*?+]|\{[0-9, -]*\})|(?P<mark>[()|]))""",
    re.DOTALL,
)
_RULE = re.compile(r"^([\w.-]+) ::= ", re.MULTILINE)


@dataclass
class _Options:
    """Alternatives; each is what it needs: names of rules, and alternatives of which one must end."""

    options: list[list[str | _Options]] = field(default_factory=lambda: [[]])

    def ends(self, ending: set[str]) -> bool:
        return any(
            all(part in ending if isinstance(part, str) else part.ends(ending) for part in option)
            for option in self.options
        )

    def names(self) -> Iterator[str]:
        for option in self.options:
            for part in option:
                yield from (part,) if isinstance(part, str) else part.names()


def require_word(text: str, kind: str) -> None:
    """Refuse a grammar without a text that ends.

    Args:
        text: as xgrammar prints it, a rule a line.
        kind: what it is, for the message.

    Raises:
        InvalidParameterError: the rule `root` has none.
    """
    places = [*_RULE.finditer(text)]
    ends = [*(place.start() for place in places[1:]), len(text)]
    rules = {place.group(1): _read(text[place.end() : end]) for place, end in zip(places, ends, strict=True)}
    if "root" not in _ending(rules):
        raise InvalidParameterError(
            f"the {kind} of guided fits no text that ends: its rules lead to each other for ever; give one of them a"
            " way out"
        )


def _ending(rules: dict[str, _Options]) -> set[str]:
    """Names of rules that have a text that ends."""
    users: dict[str, list[str]] = {}
    for name, rule in rules.items():
        for used in set(rule.names()):
            users.setdefault(used, []).append(name)
    ending: set[str] = set()
    waiting = list(rules)
    while waiting:
        name = waiting.pop()
        if name not in ending and rules[name].ends(ending):
            ending.add(name)
            waiting += users.get(name, ())
    return ending


def _read(body: str) -> _Options:
    """The body of a rule; what may be missing from a text is left out."""
    stack = [_Options()]
    # Parentheses open of what is left out: what only looks ahead, and the arguments of a macro, which is a text.
    num_apart = 0
    for token in _TOKEN.finditer(body):
        if token["mark"] == ")" and num_apart:
            num_apart -= 1
        elif num_apart:
            num_apart += token["mark"] == "(" or token["apart"] is not None
        elif token["apart"]:
            num_apart = 1
        elif token["mark"] == "(":
            stack.append(_Options())
        elif token["mark"] == ")":
            closed = stack.pop()
            stack[-1].options[-1].append(closed)
        elif token["mark"] == "|":
            stack[-1].options.append([])
        elif token["name"]:
            stack[-1].options[-1].append(token["name"])
        elif token["text"]:
            stack[-1].options[-1].append(_Options())
        elif token["count"] and (token["count"] in "*?" or re.match(r"\{0*[,}]", token["count"])):
            stack[-1].options[-1].pop()
    return stack[0]
