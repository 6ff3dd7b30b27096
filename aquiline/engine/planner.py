"""How much to speculate in a step."""

from __future__ import annotations

from aquiline.config import SpeculativeConfig
from aquiline.speculation import NO_TREE, TreeShape, chain

# Most decoding requests of a step, and the shape they grow.
_AUTO_SHAPES: tuple[tuple[int, TreeShape], ...] = ((2, chain(1)),)


class Planner:
    """Chooses the tree of every step; measured costs and learnt acceptance will replace the table behind this call.

    `off` never grows a tree and a fixed shape is used as it is. `auto` looks up the number of decoding requests: a
    chain of 1 for one or two, none for more. That holds where it was measured: the quickstart model with 4-bit weights
    and its head, on native kernels and two CPU cores, where a further row of a verify costs 5 to 15 % of a step,
    depending on what else the machine does. Larger trees win for weights that take longer to read, such as bfloat16.
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
