"""The draft vocabulary: the most frequent answer tokens, and the share of all that they cover."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aquiline.errors import InvalidParameterError, TrainingDataError
from aquiline.training.examples import TrainingExample
from aquiline.training.vocabulary import choose_vocabulary, count_answer_tokens, coverage_of


def test_only_answer_tokens_are_counted() -> None:
    examples = [TrainingExample((5, 5, 2, 5), (False, False, True, True)), TrainingExample((1, 2), (False, True))]
    assert count_answer_tokens(examples, 6).tolist() == [0, 0, 2, 0, 0, 1]


def test_a_token_that_the_target_lacks_is_refused() -> None:
    with pytest.raises(TrainingDataError, match="token id 7"):
        count_answer_tokens([TrainingExample((1, 7), (False, True))], 7)


@given(written=st.lists(st.integers(0, 9), min_size=1, max_size=60), size=st.integers(1, 10))
def test_no_other_choice_covers_more(written: list[int], size: int) -> None:
    vocabulary = choose_vocabulary(np.bincount(written, minlength=10), size)
    best = sum(count for _, count in Counter(written).most_common(size)) / len(written)
    assert vocabulary.coverage == pytest.approx(best)
    assert list(vocabulary.target_ids) == sorted(set(vocabulary.target_ids)) and len(vocabulary.target_ids) == size


def test_ties_go_to_the_lower_id_and_required_tokens_are_in() -> None:
    counts = np.array([1, 3, 3, 3, 0])
    assert choose_vocabulary(counts, 2).target_ids == (1, 2)
    vocabulary = choose_vocabulary(counts, 2, required_ids=[4, 4])
    assert vocabulary.target_ids == (1, 4) and vocabulary.coverage == pytest.approx(0.3)
    assert coverage_of(vocabulary, np.array([1, 0, 0, 0, 3])) == pytest.approx(0.75)
    assert coverage_of(vocabulary, np.zeros(5, np.int64)) == 0.0


@pytest.mark.parametrize("size", [0, 6, 1])
def test_sizes_that_do_not_fit_are_refused(size: int) -> None:
    with pytest.raises(InvalidParameterError, match=f"draft_vocab_size is {size}"):
        choose_vocabulary(np.ones(5, np.int64), size, required_ids=[0, 1])
