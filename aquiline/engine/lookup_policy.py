"""How much is looked up in a step: what room there is, and what a further row of the target must bring."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from aquiline.config import SpeculativeConfig
from aquiline.engine.host_tree import NO_NODES, HostTree
from aquiline.engine.lookup import Lookup, LookupLimits
from aquiline.engine.plan import StepPlanner
from aquiline.engine.planner import AutoPlanner
from aquiline.engine.row_worth import RowCosts, RowWorth
from aquiline.request import Request

# A draft model that adds to so likely a child of the root costs more than it brings.
SURVIVAL_THAT_SUFFICES = 0.5


class GrammarNodes(Protocol):
    """What grammars say about the tokens that come next."""

    def known_nodes(
        self, request: Request, look_up: Callable[[], HostTree], limits: LookupLimits, worth: RowWorth
    ) -> HostTree:
        """What the request's grammar foretells, and of what is looked up what it allows."""


class LookupPolicy:
    """Looks up tokens for the requests of a step.

    Args:
        has_draft: a draft model grows trees too.
        planner: one that chooses by costs knows what a row of the target takes; otherwise generic times are taken.
        grammars: of guided requests; None: there are none.
    """

    def __init__(
        self,
        config: SpeculativeConfig,
        has_draft: bool,
        planner: StepPlanner | None = None,
        grammars: GrammarNodes | None = None,
    ) -> None:
        self._lookup = Lookup(config.lookup_history) if config.looks_up(has_draft) else None
        can_add = not config.mode.is_off and config.acceptance == "keyed"
        self._grammars = grammars if can_add else None
        self._pays_only = config.lookup == "auto"
        self._costs = RowCosts.of(planner.costs) if isinstance(planner, AutoPlanner) else RowCosts()
        self.max_draft_tokens = 0
        self._max_depth = 0
        if self._lookup is not None or self._grammars is not None:
            shape = config.mode.shape
            self.max_draft_tokens = min(config.lookup_tokens, shape.num_draft_tokens if shape else config.lookup_tokens)
            self._max_depth = min(self.max_draft_tokens, shape.depth if shape else self.max_draft_tokens)

    @property
    def num_requests(self) -> int:
        """Requests of which something is kept."""
        return 0 if self._lookup is None else self._lookup.num_requests

    def look_up(self, depths: Mapping[str, int], requests: Mapping[str, Request], num_rows: int) -> dict[str, HostTree]:
        """Trees of the requests for which something was found, by request id.

        Args:
            depths: deepest node that each request may still commit.
            requests: the decoding ones.
            num_rows: most nodes of all together; every request may have an equal share.
        """
        if (self._lookup is None and self._grammars is None) or not requests:
            return {}
        self._costs.refresh()
        worth = RowWorth(len(requests), self._costs, always_pays=not self._pays_only)
        share = min(self.max_draft_tokens, num_rows // len(requests))
        trees = {}
        for request_id, request in requests.items():
            limits = LookupLimits(share, min(self._max_depth, depths[request_id]))
            look_up = partial(self._propose, request, limits, worth)
            tree = look_up() if self._grammars is None else self._grammars.known_nodes(request, look_up, limits, worth)
            if tree.num_draft_tokens:
                trees[request_id] = tree
        return trees

    def _propose(self, request: Request, limits: LookupLimits, worth: RowWorth) -> HostTree:
        return NO_NODES if self._lookup is None else self._lookup.propose(request, limits, worth)

    def suffices(self, tree: HostTree) -> bool:
        """Whether a draft model need not add to what was looked up."""
        return self._pays_only and tree.first_survival >= SURVIVAL_THAT_SUFFICES

    def forget(self, request: Request) -> None:
        """A request has ended."""
        if self._lookup is not None:
            self._lookup.forget(request)
