"""What `--speculate` accepts: the shapes of draft trees, as integers.

Nodes are numbered root first, each behind its parent and its elder sibling, so that every prefix of the numbering is
itself a tree. What is typed is numbered level by level; the planner numbers the most promising node first, so that a
prefix is the best tree of its size.

Worked example, `tree:2x1` (two children of the root, one child of each):

    node       0   1   2   3   4
    path       -   0   1  00  10        child ranks from the root
    parents   -1   0   0   1   2
    depths     0   1   1   2   2
    ranks      0   0   1   0   0
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from aquiline.errors import InvalidParameterError

MAX_DRAFT_TOKENS = 256
MAX_DEPTH = 32
FORMS = "off, auto, chain:4, tree:4x2x1, paths:0,1,00,01 or dynamic:steps=5,topk=4,nodes=16"


@dataclass(frozen=True)
class StaticTree:
    """A tree whose shape is fixed before anything is drawn.

    Attributes:
        parents: parent of every node, -1 for the root.
        ranks: rank of every node among its siblings, 0 is the draft's first choice.
    """

    parents: tuple[int, ...]
    ranks: tuple[int, ...]

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Distance of every node from the root."""
        depths = [0]
        for parent in self.parents[1:]:
            depths.append(depths[parent] + 1)
        return tuple(depths)

    @property
    def num_draft_tokens(self) -> int:
        return len(self.parents) - 1

    @cached_property
    def depth(self) -> int:
        return max(self.depths)

    @cached_property
    def num_children(self) -> tuple[int, ...]:
        """Of every node."""
        counts = [0] * len(self.parents)
        for parent in self.parents[1:]:
            counts[parent] += 1
        return tuple(counts)

    @cached_property
    def levels(self) -> tuple[tuple[int, ...], ...]:
        """Node ids of every level, the root's first."""
        return tuple(
            tuple(node for node, depth in enumerate(self.depths) if depth == level) for level in range(self.depth + 1)
        )

    @cached_property
    def level_widths(self) -> tuple[int, ...]:
        """Nodes with children on every level, the root's first: those that the draft model runs."""
        return tuple(sum(self.num_children[node] > 0 for node in level) for level in self.levels[:-1])

    @cached_property
    def _prefixes(self) -> dict[int, StaticTree]:
        return {}

    def truncated(self, max_draft_tokens: int) -> StaticTree:
        """The first `max_draft_tokens` nodes below the root; itself when it is no larger."""
        if max_draft_tokens >= self.num_draft_tokens:
            return self
        prefix = self._prefixes.get(max_draft_tokens)
        if prefix is None:
            prefix = StaticTree(self.parents[: max_draft_tokens + 1], self.ranks[: max_draft_tokens + 1])
            self._prefixes[max_draft_tokens] = prefix
        return prefix

    def num_within(self, max_depth: int) -> int:
        """How many nodes below the root come before the first that lies deeper than `max_depth`."""
        for node, depth in enumerate(self.depths):
            if depth > max_depth:
                return node - 1
        return self.num_draft_tokens


@dataclass(frozen=True)
class DynamicTree:
    """An EAGLE-2 tree: the draft's own confidence decides its shape (EAGLE-2, arXiv 2406.16858, section 4).

    Attributes:
        steps: depth, and the number of draft levels.
        topk: children proposed per node, and nodes expanded per level.
        num_draft_tokens: nodes kept at most after re-ranking, the root not counted.
        least_survival: a node whose survival, the product of the confidences from the root's child down to it, is below
            this is neither expanded nor kept, and one as deep as its request may have any is not expanded; 0: all nodes
            are good enough, and trees grow to full depth.
    """

    steps: int
    topk: int
    num_draft_tokens: int
    least_survival: float = 0.0

    @property
    def depth(self) -> int:
        return self.steps

    def truncated(self, max_draft_tokens: int) -> DynamicTree:
        """The same tree keeping at most `max_draft_tokens` nodes."""
        if max_draft_tokens >= self.num_draft_tokens:
            return self
        steps = min(self.steps, max(1, max_draft_tokens))
        return DynamicTree(steps, self.topk, max_draft_tokens, self.least_survival)


TreeShape = StaticTree | DynamicTree
NO_TREE = StaticTree((-1,), (0,))


def max_children(shape: TreeShape) -> int:
    """Most children of one node of a shape."""
    return max(shape.ranks) + 1 if isinstance(shape, StaticTree) else shape.topk


@dataclass(frozen=True)
class SpeculationMode:
    """A parsed `--speculate` value: `off`, `auto`, or one shape for every step."""

    text: str
    shape: TreeShape | None = None

    @property
    def is_off(self) -> bool:
        return self.text == "off"

    @property
    def is_auto(self) -> bool:
        return self.text == "auto"


def chain(num_steps: int) -> StaticTree:
    """A tree of one node per level."""
    return tree_from_branching([1] * num_steps)


def tree_from_branching(branching: list[int]) -> StaticTree:
    """A full tree in which every node of level i has `branching[i]` children."""
    parents, ranks, frontier = [-1], [0], [0]
    for width in branching:
        grown = []
        for parent in frontier:
            for rank in range(width):
                grown.append(len(parents))
                parents.append(parent)
                ranks.append(rank)
        frontier = grown
    return StaticTree(tuple(parents), tuple(ranks))


def tree_from_paths(paths: list[tuple[int, ...]]) -> StaticTree:
    """A tree from its nodes as paths of child ranks.

    Raises:
        InvalidParameterError: a node without its parent or its elder sibling, or named twice.
    """
    ordered = sorted(paths, key=lambda path: (len(path), path))
    node_of: dict[tuple[int, ...], int] = {(): 0}
    parents, ranks = [-1], [0]
    for path in ordered:
        elder = (*path[:-1], path[-1] - 1)
        if path in node_of:
            raise InvalidParameterError(f"the path {_spell(path)} is named twice")
        if path[:-1] not in node_of or (path[-1] > 0 and elder not in node_of):
            needed = path[:-1] if path[:-1] not in node_of else elder
            raise InvalidParameterError(f"the path {_spell(path)} needs the path {_spell(needed)} beside it")
        node_of[path] = len(parents)
        parents.append(node_of[path[:-1]])
        ranks.append(path[-1])
    return StaticTree(tuple(parents), tuple(ranks))


def spelt(shape: TreeShape) -> str:
    """The shape as `--speculate` takes it; its nodes may be numbered in any order."""
    if isinstance(shape, DynamicTree):
        cut = f",survival={shape.least_survival:.12f}".rstrip("0") if shape.least_survival else ""
        return f"dynamic:steps={shape.steps},topk={shape.topk},nodes={shape.num_draft_tokens}{cut}"
    if shape.num_draft_tokens == 0:
        return "off"
    if shape.depth == shape.num_draft_tokens:
        return f"chain:{shape.depth}"
    paths: list[tuple[int, ...]] = [()]
    for parent, rank in zip(shape.parents[1:], shape.ranks[1:], strict=True):
        paths.append((*paths[parent], rank))
    return "paths:" + ",".join(map(_spell, sorted(paths[1:], key=lambda path: (len(path), path))))


def parse_speculation(text: str, name: str = "--speculate") -> SpeculationMode:
    """Parse a `--speculate` value.

    Args:
        name: what errors call it.

    Raises:
        InvalidParameterError: not one of the forms, or too large.
    """
    if not isinstance(text, str):
        raise InvalidParameterError(f"{name} is {text!r}; it must be {FORMS}")
    if text in ("off", "auto"):
        return SpeculationMode(text)
    kind, _, rest = text.partition(":")
    parsers = {"chain": _parse_chain, "tree": _parse_tree, "paths": _parse_paths, "dynamic": _parse_dynamic}
    if kind not in parsers or not rest:
        raise InvalidParameterError(f"{name} is {text!r}; it must be {FORMS}")
    try:
        shape = parsers[kind](rest)
    except InvalidParameterError as error:
        raise InvalidParameterError(f"{name} is {text!r}: {error}") from None
    return SpeculationMode(text, shape)


def _parse_chain(rest: str) -> TreeShape:
    return chain(_number(rest, "the number of steps", MAX_DEPTH))


def _parse_tree(rest: str) -> TreeShape:
    branching = [_number(part, "a branching factor", MAX_DRAFT_TOKENS) for part in rest.split("x")]
    total, width = 0, 1
    for factor in branching:
        width *= factor
        total += width
        if total > MAX_DRAFT_TOKENS or len(branching) > MAX_DEPTH:
            raise InvalidParameterError(f"at most {MAX_DRAFT_TOKENS} nodes and {MAX_DEPTH} levels are allowed")
    return tree_from_branching(branching)


def _parse_paths(rest: str) -> TreeShape:
    parts = rest.split(",")
    if not all(re.fullmatch(r"[0-9]+", part) for part in parts):
        raise InvalidParameterError("paths are child ranks written as digits, for example 0,1,00")
    if len(parts) > MAX_DRAFT_TOKENS or max(map(len, parts)) > MAX_DEPTH:
        raise InvalidParameterError(f"at most {MAX_DRAFT_TOKENS} nodes and {MAX_DEPTH} levels are allowed")
    return tree_from_paths([tuple(int(rank) for rank in part) for part in parts])


def _parse_dynamic(rest: str) -> TreeShape:
    limits = {"steps": MAX_DEPTH, "topk": 32, "nodes": MAX_DRAFT_TOKENS}
    values: dict[str, int] = {"steps": 5, "topk": 4, "nodes": 16}
    least_survival = 0.0
    seen = set()
    for part in rest.split(","):
        name, _, value = part.partition("=")
        if name not in (*limits, "survival") or name in seen:
            raise InvalidParameterError("it takes steps=, topk=, nodes= and survival=, each at most once")
        seen.add(name)
        if name == "survival":
            least_survival = _survival(value)
        else:
            values[name] = _number(value, name, limits[name])
    most = values["topk"] + (values["steps"] - 1) * values["topk"] ** 2
    if values["nodes"] > most:
        raise InvalidParameterError(f"{values['steps']} steps of {values['topk']} children give at most {most} nodes")
    return DynamicTree(values["steps"], values["topk"], values["nodes"], least_survival)


def _number(text: str, name: str, highest: int) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", text) or not 1 <= int(text) <= highest:
        raise InvalidParameterError(f"{name} is {text!r}; it must be an integer from 1 to {highest}")
    return int(text)


def _survival(text: str) -> float:
    if not re.fullmatch(r"0(\.[0-9]{1,12})?", text):
        raise InvalidParameterError(
            f"survival is {text!r}; it must be from 0 to below 1, with up to 12 decimals, for example 0.1"
        )
    return float(text)


def _spell(path: tuple[int, ...]) -> str:
    return "".join(map(str, path))
