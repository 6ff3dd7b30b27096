"""Random texts with ranks, as a draft might foresee them."""

from __future__ import annotations

from hypothesis import strategies as st

from aquiline.training.walk import RankedText

MAX_DEPTH = 4


@st.composite
def ranked_texts(draw: st.DrawFn) -> list[RankedText]:
    """One to four answers; ranks below 5, and 99 for tokens out of reach."""
    texts = []
    for _ in range(draw(st.integers(1, 4))):
        num_roots = draw(st.integers(0, 12))
        rank = st.sampled_from((0, 0, 0, 1, 2, 3, 4, 99))
        ranks = [
            tuple(draw(st.lists(rank, min_size=count, max_size=count)))
            for count in (min(MAX_DEPTH, num_roots - root) for root in range(num_roots))
        ]
        texts.append(RankedText("any", tuple(ranks)))
    return texts
