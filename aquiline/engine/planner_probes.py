"""Steps that are run only to learn: what never runs would be judged by old times and old luck for ever."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aquiline.engine.cost_model import StepCosts
from aquiline.engine.draft_debt import num_pending
from aquiline.engine.forecast import Forecast
from aquiline.engine.plan import StepLoad, StepPlan, TreeOutcome
from aquiline.engine.planner_candidates import Candidate
from aquiline.speculation import StaticTree, TreeShape

# Share of the time that may go to them.
PROBE_SHARE = 0.005
PROBE_SIZE = 4
MOST_PROBE_SLOWDOWN = 1.1
# A probe counts as so much of what it takes longer, whatever it is expected to bring.
LEAST_PROBE_SHARE = 0.5
# Trees that end where the draft has no confidence teach of smaller ones too, so there is less to find out by detours;
# there, one counts as so much of a step, for it takes planning, and steps around it cannot rest.
LEAST_DETOUR_SHARE = 0.15


@dataclass(frozen=True, slots=True)
class ProbeTree:
    """The tree of a probe at one load.

    Attributes:
        lost_seconds: what a step with it takes longer than a plain one, one new draft row included.
    """

    shape: TreeShape
    lost_seconds: float


class Probes:
    """Decides when a step learns: now and then a small tree among plain steps, or another size among trees."""

    def __init__(self) -> None:
        self._credit = 0.0
        self._num_probes = 0
        self._probed: str | None = None

    def next_of(self, detours: Sequence[int]) -> int:
        """Detours take turns, the first with all the others: what a plain step takes, only plain steps tell.

        Worked example, detours a, b and c: a, b, a, c, a, b, a, c.
        """
        turn, is_other = divmod(self._num_probes, 2)
        return detours[1 + turn % (len(detours) - 1)] if is_other and len(detours) > 1 else detours[0]

    def tree_among_plain(
        self, load: StepLoad, plain_seconds: float, tree: ProbeTree, costs: StepCosts
    ) -> StepPlan | None:
        """A small tree for one request, so that a draft that has become useful is noticed.

        The probed request is asked for until it has caught up with its draft rows and grown its tree.
        """
        if not tree.shape.num_draft_tokens:
            return None
        if self._probed is None or all(request.request_id != self._probed for request in load.growing):
            self._probed = None
            self._credit += PROBE_SHARE * plain_seconds
            if self._credit < tree.lost_seconds:
                return None
            request = load.growing[self._num_probes % len(load.growing)]
            catching_up = costs.draft_seconds(num_pending(request), ()) - costs.draft_seconds(1, ())
            if self._credit < tree.lost_seconds + catching_up:
                return None
            self._spend()
            self._probed = request.request_id
        return StepPlan(tree.shape, {self._probed: tree.shape.num_draft_tokens}, {})

    def detour(self, seconds: float, lost_seconds: float) -> bool:
        """Whether this step goes another way than the best.

        Args:
            seconds: of the steps since this was last asked.
            lost_seconds: by the other way.
        """
        self._credit += PROBE_SHARE * seconds
        if self._credit < lost_seconds:
            return False
        self._spend()
        return True

    def _spend(self) -> None:
        self._credit = 0.0
        self._num_probes += 1

    def observe(self, outcomes: Sequence[TreeOutcome]) -> None:
        """A step has run."""
        if self._probed is not None and any(outcome.request_id == self._probed for outcome in outcomes):
            self._probed = None


def regret_of(best: Forecast, other: Forecast) -> float:
    """Time that a step with `other` is expected to lose."""
    return other.seconds - other.expected * best.seconds / best.expected


def probe_tree(shape: StaticTree, load: StepLoad, max_draft_tokens: int, costs: StepCosts) -> ProbeTree:
    """As large as it may be without standing out among plain steps; 1 node in any case, if there are rows."""
    size = min(PROBE_SIZE, max_draft_tokens)
    plain = _seconds(shape.truncated(0), load, costs)
    while size > 1 and _seconds(shape.truncated(size), load, costs) > MOST_PROBE_SLOWDOWN * plain:
        size -= 1
    tree = shape.truncated(size)
    return ProbeTree(tree, _seconds(tree, load, costs) - plain)


def _seconds(shape: StaticTree, load: StepLoad, costs: StepCosts) -> float:
    size, roots = shape.num_draft_tokens, load.num_roots
    row_context = load.context + size * (load.context // roots)
    seconds = costs.verify_seconds(roots + size + load.num_other_rows, load.context, row_context)
    seconds += costs.other_seconds(roots + size, roots)
    return seconds + (costs.draft_seconds(1, shape.level_widths) if size else 0.0)


def cut_probe(candidate: Candidate, kind: int, load: StepLoad, costs: StepCosts) -> ProbeTree:
    """A tree that ends where the draft has no confidence, for one request of a kind.

    What it is expected to bring counts, but it always costs something: expectations may be wrong.
    """
    shape, roots = candidate.shape.truncated(load.max_draft_tokens), load.num_roots
    size = min(shape.num_draft_tokens, max(1, round(candidate.mean_nodes[kind])))
    level_rows = [round(rows) for rows in candidate.mean_level_rows]
    plain = costs.verify_seconds(roots + load.num_other_rows, load.context, load.context)
    row_context = load.context + size * (load.context // roots)
    verify = costs.verify_seconds(roots + size + load.num_other_rows, load.context, row_context)
    others = costs.other_seconds(roots + size, roots) - costs.other_seconds(roots, roots)
    extra = verify - plain + others + costs.draft_seconds(1, [rows for rows in level_rows if rows])
    gained = (candidate.expected[kind] - 1.0) * plain / roots
    return ProbeTree(shape, max(extra - gained, LEAST_PROBE_SHARE * extra))
