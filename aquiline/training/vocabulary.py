"""Which tokens a draft may propose: those that the target writes most often."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aquiline.errors import InvalidParameterError, TrainingDataError
from aquiline.training.examples import TrainingExample


@dataclass(frozen=True)
class DraftVocabulary:
    """The tokens that a draft can propose.

    Attributes:
        target_ids: of each draft id, ascending.
        coverage: share of the counted answer tokens that are among them, in [0, 1].
    """

    target_ids: tuple[int, ...]
    coverage: float


def count_answer_tokens(examples: Iterable[TrainingExample], vocab_size: int) -> NDArray[np.int64]:
    """How often the target writes each token.

    Returns:
        `# [vocab_size]`

    Raises:
        TrainingDataError: a token id that the target does not have.
    """
    counts = np.zeros(vocab_size, np.int64)
    for example in examples:
        written = np.array(example.token_ids, np.int64)[np.array(example.is_answer, bool)]
        if written.size and not 0 <= int(written.min()) <= int(written.max()) < vocab_size:
            raise TrainingDataError(
                f"an example holds the token id {int(written.max())}; this target has ids 0 to {vocab_size - 1}: "
                "write the data with the target that it trains for"
            )
        counts += np.bincount(written, minlength=vocab_size)
    return counts


def choose_vocabulary(
    counts: NDArray[np.int64], draft_vocab_size: int, required_ids: Iterable[int] = ()
) -> DraftVocabulary:
    """The tokens that are written most often; of two that are equally frequent the lower id.

    Args:
        counts: of `count_answer_tokens`. # [vocab_size]
        draft_vocab_size: how many tokens to choose, at most vocab_size.
        required_ids: chosen however rare they are, such as those that end an answer.

    Raises:
        InvalidParameterError: a size that is not positive, larger than the target's, or too small for `required_ids`.
    """
    vocab_size, required = len(counts), sorted(set(required_ids))
    if not max(1, len(required)) <= draft_vocab_size <= vocab_size:
        raise InvalidParameterError(
            f"draft_vocab_size is {draft_vocab_size}; it must be from {max(1, len(required))} to {vocab_size}, "
            "the size of the target's vocabulary"
        )
    ranking = counts.copy()
    ranking[required] = np.iinfo(np.int64).max
    chosen = np.sort(np.argsort(-ranking, kind="stable")[:draft_vocab_size])
    total = int(counts.sum())
    coverage = int(counts[chosen].sum()) / total if total else 0.0
    return DraftVocabulary(tuple(int(token_id) for token_id in chosen), coverage)


def coverage_of(vocabulary: DraftVocabulary, counts: NDArray[np.int64]) -> float:
    """Share of other counted tokens that the vocabulary holds, for example of held-out answers."""
    total = int(counts.sum())
    return int(counts[list(vocabulary.target_ids)].sum()) / total if total else 0.0
