"""A deterministic automaton for a regular expression, and the grammar that it is.

A grammar with one rule per state has one way to read any text, so a mask costs the same after a thousand characters
as after one, whatever the pattern: `(a*)*` written as nested rules costs more with every character.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from aquiline.engine.character_sets import CharacterSet
from aquiline.engine.grammar_characters import character_class
from aquiline.engine.regex_parser import Alternatives, Characters, Regex, Repeated, Sequenced
from aquiline.errors import InvalidParameterError


@dataclass(frozen=True, slots=True)
class RegexLimits:
    """How large an automaton may become, and a schema around some.

    Attributes:
        num_places: parts of the expression, written out without counts.
        work: places that states stand for and lead to, all together.
        schema_work: what a JSON schema comes to beyond its own length, see `ReadSchema`.
    """

    num_places: int
    work: int
    schema_work: int


LARGE = RegexLimits(num_places=50_000, work=500_000, schema_work=2**31)
SMALL = RegexLimits(num_places=2_000, work=20_000, schema_work=2_000)


class WorkLimitError(InvalidParameterError):
    """An automaton larger than its limits; larger limits might do."""


@dataclass
class _Places:
    """The expression as a graph: a place has one character to the next place, or goes on to others without one."""

    kind: str
    most: int
    characters: list[CharacterSet | None] = field(default_factory=list)
    targets: list[list[int]] = field(default_factory=list)

    def add(self, characters: CharacterSet | None, targets: list[int]) -> int:
        if len(self.targets) == self.most:
            raise WorkLimitError(
                f"the {self.kind} is too large: written out without counts it has more than {self.most} parts"
            )
        self.characters.append(characters)
        self.targets.append(targets)
        return len(self.targets) - 1

    def build(self, regex: Regex, target: int) -> int:
        """The place where `regex` begins, if `target` is where it leads."""
        if isinstance(regex, Characters):
            return self.add(regex.allowed, [target])
        if isinstance(regex, Sequenced):
            for part in reversed(regex.parts):
                target = self.build(part, target)
            return target
        if isinstance(regex, Alternatives):
            return self.add(None, [self.build(option, target) for option in regex.options])
        return self._build_repeated(regex, target)

    def _build_repeated(self, regex: Repeated, target: int) -> int:
        start = target
        if regex.most is None:
            start = self.add(None, [target])
            self.targets[start].append(self.build(regex.part, start))
        else:
            for _ in range(regex.most - regex.least):
                start = self.add(None, [self.build(regex.part, start), target])
        for _ in range(regex.least):
            start = self.build(regex.part, start)
        return start

    def keep_live(self, end: int) -> None:
        """Leave out the ways to places from where the end cannot be reached."""
        sources: list[list[int]] = [[] for _ in self.targets]
        for place, targets in enumerate(self.targets):
            for target in targets:
                sources[target].append(place)
        live, waiting = {end}, [end]
        while waiting:
            fresh = [source for source in sources[waiting.pop()] if source not in live]
            live.update(fresh)
            waiting += fresh
        self.targets = [[target for target in targets if target in live] for targets in self.targets]

    def closure(self, places: Sequence[int], end: int) -> frozenset[int]:
        """Those places with a character, and the end, that are reached without one."""
        found: set[int] = set()
        waiting, seen = list(places), set(places)
        while waiting:
            place = waiting.pop()
            if place == end or (self.characters[place] is not None and self.targets[place]):
                found.add(place)
                continue
            fresh = [target for target in self.targets[place] if target not in seen]
            seen.update(fresh)
            waiting += fresh
        return frozenset(found)


def regex_rules(regex: Regex, kind: str, name: str, limits: RegexLimits = LARGE) -> list[str]:
    """EBNF of the texts that an expression matches, one rule per state; the rule `name`0 matches a whole text.

    Args:
        kind: what it is, for messages.

    Raises:
        WorkLimitError: too large an automaton.
        InvalidParameterError: nothing matches.
    """
    places = _Places(kind, limits.num_places)
    end = places.add(None, [])
    first = places.build(regex, end)
    places.keep_live(end)
    start = places.closure([first], end)
    if not start:
        raise InvalidParameterError(f"the {kind} asks for characters that cannot be written, so that no text fits it")
    numbers = {start: 0}
    waiting, rules, work = [start], [], 0
    while waiting:
        state = waiting.pop()
        steps = _steps(places, state, end)
        work += len(state) + sum(len(target) for _, target in steps)
        if work > limits.work:
            raise WorkLimitError(
                f"the {kind} is too large: it can stand in too many places at once; use fewer or smaller counts, and"
                " alternatives that begin with different characters"
            )
        options: dict[frozenset[int], list[tuple[int, int]]] = {}
        for interval, target in steps:
            options.setdefault(target, []).append(interval)
            if target not in numbers:
                numbers[target] = len(numbers)
                waiting.append(target)
        texts = [
            f"{character_class(CharacterSet(tuple(intervals)))} {name}{numbers[target]}"
            for target, intervals in options.items()
        ]
        texts += ['""'] if end in state else []
        rules.append(f"{name}{numbers[state]} ::= {' | '.join(texts)}")
    return rules


def _steps(places: _Places, state: frozenset[int], end: int) -> list[tuple[tuple[int, int], frozenset[int]]]:
    """Where each interval of characters leads, intervals rising and disjoint."""
    # At each edge some places begin or end to be reached.
    edges: dict[int, list[tuple[int, int]]] = {}
    for place in state:
        characters = places.characters[place]
        if characters is None:  # The end.
            continue
        for first, last in characters.ranges:
            edges.setdefault(first, []).append((places.targets[place][0], 1))
            edges.setdefault(last + 1, []).append((places.targets[place][0], -1))
    steps: list[tuple[tuple[int, int], frozenset[int]]] = []
    counts: dict[int, int] = {}
    closures: dict[frozenset[int], frozenset[int]] = {}
    for edge, following in pairwise(sorted(edges)):
        for target, change in edges[edge]:
            counts[target] = counts.get(target, 0) + change
        reached = frozenset(target for target, count in counts.items() if count)
        if reached:
            if reached not in closures:
                closures[reached] = places.closure(tuple(reached), end)
            steps.append(((edge, following - 1), closures[reached]))
    return steps
