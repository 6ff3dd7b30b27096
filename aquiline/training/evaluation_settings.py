"""How heads are measured while they are trained."""

from __future__ import annotations

from dataclasses import dataclass

from aquiline.errors import InvalidParameterError


@dataclass(frozen=True)
class EvaluationSettings:
    """How heads are measured.

    Attributes:
        max_tokens: most tokens of an answer.
        max_depth: depth of the served chain, and of all trees.
        num_ranks: children of a node that the search for trees considers.
        tree_sizes: draft tokens of the trees that are searched; the largest is served.
        batch_size: answers that are served together; acceptance does not depend on it.
    """

    max_tokens: int = 96
    max_depth: int = 5
    num_ranks: int = 8
    tree_sizes: tuple[int, ...] = (2, 3, 4, 6, 8, 12, 16)
    batch_size: int = 16

    def __post_init__(self) -> None:
        for name, lowest, highest in (("max_tokens", 3, 65536), ("max_depth", 1, 16), ("num_ranks", 1, 10)):
            if not lowest <= getattr(self, name) <= highest:
                raise InvalidParameterError(
                    f"{name} is {getattr(self, name)}; it must be an integer from {lowest} to {highest}"
                )
