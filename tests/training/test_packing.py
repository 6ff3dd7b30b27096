"""Which rows are trained, from which label, and in which order examples come."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aquiline.training.examples import TrainingExample
from aquiline.training.packing import DataOrder, ExampleIndex, make_pack, split_into_packs
from tests.training.toy_run import toy_examples

# t0 t1 a2 a3 a4 a5 of the worked example, and a second turn behind it.
WORKED = TrainingExample(tuple(range(10, 16)), (False, False, True, True, True, True))
TWO_TURNS = TrainingExample(tuple(range(20, 29)), tuple(flag == "1" for flag in "001100111"))


def test_the_worked_example() -> None:
    pack = make_pack([WORKED], [0], 100)
    assert pack.token_ids.tolist() == [10, 11, 12, 13, 14]
    assert pack.next_token_ids.tolist() == [11, 12, 13, 14, 15]
    assert pack.positions.tolist() == [0, 1, 2, 3, 4]
    assert [pack.trained_rows(step).tolist() for step in range(4)] == [[1, 2, 3], [1, 2], [1], []]
    assert pack.label_rows.tolist() == [2, 3, 4]
    assert pack.num_trained == 3


def test_no_run_crosses_a_turn_or_a_conversation() -> None:
    pack = make_pack([WORKED, TWO_TURNS], [1, 0], 100)
    assert pack.lengths == (8, 5)
    assert pack.starts == (0, 8)
    assert pack.trained_rows(0).tolist() == [1, 5, 6, 9, 10, 11]
    assert pack.trained_rows(1).tolist() == [5, 9, 10]


def test_what_follows_the_last_answer_and_the_longest_length_is_cut_off() -> None:
    padded = TrainingExample((*WORKED.token_ids, 7, 8), (*WORKED.is_answer, False, False))
    assert make_pack([padded], [0], 100).token_ids.tolist() == [10, 11, 12, 13, 14]
    assert make_pack([padded], [0], 5).token_ids.tolist() == [10, 11, 12, 13]
    assert make_pack([padded], [0], 5).trained_rows(0).tolist() == [1, 2]


@given(
    st.lists(st.lists(st.booleans(), min_size=2, max_size=12).filter(lambda f: any(f) and not all(f)), min_size=1),
    st.integers(2, 12),
)
def test_the_index_counts_what_packs_hold(masks: list[list[bool]], max_length: int) -> None:
    examples = [TrainingExample(tuple(range(len(mask))), tuple(mask)) for mask in masks]
    index = ExampleIndex.of(examples, max_length)
    for number, example in enumerate(examples):
        flags = example.is_answer[:max_length]
        trained = [p for p in range(len(flags) - 2) if flags[p + 1] and flags[p + 2]]
        assert index.num_trained[number] == len(trained)
        if any(flags):
            pack = make_pack(examples, [number], max_length)
            assert pack.trained_rows(0).tolist() == trained
            assert pack.num_rows == index.num_rows[number]


def test_the_digest_depends_on_tokens_and_masks() -> None:
    other_mask = TrainingExample(WORKED.token_ids, (False, True, True, True, True, True))
    other_token = TrainingExample((*WORKED.token_ids[:-1], 9), WORKED.is_answer)
    examples: list[list[TrainingExample]] = [
        [WORKED, TWO_TURNS],
        [TWO_TURNS, WORKED],
        [other_mask, TWO_TURNS],
        [other_token, TWO_TURNS],
    ]
    assert len({ExampleIndex.of(some, 100).digest for some in examples}) == 4


def test_an_epoch_sees_every_trained_example_once_in_steps_of_enough_tokens() -> None:
    num_tokens = [5, 0, 9, 30, 2, 7, 0, 4]
    order = DataOrder(num_tokens, tokens_per_step=10, seed=3)
    steps = list(order.steps(epoch=0))
    seen = [index for step in steps for index in step.example_ids]
    assert sorted(seen) == [0, 2, 3, 4, 5, 7]
    assert all(step.num_tokens == sum(num_tokens[index] for index in step.example_ids) for step in steps)
    assert all(step.num_tokens >= 10 for step in steps[:-1])
    assert all(step.num_tokens - num_tokens[step.example_ids[-1]] < 10 for step in steps)
    assert order.tokens_per_epoch == sum(num_tokens)


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    def orders(seed: int, epoch: int) -> list[tuple[int, ...]]:
        return [step.example_ids for step in DataOrder([3] * 50, 7, seed).steps(epoch)]

    assert orders(1, 2) == orders(1, 2)
    assert len({str(orders(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9


@pytest.mark.parametrize("first", [0, 1, 5, 100])
def test_an_epoch_goes_on_where_it_was_left(first: int) -> None:
    order = DataOrder([3] * 50, 7, seed=0)
    assert list(order.steps(4, first)) == list(order.steps(4))[first:]


@given(st.lists(st.integers(1, 20), min_size=1, max_size=30), st.integers(4, 25))
def test_packs_keep_the_order_and_the_limit(lengths: list[int], rows_per_pack: int) -> None:
    packs = split_into_packs(range(len(lengths)), lengths, rows_per_pack)
    assert [index for pack in packs for index in pack] == list(range(len(lengths)))
    assert all(len(pack) == 1 or sum(lengths[index] for index in pack) <= rows_per_pack for pack in packs)


def test_packs_of_one_conversation_hold_the_rows_of_packs_of_many() -> None:
    examples = toy_examples()
    together = make_pack(examples, [3, 1], 100)
    apart = [make_pack(examples, [3], 100), make_pack(examples, [1], 100)]
    for name in ("token_ids", "next_token_ids", "positions", "runs_ahead"):
        assert torch.equal(getattr(together, name), torch.cat([getattr(pack, name) for pack in apart]))
