"""Numbers by which equal texts are found again, the same in every run."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from aquiline.training.exclusion import words_of


def text_fingerprint(text: str) -> int:
    """64 bits, equal for texts of equal words, whatever their case, spaces and punctuation."""
    return _number(" ".join(words_of(text)) or text.strip())


def tokens_fingerprint(token_ids: Sequence[int]) -> int:
    """64 bits of a list of token ids."""
    return _number(",".join(map(str, token_ids)))


def is_held_out(fingerprint: int, seed: int, share: float) -> bool:
    """Whether what has this fingerprint is put aside; the choice depends on nothing else."""
    return _number(f"{seed}/{fingerprint}") < share * 2**64


def _number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
