"""When a draft model need not add to what was looked up: judged by what its trees lately cost and brought."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from aquiline.engine.acceptance import SKILLS, USUAL_SKILL
from aquiline.engine.forecast import Forecast
from aquiline.engine.host_tree import HostTree
from aquiline.engine.planner import AutoPlanner
from aquiline.engine.planner_candidates import Candidate
from aquiline.engine.row_worth import RowCosts, StepBase
from aquiline.request import Request
from aquiline.speculation import StaticTree

# Halvings of an interval; what is left of it is no share of a token that anybody could see.
HALVINGS = 20
# A looked-up child of the root must be so many times as likely as the draft model's own. What is right of the others is
# mostly what the draft model finds too, so they add less than they promise.
SURER_THAN_DRAFT = 1.2


@dataclass(frozen=True, slots=True)
class DraftOutlook:
    """The tree that the draft model would grow for a request.

    Attributes:
        num_draft_tokens: its nodes; a mean, where trees end where the draft has no confidence.
        survivals: how likely its node of each depth on the accepted path is there, depth 1 first.
        level_widths: likewise, nodes with children on every level.
    """

    num_draft_tokens: float
    survivals: tuple[float, ...]
    level_widths: tuple[float, ...]

    @classmethod
    def of(cls, candidate: Candidate, kind: int) -> DraftOutlook:
        """That of a shape, for a request of some kind."""
        size, gain = candidate.num_draft_tokens[kind], candidate.expected[kind] - 1.0
        shape = candidate.shape.truncated(size)
        if isinstance(shape, StaticTree):
            return cls(size, even_survivals(gain, shape.depth), shape.level_widths)
        return cls(candidate.mean_nodes[kind], even_survivals(gain, shape.depth), candidate.mean_level_rows)

    @property
    def gain(self) -> float:
        """Tokens that it is expected to bring where nothing was looked up."""
        return sum(self.survivals)

    def gain_beside(self, tree: HostTree) -> float:
        """Tokens that it is expected to bring beside a looked-up tree: where that one fails.

        Worked example: the draft's child is right in .5 of all cases and a looked-up one in .8; where they err
        independently, the draft adds .5 * (1 - .8) = .1 tokens.
        """
        found = [0.0] * len(self.survivals)
        for survival, depth in zip(tree.survivals, tree.depths, strict=True):
            if depth <= len(found):
                found[depth - 1] += survival
        return sum(own * max(0.0, 1.0 - known) for own, known in zip(self.survivals, found, strict=True))


@lru_cache(maxsize=256)
def even_survivals(gain: float, depth: int) -> tuple[float, ...]:
    """Survivals of `depth` levels that fall by one factor from level to level and add up to `gain`.

    Worked example, gain .75 and depth 2: .5 and .25.
    """
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        factor = (low + high) / 2.0
        if sum(factor**level for level in range(1, depth + 1)) < gain:
            low = factor
        else:
            high = factor
    return tuple(low**level for level in range(1, depth + 1))


class DraftWorth:
    """Decides which requests the draft model leaves to what was looked up.

    Args:
        planner: whose last plan tells what the draft model would do now.
    """

    def __init__(self, planner: AutoPlanner) -> None:
        self._planner = planner
        self._choice: Forecast | None = None
        self._known_version = planner.costs.version
        # By kind of request; and of the draft model, by number of trees.
        self._outlooks: dict[int, DraftOutlook] = {}
        self._seconds: dict[int, float] = {}

    def _refresh(self) -> Forecast | None:
        """The choice of the last plan; None where the planner decodes plainly, or has not planned yet."""
        last, version = self._planner.last, self._planner.costs.version
        choice = None if last is None or last.candidate.is_plain else last
        if choice is not self._choice or version != self._known_version:
            self._choice, self._known_version = choice, version
            self._outlooks.clear()
            self._seconds = {0: 0.0}
        return choice

    def _outlook(self, choice: Forecast, kind: int) -> DraftOutlook:
        outlook = self._outlooks.get(kind)
        if outlook is None:
            outlook = self._outlooks[kind] = DraftOutlook.of(choice.candidate, kind)
        return outlook

    def _usual(self, choice: Forecast, growing: Sequence[Request]) -> DraftOutlook:
        """That of a request of usual skill, of the class of the first one."""
        request_class = self._planner.estimator.kind(growing[0]) // len(SKILLS)
        return self._outlook(choice, request_class * len(SKILLS) + USUAL_SKILL)

    def _trees(self, choice: Forecast, usual: DraftOutlook, num_trees: int) -> StepBase:
        """What so many trees add to a step; rows of committed tokens are written sooner or later and do not count."""
        num_nodes = num_trees * usual.num_draft_tokens
        held = min(num_nodes, float(choice.room)) if choice.room else num_nodes
        share = held / num_nodes if num_nodes else 0.0
        seconds = self._seconds.get(num_trees)
        if seconds is None:
            # A level that fewer than one tree in two steps reaches does not count.
            widths = [rows for width in usual.level_widths if (rows := round(width * num_trees))]
            seconds = self._seconds[num_trees] = self._planner.costs.draft_seconds(num_trees, widths)
        return StepBase(round(held), share * num_trees * usual.gain, seconds)

    def with_draft(self, base: StepBase, growing: Sequence[Request]) -> StepBase:
        """A step with trees of the draft model in it, if the planner lets them grow."""
        choice = self._refresh()
        if choice is None or not growing:
            return base
        return base.plus(self._trees(choice, self._usual(choice, growing), len(growing)))

    def least_first_survival(self, growing: Sequence[Request]) -> float:
        """How likely the children of a looked-up tree have to be, in sum, beside a draft model that grows trees."""
        choice = self._refresh()
        if choice is None or not growing:
            return 0.0
        survivals = self._usual(choice, growing).survivals
        return SURER_THAN_DRAFT * survivals[0] if survivals else 0.0

    def sufficient(
        self, known: Mapping[str, HostTree], growing: Sequence[Request], base: StepBase, costs: RowCosts
    ) -> frozenset[str]:
        """Requests with looked-up trees for which a tree of the draft model would slow the step down.

        The first to do without are those to which it would add least, and as many do as makes the step fastest: what
        the draft model takes for one request more or less depends on how many others it serves.

        Args:
            growing: requests for which the draft model could grow trees.
            base: the step without any trees.
        """
        choice = self._refresh()
        asked = [request for request in growing if request.request_id in known]
        if choice is None or not asked:
            return frozenset()
        usual = self._usual(choice, growing)
        gains = sorted((self._gain_beside(choice, request, known), request.request_id) for request in asked)
        found = sum(sum(tree.survivals) for tree in known.values())
        base = base.plus(StepBase(sum(tree.num_draft_tokens for tree in known.values()), found))
        lost = len(asked) * usual.gain - sum(gain for gain, _ in gains)
        best_rate, best = 0.0, 0
        for num_idle in range(len(gains) + 1):
            step = base.plus(self._trees(choice, usual, len(growing) - num_idle))
            rate = (step.expected_tokens - lost) / (costs.time(step.num_rows) + step.other_time)
            if rate >= best_rate:
                best_rate, best = rate, num_idle
            if num_idle < len(gains):
                lost -= usual.gain - gains[num_idle][0]
        return frozenset(name for _, name in gains[:best])

    def _gain_beside(self, choice: Forecast, request: Request, known: Mapping[str, HostTree]) -> float:
        outlook = self._outlook(choice, self._planner.estimator.kind(request))
        return outlook.gain_beside(known[request.request_id])
