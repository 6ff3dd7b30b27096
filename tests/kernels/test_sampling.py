from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from aquiline.kernels.reference.noise import mix_key
from aquiline.kernels.reference.sampling import (
    DenseRows,
    LogitRules,
    MinTokens,
    Penalties,
    RowPlaces,
    draw_tokens,
    largest,
    log_probs_of,
    process_logits,
)
from tests.kernels.chi_square import REJECTION_LEVEL, histogram, p_value


@dataclass(frozen=True)
class PlainRow:
    """One row and its parameters in plain Python."""

    logits: list[float]
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    bias: dict[int, float] = field(default_factory=dict)
    stop_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    output_length: int = 0
    prompt: tuple[int, ...] = ()
    output: tuple[int, ...] = ()
    path: tuple[int, ...] = ()
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0


BORDER = 1e-5


def plain_distribution(row: PlainRow) -> list[float] | None:
    """The law that a row is drawn from, by the definition of each parameter; None when rounding may decide it."""
    logits = list(row.logits)
    biased = [logit + row.bias.get(i, 0.0) for i, logit in enumerate(logits)]
    logits = biased if max(biased) > -math.inf else logits
    if row.output_length < row.min_tokens:
        banned = [-math.inf if i in row.stop_ids else logit for i, logit in enumerate(logits)]
        logits = banned if max(banned) > -math.inf else logits
    history = row.output + row.path
    for i in set(row.prompt + history):
        logits[i] = logits[i] / row.repetition if logits[i] > 0 else logits[i] * row.repetition
    for i in set(history):
        logits[i] -= row.presence + row.frequency * history.count(i)
    if row.temperature == 0:
        best = logits.index(max(logits))
        return [float(i == best) for i in range(len(logits))]
    weights = [math.exp((logit - max(logits)) / row.temperature) for logit in logits]
    order = sorted(range(len(weights)), key=lambda i: (-weights[i], i))
    kept = order[: row.top_k] if row.top_k else order
    total = sum(weights[i] for i in kept)
    before = 0.0
    nucleus = []
    for i in kept:
        if row.top_p < 1 and abs(before - row.top_p * total) < BORDER * total:
            return None
        if before < row.top_p * total or row.top_p == 1:
            nucleus.append(i)
        before += weights[i]
    if any(abs(weights[i] - row.min_p) < BORDER for i in nucleus if weights[i] < 1):
        return None
    nucleus = [i for i in nucleus if weights[i] >= row.min_p]
    total = sum(weights[i] for i in nucleus)
    return [weights[i] / total if i in nucleus else 0.0 for i in range(len(weights))]


def rules_for(rows: list[PlainRow]) -> LogitRules:
    """The tensors for one request per row, every rule present."""
    vocab = len(rows[0].logits)
    slots = torch.arange(1, len(rows) + 1)
    bias, counts = torch.zeros(2, len(rows) + 1, vocab)
    stop, seen = torch.zeros(2, len(rows) + 1, vocab, dtype=torch.bool)
    for slot, row in enumerate(rows, start=1):
        for i, value in row.bias.items():
            bias[slot, i] = value
        for i in row.output:
            counts[slot, i] += 1
        seen[slot, list(row.prompt)] = True
        stop[slot, list(row.stop_ids)] = True
    return LogitRules(
        bias=DenseRows(bias, slots),
        min_tokens=MinTokens(DenseRows(stop, slots), torch.tensor([row.min_tokens for row in rows])),
        penalties=Penalties(
            DenseRows(counts, slots),
            DenseRows(seen, slots),
            torch.tensor([row.repetition for row in rows]),
            torch.tensor([row.presence for row in rows]),
            torch.tensor([row.frequency for row in rows]),
        ),
        temperatures=torch.tensor([row.temperature for row in rows]),
        top_k=torch.tensor([row.top_k or vocab for row in rows]),
        top_p=torch.tensor([row.top_p for row in rows], dtype=torch.float64),
        log_min_p=torch.tensor([math.log(row.min_p) if row.min_p else -math.inf for row in rows]),
    )


def places_for(rows: list[PlainRow]) -> RowPlaces:
    depth = max(len(row.path) for row in rows)
    return RowPlaces(
        torch.arange(len(rows)),
        torch.tensor([row.output_length for row in rows]),
        torch.tensor([[*row.path, *[-1] * (depth - len(row.path))] for row in rows], dtype=torch.int64),
    )


def processed_law(rows: list[PlainRow]) -> Tensor:
    processed = process_logits(torch.tensor([row.logits for row in rows]), rules_for(rows), places_for(rows))
    greedy = torch.nn.functional.one_hot(processed.argmax(dim=1), processed.shape[1]).float()
    is_random = torch.tensor([[row.temperature > 0] for row in rows])
    return torch.where(is_random, processed.softmax(dim=1), greedy)


@st.composite
def plain_rows(draw: st.DrawFn, vocab: int | None = None) -> PlainRow:
    size = vocab if vocab is not None else draw(st.integers(1, 9))
    token = st.integers(0, size - 1)
    tokens = st.lists(token, max_size=4).map(tuple)
    grid = st.integers(-8, 8).map(lambda value: value / 4)
    logits = draw(st.lists(grid, min_size=size, max_size=size))
    masked = draw(st.sets(token))
    return PlainRow(
        logits=[-math.inf if i in masked and len(masked) < size else logit for i, logit in enumerate(logits)],
        temperature=draw(st.sampled_from([0.0, 0.25, 1.0, 1.7])),
        top_k=draw(st.integers(0, size)),
        top_p=draw(st.sampled_from([0.05, 0.3, 0.6, 0.9, 1.0])),
        min_p=draw(st.sampled_from([0.0, 0.1, 0.5, 1.0])),
        bias=draw(st.dictionaries(token, st.sampled_from([-math.inf, -1.5, 0.5, 3.0]))),
        stop_ids=draw(tokens),
        min_tokens=draw(st.integers(0, 3)),
        output_length=draw(st.integers(0, 3)),
        prompt=draw(tokens),
        output=draw(tokens),
        path=draw(tokens),
        repetition=draw(st.sampled_from([1.0, 0.5, 1.3])),
        presence=draw(st.sampled_from([0.0, 0.75, -0.5])),
        frequency=draw(st.sampled_from([0.0, 0.5, -0.25])),
    )


@settings(deadline=None, max_examples=400)
@given(row=plain_rows())
def test_the_law_of_a_row_is_what_the_parameters_say(row: PlainRow) -> None:
    expected = plain_distribution(row)
    assume(expected is not None)
    assert processed_law([row])[0].tolist() == pytest.approx(expected, abs=2e-6)


BASE = PlainRow([2.0, 1.0, 1.0, 0.0, -1.0])
KEPT: dict[str, tuple[PlainRow, list[int]]] = {
    "top_k_keeps_lowest_id_of_a_tie": (replace(BASE, top_k=2), [0, 1]),
    "top_k_one": (replace(BASE, top_k=1), [0]),
    "top_k_off": (BASE, [0, 1, 2, 3, 4]),
    "top_k_larger_than_vocabulary": (replace(BASE, top_k=99), [0, 1, 2, 3, 4]),
    "top_p_keeps_lowest_ids_of_a_tie": (replace(BASE, logits=[0.0] * 4, top_p=0.5), [0, 1]),
    "top_p_reached_exactly_needs_no_more": (replace(BASE, logits=[0.0] * 4, top_p=0.75), [0, 1, 2]),
    "top_p_just_above_takes_one_more": (replace(BASE, logits=[0.0] * 4, top_p=0.7501), [0, 1, 2, 3]),
    "top_p_tiny_keeps_the_most_likely": (replace(BASE, top_p=1e-300), [0]),
    "top_p_one_keeps_what_weighs_nothing": (replace(BASE, logits=[0.0, -80.0]), [0, 1]),
    "top_p_counts_what_top_k_left": (replace(BASE, logits=[0.0] * 5, top_k=2, top_p=0.5), [0]),
    "min_p_one_keeps_all_of_the_most_likely": (replace(BASE, logits=[1.0, 0.0, 1.0], min_p=1.0), [0, 2]),
    "min_p_counts_against_the_most_likely": (replace(BASE, min_p=0.3), [0, 1, 2]),
    "min_p_after_temperature": (replace(BASE, min_p=0.3, temperature=2.0), [0, 1, 2, 3]),
    "temperature_tiny": (replace(BASE, logits=[1.0, 30.0, 30.0], temperature=1e-38), [1, 2]),
    "ban": (replace(BASE, bias={0: -math.inf}), [1, 2, 3, 4]),
    "ban_comes_before_top_k": (replace(BASE, bias={0: -math.inf}, top_k=2), [1, 2]),
    "bans_that_leave_nothing_are_not_applied": (replace(BASE, bias={i: -math.inf for i in range(5)}), [0, 1, 2, 3, 4]),
    "min_tokens_bans_stop_ids": (replace(BASE, stop_ids=(0, 3), min_tokens=2, output_length=1), [1, 2, 4]),
    "min_tokens_reached": (replace(BASE, stop_ids=(0, 3), min_tokens=2, output_length=2), [0, 1, 2, 3, 4]),
    "min_tokens_yields_to_allowed_ids": (
        replace(BASE, bias={i: -math.inf for i in range(1, 5)}, stop_ids=(0,), min_tokens=2),
        [0],
    ),
    "a_penalty_does_not_lift_a_ban": (replace(BASE, bias={0: -math.inf}, output=(0,), repetition=0.5), [1, 2, 3, 4]),
    "a_huge_penalty_is_not_a_ban": (replace(BASE, prompt=(4,), repetition=3e38, temperature=3e38), [0, 1, 2, 3, 4]),
}


@pytest.mark.parametrize("case", KEPT)
def test_which_tokens_can_be_drawn(case: str) -> None:
    row, kept = KEPT[case]
    processed = process_logits(torch.tensor([row.logits]), rules_for([row]), places_for([row]))
    assert (processed[0] > -torch.inf).nonzero().flatten().tolist() == kept
    assert processed.max() == 0


ADJUSTED: dict[str, tuple[PlainRow, list[float]]] = {
    "repetition_counts_prompt_output_and_path": (
        replace(BASE, prompt=(0,), output=(1,), path=(4,), repetition=2.0),
        [1.0, 0.5, 1.0, 0.0, -2.0],
    ),
    "presence_and_frequency_leave_the_prompt_alone": (
        replace(BASE, prompt=(0, 0), output=(1, 1), path=(1, 2), presence=0.5, frequency=0.25),
        [2.0, -0.25, 0.25, 0.0, -1.0],
    ),
    "repetition_sees_the_biased_logit": (
        replace(BASE, bias={0: -3.0}, prompt=(0,), repetition=2.0),
        [-2.0, 1.0, 1.0, 0.0, -1.0],
    ),
    "temperature_0_skips_the_filters": (replace(BASE, top_k=1, top_p=0.1, min_p=1.0), BASE.logits),
}


@pytest.mark.parametrize("case", ADJUSTED)
def test_logits_of_greedy_rows(case: str) -> None:
    row, expected = ADJUSTED[case]
    row = replace(row, temperature=0.0)
    processed = process_logits(torch.tensor([row.logits]), rules_for([row]), places_for([row]))
    assert processed[0].tolist() == pytest.approx(expected)


def test_raw_logits_are_not_modified() -> None:
    row = replace(BASE, top_k=2, top_p=0.9, min_p=0.1, bias={1: 2.0}, output=(2,), path=(0, 0), presence=1.0)
    logits = torch.tensor([row.logits])
    rules = rules_for([row])
    for _ in range(2):
        process_logits(logits, rules, places_for([row]))
    assert logits[0].tolist() == row.logits
    assert rules.penalties is not None
    assert rules.penalties.output_counts.table[1].tolist() == [0, 0, 1, 0, 0]


@pytest.mark.parametrize("width", [37, 50, 2048])
def test_a_row_does_not_depend_on_the_rows_beside_it(width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    rows = [
        PlainRow(
            logits=(torch.randn(width, generator=generator) * 4).tolist(),
            temperature=[0.0, 0.3, 1.0, 1.5][i % 4],
            top_k=[0, 5, 0][i % 3],
            top_p=[1.0, 0.9][i % 2],
            min_p=[0.0, 0.0, 0.02][i % 3],
            output=tuple(range(i)),
            path=(i, i + 1),
            frequency=[0.0, 0.4][i % 2],
        )
        for i in range(12)
    ]
    logits = torch.tensor([row.logits for row in rows])
    together = process_logits(logits, rules_for(rows), places_for(rows))
    keys = mix_key(torch.arange(12), torch.zeros(12, dtype=torch.int64), torch.arange(12) + 5, 0)
    rules = rules_for(rows)
    drawn = draw_tokens(together, rules.temperatures, keys)
    for i, row in enumerate(rows):
        rules = rules_for([row])
        if row.top_p == 1 and not row.top_k:
            rules = replace(rules, top_p=None, top_k=None)
        if row.frequency == 0:
            rules = replace(rules, penalties=None)
        if row.temperature == 0:
            rules = replace(rules, temperatures=None)
        alone = process_logits(logits[i : i + 1], rules, places_for([row]))
        assert torch.equal(alone[0], together[i])
        assert draw_tokens(alone, rules.temperatures, keys[i : i + 1]).item() == drawn[i]


def test_columns_of_a_reduced_vocabulary_get_the_rules_of_their_own_ids() -> None:
    row = replace(
        BASE, temperature=0.0, bias={1: 2.0}, stop_ids=(4,), min_tokens=1, output=(3,), path=(3,), frequency=1.0
    )
    columns = torch.tensor([4, 3, 1])
    rules, places = rules_for([row]), places_for([row])
    logits = torch.tensor([row.logits])
    full = process_logits(logits, rules, places)
    reduced = process_logits(logits[:, columns], rules, replace(places, token_ids=columns))
    assert torch.equal(reduced, full[:, columns])


def test_greedy_draws_take_the_lowest_id_of_a_tie() -> None:
    logits = torch.tensor([[0.0, 5.0, 5.0, 1.0], [7.0, 7.0, 7.0, 7.0]])
    keys = torch.zeros(2, 2, dtype=torch.int64)
    assert draw_tokens(logits, None, keys).tolist() == [1, 0]
    assert draw_tokens(logits, torch.zeros(2), keys).tolist() == [1, 0]


@pytest.mark.parametrize(
    "row",
    [
        replace(BASE, temperature=0.7),
        replace(BASE, top_k=3, bias={3: 2.5}),
        replace(BASE, top_p=0.8, temperature=1.4),
        replace(BASE, min_p=0.2, output=(0, 0), frequency=0.4),
    ],
    ids=["temperature", "top_k_bias", "top_p", "min_p_frequency"],
)
def test_draws_follow_the_processed_law(row: PlainRow) -> None:
    num_draws = 100_000
    processed = process_logits(torch.tensor([row.logits]), rules_for([row]), places_for([row]))
    zeros = torch.zeros(num_draws, dtype=torch.int64)
    keys = mix_key(torch.arange(num_draws), zeros, zeros + 9, 0)
    drawn = draw_tokens(processed.expand(num_draws, -1), torch.ones(num_draws), keys)
    expected = plain_distribution(row)
    assert expected is not None
    assert p_value(histogram(drawn, 5), torch.tensor(expected)) > REJECTION_LEVEL


def test_log_probs_come_from_raw_logits() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 0.0], [0.0, 0.0, 0.0, 2.0]])
    result = log_probs_of(logits, torch.tensor([2, 1]), 2)
    expected = [[value - math.log(sum(map(math.exp, row))) for value in row] for row in logits.tolist()]
    assert result.log_probs.tolist() == pytest.approx([expected[0][2], expected[1][1]], abs=1e-6)
    assert result.ranks.tolist() == [1, 2]
    assert result.top_ids.tolist() == [[1, 2], [3, 0]]
    assert result.top_log_probs.flatten().tolist() == pytest.approx(
        [expected[0][1], expected[0][2], expected[1][3], expected[1][0]], abs=1e-6
    )
    assert log_probs_of(logits, torch.tensor([2, 1]), 0).top_ids.shape == (2, 0)


def test_a_vocabulary_smaller_than_asked_for_is_reported_as_a_whole() -> None:
    result = log_probs_of(torch.tensor([[1.0, 3.0, 3.0]]), torch.tensor([0]), 20)
    assert result.top_ids.tolist() == [[1, 2, 0]]
    assert result.top_log_probs.shape == (1, 3)


@given(
    st.lists(
        st.sampled_from([-math.inf, -3.5, -1.0, -0.0, 0.0, 1e-40, 2.0, 3e38]) | st.floats(-5, 5, width=32),
        min_size=1,
        max_size=12,
    )
)
def test_largest_orders_by_score_then_id(scores: list[float]) -> None:
    expected = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    for count in range(len(scores) + 1):
        assert largest(torch.tensor([scores]), count)[0].tolist() == expected[:count]


def test_log_probs_of_a_row_do_not_depend_on_the_rows_beside_it() -> None:
    logits = torch.randn(9, 50, generator=torch.Generator().manual_seed(0)) * 3
    token_ids = torch.arange(9)
    together = log_probs_of(logits, token_ids, 3)
    for i in range(9):
        alone = log_probs_of(logits[i : i + 1].clone(), token_ids[i : i + 1], 3)
        assert torch.equal(alone.log_probs[0], together.log_probs[i])
        assert torch.equal(alone.top_log_probs[0], together.top_log_probs[i])
