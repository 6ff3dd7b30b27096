"""What one step would be like: the records that the planner reckons with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aquiline.engine.plan import StepLoad
from aquiline.engine.tree_families import Candidate


@dataclass(slots=True)
class Situation:
    """What all candidates of one step have in common.

    Attributes:
        skills: (skill, how many growing requests have it).
        other_seconds: of a forward over those other rows alone.
        entry_seconds: what the draft has to catch up with before trees can grow, per step of the payback time.
        key: tells one load from another.
        seconds: what is known of step times at this load, by candidate and number of nodes.
    """

    load: StepLoad
    skills: list[tuple[int, int]]
    other_seconds: float
    entry_seconds: float
    key: tuple[int, int, int]
    seconds: dict[tuple[int, int], float]


@dataclass(frozen=True, slots=True)
class Forecast:
    """What one candidate would do in a step.

    Attributes:
        expected: committed tokens of all requests.
        wait: step time per committed token, averaged over the decoding requests.
        score: larger is better, under the objective.
    """

    candidate: Candidate
    num_draft_tokens: int
    expected: float
    seconds: float
    wait: float
    score: float


def nodes_of(candidate: Candidate, skills: Sequence[tuple[int, int]]) -> int:
    """Nodes of all requests together; `skills` as in `Situation`."""
    return sum(candidate.num_draft_tokens[skill] * count for skill, count in skills)
