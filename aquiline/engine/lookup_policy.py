"""How much is looked up in a step: what room there is, and what a further row of the target must bring."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aquiline.config import SpeculativeConfig
from aquiline.engine.host_tree import HostTree
from aquiline.engine.lookup import Lookup, LookupLimits
from aquiline.request import Request

# What a further row of a verify adds to a step with one row: on native kernels and two cores 5 to 15 %.
SHARE_OF_ROW = 0.08
# A draft model that adds to so likely a child of the root costs more than it brings.
SURVIVAL_THAT_SUFFICES = 0.5

RowPrice = Callable[[int], float]
"""From the number of decoding requests to the committed tokens that a further row must bring."""


def generic_row_price(num_decode_requests: int) -> float:
    """Tokens that the step would commit in the time of one more row, when a row adds `SHARE_OF_ROW`.

    Worked example, 8 requests that commit a token each in a step of 1 + 7 * 0.08 = 1.56: a row of 0.08 takes the time
    in which 8 / 1.56 * 0.08 = 0.41 tokens are committed, so a node has to survive in at least 41 of 100 cases.
    """
    num_requests = max(1, num_decode_requests)
    return num_requests * SHARE_OF_ROW / (1.0 + (num_requests - 1) * SHARE_OF_ROW)


class LookupPolicy:
    """Looks up tokens for the requests of a step.

    Args:
        has_draft: a draft model grows trees too.
        price: of a row of the target.
    """

    def __init__(self, config: SpeculativeConfig, has_draft: bool, price: RowPrice = generic_row_price) -> None:
        self._lookup = Lookup(config.lookup_history) if config.looks_up(has_draft) else None
        self._pays_only = config.lookup == "auto"
        self._price = price
        self.max_draft_tokens = 0
        self._max_depth = 0
        if self._lookup is not None:
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
        if self._lookup is None or not requests:
            return {}
        least = self._price(len(requests)) if self._pays_only else 0.0
        share = min(self.max_draft_tokens, num_rows // len(requests))
        trees = {}
        for request_id, request in requests.items():
            limits = LookupLimits(share, min(self._max_depth, depths[request_id]), least)
            tree = self._lookup.propose(request, limits)
            if tree.num_draft_tokens:
                trees[request_id] = tree
        return trees

    def suffices(self, tree: HostTree) -> bool:
        """Whether a draft model need not add to what was looked up."""
        return self._pays_only and tree.first_survival >= SURVIVAL_THAT_SUFFICES

    def forget(self, request: Request) -> None:
        """A request has ended."""
        if self._lookup is not None:
            self._lookup.forget(request)
