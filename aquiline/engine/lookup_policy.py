"""How much is looked up in a step: what room there is, and what a further row of the target must bring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from aquiline.config import SpeculativeConfig
from aquiline.engine.host_tree import NO_NODES, HostTree
from aquiline.engine.lookup import Lookup, LookupIndex, LookupLimits
from aquiline.engine.lookup_costs import LoadCosts, LookupPlanner, Tempo
from aquiline.engine.lookup_draft import DraftWorth
from aquiline.engine.plan import StepPlanner
from aquiline.engine.planner import AutoPlanner
from aquiline.engine.request_limits import RequestLimits
from aquiline.engine.row_worth import RowCosts, RowWorth, StepBase
from aquiline.request import Request

PROBE_DEPTH = 2
# A guess that comes to less than this share of what a node had to bring lately is passed over; what that is, is found
# anew after so many steps.
SURE_SHARE = 0.9
STEPS_TO_LOOK_CLOSELY = 64
NOBODY: frozenset[str] = frozenset()


class GrammarNodes(Protocol):
    """What grammars say about the tokens that come next."""

    @property
    def has_guided(self) -> bool:
        """Whether any request is guided."""

    def is_guided(self, request: Request) -> bool:
        """Whether a grammar holds the request."""

    def known_nodes(
        self, request: Request, look_up: Callable[[], HostTree], limits: LookupLimits, worth: RowWorth
    ) -> HostTree:
        """What the request's grammar foretells, and of what is looked up what it allows."""


@dataclass(frozen=True, slots=True)
class StepOutline:
    """A step before anything is looked up.

    Attributes:
        requests: that look for tokens; all of them decode.
        depths: deepest node that each of them may still commit.
        growing: those for which the planner may let the draft model grow a tree.
        num_roots: requests that decode.
        context: tokens in the pages of `requests`, summed.
        num_prefill_rows: waiting prefill, at most what the step may hold.
        num_free_rows: most looked-up nodes of all requests together.
        num_running: requests of the step, those that prefill included.
    """

    requests: Sequence[Request]
    depths: Sequence[int]
    num_roots: int
    growing: Sequence[Request] = ()
    context: int = 0
    num_prefill_rows: int = 0
    num_free_rows: int = 2**31
    num_running: int = 0

    @classmethod
    def of(cls, running: Sequence[Request], limits: RequestLimits, max_batched_tokens: int) -> StepOutline:
        """That of a step of at most so many rows."""
        requests: list[Request] = []
        depths: list[int] = []
        growing: list[Request] = []
        num_roots = context = num_pending = 0
        for request in running:
            num_uncomputed = request.num_uncomputed_tokens
            if num_uncomputed != 1:
                num_pending += num_uncomputed
                continue
            num_roots += 1
            depth = limits.most_known_depth(request)
            if depth > 0:
                requests.append(request)
                depths.append(depth)
                context += request.num_computed_tokens
                if request.speculate and request.own_shape is None and limits.most_grown_depth(request) > 0:
                    growing.append(request)
        free = max(0, max_batched_tokens - num_roots)
        return cls(requests, depths, num_roots, growing, context, min(num_pending, free), free, len(running))


class LookupPolicy:
    """Looks up tokens for the requests of a step.

    Args:
        has_draft: a draft model grows trees too.
        planner: one that learns costs knows what a row of the target takes; otherwise generic times are taken.
        grammars: of guided requests; None: there are none.
        new_index: makes the index that is searched, from the most tokens of ended outputs that it keeps.
    """

    def __init__(
        self,
        config: SpeculativeConfig,
        has_draft: bool,
        planner: StepPlanner | None = None,
        grammars: GrammarNodes | None = None,
        new_index: Callable[[int], LookupIndex] = Lookup,
    ) -> None:
        self._index = new_index(config.lookup_history) if config.looks_up(has_draft) else None
        can_add = not config.mode.is_off and config.acceptance == "keyed"
        self._grammars = grammars if can_add else None
        self._pays_only = config.lookup == "auto"
        self._costs = LoadCosts(planner.costs if isinstance(planner, AutoPlanner | LookupPlanner) else None)
        self._draft = DraftWorth(planner) if isinstance(planner, AutoPlanner) and self._pays_only else None
        self._sufficient = NOBODY
        # What a guess must come to at least, by decoding and running requests.
        self._floors: dict[tuple[int, int], float] = {}
        self._num_quick_steps = 0
        self._tempo = Tempo(self._pays_only and self._costs.are_learnt)
        self.max_draft_tokens = 0
        self._max_depth = 0
        if self.is_active:
            shape = config.mode.shape
            self.max_draft_tokens = min(config.lookup_tokens, shape.num_draft_tokens if shape else config.lookup_tokens)
            self._max_depth = min(self.max_draft_tokens, shape.depth if shape else self.max_draft_tokens)

    @property
    def is_active(self) -> bool:
        """Whether anything is ever proposed."""
        return self._index is not None or self._grammars is not None

    @property
    def num_requests(self) -> int:
        """Requests of which something is kept."""
        return 0 if self._index is None else self._index.num_requests

    def look_up(
        self, running: Sequence[Request], limits: RequestLimits, max_batched_tokens: int
    ) -> dict[str, HostTree]:
        """Trees of the running requests for which something was found, by request id.

        Args:
            max_batched_tokens: most rows of the step.
        """
        self._sufficient = NOBODY
        if not self._may_find(running):
            return {}
        return self.propose(StepOutline.of(running, limits, max_batched_tokens))

    def _may_find(self, running: Sequence[Request]) -> bool:
        """Whether to look closely: what most steps come to is seen without knowing what rows cost at present."""
        if self._grammars is not None and self._grammars.has_guided:
            return True
        if self._index is None:
            return False
        decoding = [request for request in running if request.num_uncomputed_tokens == 1 and request.looks_up]
        if not decoding:
            return False
        floor = self._floors.get((len(decoding), len(running)), 0.0)
        if self._index.read(decoding, floor) or self._tempo.is_probe:
            return True
        self._tempo.count(False)
        self._num_quick_steps += 1
        if self._num_quick_steps >= STEPS_TO_LOOK_CLOSELY:
            self._num_quick_steps = 0
            self._floors.clear()
        return False

    def propose(self, outline: StepOutline) -> dict[str, HostTree]:
        """The same for a step as it is outlined; every request may have an equal share of its free rows."""
        self._sufficient = NOBODY
        requests = outline.requests
        if not self.is_active or not requests:
            return {}
        most_depth = self._max_depth
        costs = self._costs.at(outline.num_roots, outline.context // len(requests))
        share = min(self.max_draft_tokens, outline.num_free_rows // len(requests))
        depths = [min(depth, most_depth) for depth in outline.depths]
        base = _base(outline, costs)
        is_probe = self._tempo.is_probe
        if is_probe:
            depths = [min(depth, PROBE_DEPTH) for depth in depths]
        worth = self._worth(base, costs, outline, is_probe)
        least_first = 0.0 if self._draft is None or is_probe else self._draft.least_first_survival(outline.growing)
        floor = worth.least_survival
        if len(outline.growing) == len(requests):
            floor = max(floor, least_first)
        self._floors[len(requests), outline.num_running] = SURE_SHARE * floor
        trees = {} if self._tempo.is_rest else self._found(requests, depths, share, worth)
        if least_first:
            grown = {request.request_id for request in outline.growing}
            trees = {
                name: tree for name, tree in trees.items() if name not in grown or tree.first_survival >= least_first
            }
        self._tempo.count(bool(trees))
        if trees and self._draft is not None and outline.growing:
            self._sufficient = self._draft.sufficient(trees, outline.growing, base, costs)
        return trees

    def _worth(self, base: StepBase, costs: RowCosts, outline: StepOutline, is_probe: bool) -> RowWorth:
        if self._draft is not None:
            base = self._draft.with_draft(base, outline.growing)
        always_pays = is_probe or not self._pays_only
        return RowWorth(base, costs, always_pays, self._costs.tree_time(outline.num_roots))

    def _found(
        self, requests: Sequence[Request], depths: Sequence[int], share: int, worth: RowWorth
    ) -> dict[str, HostTree]:
        trees: dict[str, HostTree] = {}
        if self._grammars is not None:
            free: list[Request] = []
            free_depths: list[int] = []
            for request, depth in zip(requests, depths, strict=True):
                if self._grammars.is_guided(request):
                    trees[request.request_id] = self._guided(self._grammars, request, LookupLimits(share, depth), worth)
                else:
                    free.append(request)
                    free_depths.append(depth)
            requests, depths = free, free_depths
        if self._index is not None and requests:
            found = self._index.propose(requests, depths, share, worth)
            trees |= {request.request_id: tree for request, tree in zip(requests, found, strict=True)}
        return {request_id: tree for request_id, tree in trees.items() if tree.tokens}

    def _guided(self, grammars: GrammarNodes, request: Request, limits: LookupLimits, worth: RowWorth) -> HostTree:
        def look_up() -> HostTree:
            if self._index is None:
                return NO_NODES
            return self._index.propose([request], [limits.max_depth], limits.max_draft_tokens, worth)[0]

        return grammars.known_nodes(request, look_up, limits, worth)

    def suffices(self, request_id: str) -> bool:
        """Whether a draft model need not add to what was just looked up for a request."""
        return request_id in self._sufficient

    def forget(self, request: Request) -> None:
        """A request has ended."""
        if self._index is not None:
            self._index.forget(request)


def _base(outline: StepOutline, costs: RowCosts) -> StepBase:
    """The step without trees, at the time of one without prefill, which takes its time whatever is looked up."""
    num_roots, num_rows = outline.num_roots, outline.num_roots + outline.num_prefill_rows
    return StepBase(num_rows, num_roots, costs.time(num_roots) - costs.time(num_rows))
