"""How much to speculate in a step."""

from __future__ import annotations

from aquiline.config import SpeculativeConfig
from aquiline.speculation import NO_TREE, TreeShape, chain, parse_speculation

# Each verify row costs more when many requests share a step, so the tree shrinks as they become more.
_AUTO_SHAPES: tuple[tuple[int, TreeShape], ...] = tuple(
    (max_decode_requests, shape)
    for max_decode_requests, shape in (
        (4, parse_speculation("paths:0,1,2,3,4,00,01,02,10,20,000,001,010,100,0000,00000").shape),
        (8, parse_speculation("paths:0,1,2,00,01,10,000,0000").shape),
        (16, chain(2)),
    )
    if shape is not None
)


class Planner:
    """Chooses the tree of every step; measured costs and learnt acceptance will replace the table behind this call.

    `off` never grows a tree and a fixed shape is used as it is. `auto` looks up the number of decoding requests:

        decoding requests   shape
        up to 4             16 nodes, five levels: 0 1 2 3 4 / 00 01 02 10 20 / 000 001 010 100 / 0000 / 00000
        5 to 8              8 nodes, four levels: 0 1 2 / 00 01 10 / 000 / 0000
        9 to 16             a chain of 2
        more                none
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
