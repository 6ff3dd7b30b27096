"""How much to speculate in a step."""

from __future__ import annotations

from aquiline.config import SpeculativeConfig
from aquiline.speculation import NO_TREE, DynamicTree, TreeShape, chain, tree_from_paths

# Most decoding requests of a step, and the shape they grow.
_AUTO_SHAPES: tuple[tuple[int, TreeShape], ...] = (
    (1, DynamicTree(steps=2, topk=2, num_draft_tokens=2)),
    (2, chain(1)),
)
# The multi-round rule needs shapes that are fixed before anything is drawn.
_AUTO_STATIC_SHAPES: tuple[tuple[int, TreeShape], ...] = (
    (1, tree_from_paths([(0,), (1,)])),
    (2, chain(1)),
)


class Planner:
    """Chooses the tree of every step; measured costs and learnt acceptance will replace the table behind this call.

    `off` never grows a tree and a fixed shape is used as it is. `auto` looks up the number of decoding requests:

        decoding requests   shape                                              under the multi-round rule
        1                   the best 2 nodes of two levels of up to 2          2 children of the root
        2                   a chain of 1                                       a chain of 1
        more                none                                               none

    The table holds where it was measured: the quickstart model with 4-bit weights and its head, on native kernels and two
    CPU cores, where a row of a verify costs between 5 and 15 % of a step, depending on what else the machine does.
    """

    def __init__(self, config: SpeculativeConfig) -> None:
        self._mode = config.mode
        self._auto_shapes = _AUTO_STATIC_SHAPES if config.acceptance == "multi_round" else _AUTO_SHAPES

    @property
    def shapes(self) -> tuple[TreeShape, ...]:
        """Every shape that `choose` may return."""
        if self._mode.is_auto:
            return (*(shape for _, shape in self._auto_shapes), NO_TREE)
        return (self._mode.shape or NO_TREE,)

    def choose(self, num_decode_requests: int) -> TreeShape:
        """The shape that the decoding requests of the next step would like to grow; NO_TREE for plain decoding.

        The scheduler calls this once per step. 0 requests is a fair question: the step may still admit one that decodes
        at once.
        """
        if not self._mode.is_auto:
            return self._mode.shape or NO_TREE
        for max_decode_requests, shape in self._auto_shapes:
            if num_decode_requests <= max_decode_requests:
                return shape
        return NO_TREE
