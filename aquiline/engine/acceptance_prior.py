"""What is expected of a draft before anything was seen of it, for every class of requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from aquiline.errors import InvalidParameterError
from aquiline.request import SamplingParams

MAX_LEARNT_DEPTH = 8
MAX_LEARNT_RANK = 8
DEPTH_FACTOR = 0.95
# Measured with the first head: at temperature 1 the best 1, 2 and 4 children of the root hold the target's token in
# .34, .46 and .57 of the steps, and in .45, .62 and .71 at temperature 0. This factor on each rate gives .34, .47, .54.
SAMPLED_FACTOR = 0.76
# Children that a grammar forbids are no longer proposed, so the others come up in rank: chains of 1 and 3 committed 1.5
# and 1.88 tokens instead of 1.45 and 1.71.
GUIDED_FACTOR = 1.1
MOST_CERTAIN = 0.98


class RequestClass(IntEnum):
    """Requests of a class are alike in how often drafts are accepted; what is learnt of one says nothing of others."""

    GREEDY = 0
    SAMPLED = 1
    GUIDED = 2


def class_of(params: SamplingParams) -> RequestClass:
    """The class of a request: guided ones see masks in target and draft, sampled ones noise."""
    if params.guided is not None:
        return RequestClass.GUIDED
    return RequestClass.SAMPLED if params.temperature > 0.0 else RequestClass.GREEDY


def has_hidden_rules(params: SamplingParams) -> bool:
    """Whether rules that the draft cannot see bend what the target draws, so that acceptance says little of others."""
    return (
        params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
        or bool(params.logit_bias)
        or params.allowed_token_ids is not None
        or bool(params.banned_token_ids)
    )


@dataclass(frozen=True)
class AcceptancePrior:
    """What is expected of a draft before anything was seen of it.

    Attributes:
        depth_rank: rate of each rank, best first, for every depth from 1; deeper ones fall by DEPTH_FACTOR each.
    """

    depth_rank: tuple[tuple[float, ...], ...] = ((0.55, 0.12, 0.06, 0.04, 0.03, 0.02, 0.015, 0.01),)

    def __post_init__(self) -> None:
        is_sound = bool(self.depth_rank) and all(
            row and all(0.0 <= rate <= 1.0 for rate in row) and sum(row) <= 1.0 + 1e-6 for row in self.depth_rank
        )
        if not is_sound:
            raise InvalidParameterError(
                f"the acceptance prior is {self.depth_rank}; it must hold rates by depth and rank, which lie between 0"
                " and 1 and add up to at most 1 at each depth"
            )

    def rows(self) -> list[list[float]]:
        """Rates of every learnt depth and rank."""
        found: list[list[float]] = []
        for depth in range(MAX_LEARNT_DEPTH):
            if depth < len(self.depth_rank):
                given = self.depth_rank[depth][:MAX_LEARNT_RANK]
                found.append([*given, *[0.0] * (MAX_LEARNT_RANK - len(given))])
            else:
                found.append([rate * DEPTH_FACTOR for rate in found[-1]])
        return found

    def times(self, factor: float) -> AcceptancePrior:
        """All rates by a factor, as far as their sum at a depth stays possible.

        Worked example, rates .8 and .15 by 1.1: their sum may be no more than .98, so .825 and .155.
        """
        scaled = []
        for row in self.depth_rank:
            total = sum(row)
            most = max(total, MOST_CERTAIN)
            bound = min(factor, most / total) if total > 0.0 else 1.0
            scaled.append(tuple(rate * bound for rate in row))
        return AcceptancePrior(tuple(scaled))


@dataclass(frozen=True)
class AcceptancePriors:
    """A prior for each class.

    Attributes:
        greedy: at temperature 0.
        sampled: above it; None: the greedy one times SAMPLED_FACTOR.
    """

    greedy: AcceptancePrior = field(default_factory=AcceptancePrior)
    sampled: AcceptancePrior | None = None

    def of(self, request_class: RequestClass) -> AcceptancePrior:
        """The prior of a class; that of guided requests is the greedy one times GUIDED_FACTOR."""
        if request_class is RequestClass.GREEDY:
            return self.greedy
        if request_class is RequestClass.GUIDED:
            return self.greedy.times(GUIDED_FACTOR)
        return self.sampled or self.greedy.times(SAMPLED_FACTOR)
