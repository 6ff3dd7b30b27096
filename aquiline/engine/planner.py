"""How much to speculate in a step."""

from __future__ import annotations

from aquiline.config import SpeculativeConfig
from aquiline.speculation import NO_TREE, TreeShape, chain, tree_from_paths

# The first row fills the eight rows that cost one matrix product little more than one row does.
_AUTO_SHAPES: tuple[tuple[int, TreeShape], ...] = (
    (1, tree_from_paths([(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0)])),
    (4, chain(1)),
)


class Planner:
    """Chooses the tree of every step; measured costs and learnt acceptance will replace the table behind this call.

    `off` never grows a tree and a fixed shape is used as it is. `auto` looks up the number of decoding requests:

        decoding requests   shape
        1                   7 nodes, three levels: 0 1 2 / 00 01 10 / 000
        2 to 4              a chain of 1
        more                none

    The table holds where it was measured: the quickstart model and its head in bfloat16 on two CPU cores. It knows
    nothing of the backend; 4-bit weights, for which plain decoding is twice as fast, do better with `off`.
    """

    def __init__(self, config: SpeculativeConfig) -> None:
        self._mode = config.mode

    @property
    def shapes(self) -> tuple[TreeShape, ...]:
        """Every shape that `choose` may return."""
        if self._mode.is_auto:
            return (*(shape for _, shape in _AUTO_SHAPES), NO_TREE)
        return (self._mode.shape or NO_TREE,)

    def choose(self, num_decode_requests: int) -> TreeShape:
        """The shape that the decoding requests of the next step would like to grow; NO_TREE for plain decoding.

        The scheduler calls this once per step. 0 requests is a fair question: the step may still admit one that decodes
        at once.
        """
        if not self._mode.is_auto:
            return self._mode.shape or NO_TREE
        for max_decode_requests, shape in _AUTO_SHAPES:
            if num_decode_requests <= max_decode_requests:
                return shape
        return NO_TREE
