"""Finds answers that go round in circles."""

from __future__ import annotations

from collections.abc import Sequence

MAX_PERIOD = 64
NUM_REPEATS = 3
MIN_LOOPING_TOKENS = 32
WINDOW = 96
RUN_LENGTH = 4
MAX_KNOWN_SHARE = 0.8


def looping_period(token_ids: Sequence[int]) -> int | None:
    """The shortest period that the end of an output repeats, or None.

    An output loops when its last tokens are one piece of at most 64 tokens, at least three times in a row and over at
    least 32 tokens:

        x y a b a b a b ... a b     period 2, once the part behind y is 32 tokens long
    """
    num_tokens = len(token_ids)
    for period in range(1, MAX_PERIOD + 1):
        looping = max(NUM_REPEATS * period, MIN_LOOPING_TOKENS)
        if looping > num_tokens:
            break
        if all(
            token_ids[num_tokens - 1 - back] == token_ids[num_tokens - 1 - back - period]
            for back in range(looping - period)
        ):
            return period
    return None


def without_loop(token_ids: Sequence[int]) -> Sequence[int]:
    """An output up to the first repetition of what it repeats at its end; as it is when it does not loop.

    x y a b a b a b     becomes     x y a b
    """
    period = looping_period(token_ids)
    if period is None:
        return token_ids
    start = len(token_ids) - period
    while start > 0 and token_ids[start - 1] == token_ids[start - 1 + period]:
        start -= 1
    return token_ids[: start + period]


def goes_in_circles(token_ids: Sequence[int]) -> bool:
    """Whether an output says little that is new: most runs of four tokens among its last 96 came up earlier in it.

    This finds what `looping_period` does not, such as a numbered list of equal points.
    """
    runs = [tuple(token_ids[index : index + RUN_LENGTH]) for index in range(len(token_ids) - RUN_LENGTH + 1)]
    first = len(runs) - WINDOW
    if first < RUN_LENGTH:
        return False
    seen = set(runs[:first])
    num_known = 0
    for run in runs[first:]:
        num_known += run in seen
        seen.add(run)
    return num_known > MAX_KNOWN_SHARE * WINDOW


def is_repetitive(words: Sequence[str], length: int = 3, most: float = 0.5) -> bool:
    """Whether more than the share `most` of the runs of `length` words in a text came up earlier in it."""
    runs = [tuple(words[index : index + length]) for index in range(len(words) - length + 1)]
    return len(runs) >= 2 * length and len(set(runs)) < (1.0 - most) * len(runs)
