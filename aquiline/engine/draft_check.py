"""A look at a draft before the engine starts: does it foresee its target at all?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from aquiline.models.draft_probe import ProbeHits, probe_draft, read_text
from aquiline.models.interfaces import DraftModel, TargetModel

# Ordinary words and grammar: what comes next can often be guessed, and no two sentences are alike.
CHECK_TEXT = """The harbour town wakes early. Fishermen mend their nets on the quay while gulls circle above the boats.
By noon the market is full of people who buy bread, cheese and fish, and children run between the stalls. In the evening
the lamps are lit one after another, and the sea grows quiet."""
MAX_TOKENS = 64
# With fewer positions a sound draft may miss them all by bad luck.
MIN_TOKENS = 16
# How likely a draft without any skill is to do as well as one that is let through.
SIGNIFICANCE = 0.05
# What somebody reaches who knows which tokens are common, and nothing else.
LEAST_CHANCE = 0.05


@dataclass(frozen=True)
class DraftFit:
    """How often a draft's first guess was what the target expects next.

    Attributes:
        chance: share that the same guesses would reach at the wrong places, at least LEAST_CHANCE.
    """

    num_right: int
    num_positions: int
    chance: float

    @classmethod
    def of(cls, hits: ProbeHits) -> DraftFit:
        """The first guesses of a probe."""
        return cls(int((hits.ranks == 0).sum()), len(hits.ranks), max(LEAST_CHANCE, hits.chance()))

    @property
    def is_at_chance(self) -> bool:
        """Whether luck would do as well more often than one time in twenty."""
        return binomial_tail(self.num_right, self.num_positions, self.chance) > SIGNIFICANCE


def check_fit(
    target: TargetModel, draft: DraftModel, token_ids: Sequence[int], memory_dtype: torch.dtype
) -> DraftFit | None:
    """Let a draft guess after every token of a text, the target's own expectation being right.

    Args:
        token_ids: a text; the first MAX_TOKENS are read, or as many as both models take.
        memory_dtype: of keys and values.

    Returns:
        None where the text is too short to tell.
    """
    length = min(MAX_TOKENS, target.config.max_position, draft.config.layers.max_position)
    if min(length, len(token_ids)) < MIN_TOKENS:
        return None
    with torch.inference_mode():
        reading = read_text(target, token_ids[:length], 1, memory_dtype)
        hits = probe_draft(draft, [reading], 1, memory_dtype)
    return DraftFit.of(hits)


def binomial_tail(num_hits: int, num_trials: int, chance: float) -> float:
    """Probability of at least `num_hits` hits in trials that succeed with `chance`."""
    return math.fsum(
        math.comb(num_trials, hits) * chance**hits * (1.0 - chance) ** (num_trials - hits)
        for hits in range(num_hits, num_trials + 1)
    )
