"""Native draws after all sampling parameters: the tokens of the reference, row by row."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from aquiline.errors import InvalidParameterError
from aquiline.kernels import cpu
from aquiline.kernels.cpu import Threads
from aquiline.kernels.reference.keyed_step import ReferenceSampling
from aquiline.kernels.reference.noise import NoiseStream, gumbel, mix_key
from aquiline.kernels.reference.sampling import DenseRows, LogitRules, RowPlaces, process_logits
from aquiline.kernels.sampling_kernels import LogitRows, SamplingRequests
from tests.kernels.chi_square import REJECTION_LEVEL, histogram, p_value
from tests.kernels.cpu.drawing_cases import DrawingCase, drawing_case, rows_of
from tests.kernels.cpu.levels import with_levels

if cpu.is_available():
    from aquiline.kernels.cpu.extension import native
    from aquiline.kernels.cpu.sampling import NativeSampling

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason=cpu.why_not())
SIZES = (1, 2, 3, 17, 63, 64, 65, 200, 1000, 8192, 8193, 20_000)


def assert_like_reference(case: DrawingCase, num_threads: int = 2) -> None:
    """The very tokens, unless rounding decides.

    Exponentials of the two sides differ in the last place. So may the noise, by 2e-6, and the mass at which top-p ends,
    by some 1e-6 of it. A native token is also right when it would win within the first, or stand within the second.
    """
    requests, rows = case.requests, case.rows
    drawn = NativeSampling(Threads(num_threads)).draw(requests, rows)
    expected = ReferenceSampling().draw(requests, rows)
    for row in (drawn != expected).nonzero().flatten().tolist():
        scores = [noisy_scores(case, row, factor) for factor in (1 - 1e-6, 1 + 1e-6)]
        assert any(score[drawn[row]] > score.max() - 4e-6 for score in scores), f"row {row}: {drawn[row]}"


def noisy_scores(case: DrawingCase, row: int, top_p_factor: float) -> Tensor:
    """Log-weights and noise of a row, with top-p a little larger or smaller."""
    part, rules = rows_of(case.rows, slice(row, row + 1)), case.requests.rules
    top_p = None if rules.top_p is None else torch.where(rules.top_p < 1, rules.top_p * top_p_factor, 1.0)
    places = RowPlaces(part.row_to_request, part.output_lengths, part.path_tokens, masks=part.masks)
    scores = process_logits(part.logits, replace(rules, top_p=top_p), places)
    if rules.temperatures is None or rules.temperatures[part.row_to_request[0]] == 0:
        return scores[0]
    keys = case.requests.keys(part.row_to_request, part.positions, NoiseStream.TARGET)
    return (scores + gumbel(keys, torch.arange(scores.shape[1])))[0]


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    vocab_size=st.sampled_from(SIZES),
    num_reqs=st.integers(1, 4),
    num_rows=st.integers(0, 8),
)
def test_tokens_are_those_of_the_reference(seed: int, vocab_size: int, num_reqs: int, num_rows: int) -> None:
    assert_like_reference(drawing_case(seed, vocab_size, num_reqs, num_rows))


@with_levels
@pytest.mark.parametrize("vocab_size", SIZES)
def test_tokens_are_those_of_the_reference_at_every_level(level: str, vocab_size: int) -> None:
    for seed in range(8):
        assert_like_reference(drawing_case(seed, vocab_size, 3, 6))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), vocab_size=st.sampled_from([5, 129, 8193, 20_000]))
def test_a_row_does_not_depend_on_the_others_or_on_threads(seed: int, vocab_size: int) -> None:
    case = drawing_case(seed, vocab_size, 3, 9)
    whole = NativeSampling(Threads(1)).draw(case.requests, case.rows)
    for num_threads in (1, 2, 3):
        kernels = NativeSampling(Threads(num_threads))
        for part in (slice(0, 1), slice(4, 5), slice(2, 9), slice(0, 9)):
            assert torch.equal(kernels.draw(case.requests, rows_of(case.rows, part)), whole[part])


def test_a_request_does_not_depend_on_the_rules_of_its_neighbours() -> None:
    for seed in range(40):
        case = drawing_case(seed, 300, 4, 8)
        kernels, rules = NativeSampling(Threads(1)), case.requests.rules
        whole = kernels.draw(case.requests, case.rows)
        if rules.temperatures is not None:
            off = replace(rules, temperatures=None, top_k=None, top_p=None, log_min_p=None)
            greedy = kernels.draw(replace(case.requests, rules=off), case.rows)
            is_greedy = rules.temperatures[case.rows.row_to_request] == 0
            assert torch.equal(greedy[is_greedy], whole[is_greedy])


def plain_step(logits: Tensor, rules: LogitRules) -> tuple[SamplingRequests, LogitRows]:
    """One request and one row for every row of logits, all with the same rules; seeds differ."""
    num_rows = len(logits)
    zeros = torch.zeros(num_rows, dtype=torch.int64)
    rows = torch.arange(num_rows)
    return SamplingRequests(rules, rows, zeros, zeros + 3), LogitRows(
        logits, rows, rows.unsqueeze(1), zeros + 9, zeros + 1
    )


LAWS = {
    "temperature": (0.7, None, None, None),
    "top_k": (1.0, 3, None, None),
    "top_p": (1.4, None, 0.8, None),
    "min_p": (1.0, None, None, 0.25),
    "all": (1.5, 4, 0.9, 0.1),
}


@with_levels
@pytest.mark.parametrize("case", LAWS)
def test_draws_follow_the_processed_law(level: str, case: str) -> None:
    temperature, top_k, top_p, min_p = LAWS[case]
    num_draws, logits = 60_000, torch.tensor([[2.0, 1.0, 1.0, 0.0, -1.0]])

    def rules(count: int) -> LogitRules:
        return LogitRules(
            temperatures=torch.full((count,), temperature),
            top_k=None if top_k is None else torch.full((count,), top_k),
            top_p=None if top_p is None else torch.full((count,), top_p, dtype=torch.float64),
            log_min_p=None if min_p is None else torch.full((count,), min_p).log(),
        )

    drawn = NativeSampling(Threads(2)).draw(*plain_step(logits.expand(num_draws, -1).contiguous(), rules(num_draws)))
    zero = torch.zeros(1, dtype=torch.int64)
    law = process_logits(logits, rules(1), RowPlaces(zero, zero)).softmax(dim=1)[0]
    assert p_value(histogram(drawn, 5), law) > REJECTION_LEVEL
    assert p_value(histogram(drawn, 5), logits.softmax(dim=1)[0]) < REJECTION_LEVEL


@with_levels
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf], ids=str)
def test_numbers_that_are_none_lead_to_some_token(level: str, bad: float) -> None:
    """Rows full of them, rows with one of them, under every combination of rules."""
    for seed in range(60):
        case = drawing_case(seed, 200, 2, 6)
        case.rows.logits[:3] = bad
        case.rows.logits[3:, seed % 200] = bad
        drawn = NativeSampling(Threads(1)).draw(case.requests, case.rows)
        assert bool(((drawn >= 0) & (drawn < 200)).all())


def test_penalty_counts_may_change_behind_prepared_requests() -> None:
    case = next(c for c in (drawing_case(seed, 50, 2, 4) for seed in range(99)) if c.requests.rules.penalties)
    kernels, penalties = NativeSampling(Threads(1)), case.requests.rules.penalties
    assert penalties is not None
    kernels.draw(case.requests, case.rows)
    prepared = kernels.prepared(case.requests, 50)
    penalties.output_counts.table[1:] += torch.arange(50)
    assert kernels.prepared(case.requests, 50) is prepared
    assert torch.equal(
        kernels.draw(case.requests, case.rows), NativeSampling(Threads(1)).draw(case.requests, case.rows)
    )
    assert_like_reference(case)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**63 - 1),
    sample_index=st.integers(0, 2**32 - 1),
    position=st.integers(0, 2**32 - 1),
    stream=st.sampled_from(NoiseStream),
)
def test_keys_are_those_of_the_reference(seed: int, sample_index: int, position: int, stream: NoiseStream) -> None:
    expected = mix_key(torch.tensor([seed]), torch.tensor([sample_index]), torch.tensor([position]), stream)
    assert native().noise_key(seed, sample_index, position, stream) == expected[0].tolist()


def broken_steps() -> dict[str, tuple[SamplingRequests, LogitRows]]:
    zeros = torch.zeros(2, 4)
    requests, rows = plain_step(zeros, LogitRules())
    biased = LogitRules(bias=DenseRows(torch.zeros(2, 4), torch.tensor([0, 2])))
    narrow = LogitRules(bias=DenseRows(torch.zeros(2, 3), torch.tensor([0, 1])))
    return {
        "half": (requests, replace(rows, logits=zeros.half())),
        "one_dimension": (requests, replace(rows, logits=zeros[0])),
        "strided": (requests, replace(rows, logits=torch.zeros(4, 2).t())),
        "empty": (requests, replace(rows, logits=zeros[:, :0].contiguous())),
        "positions": (requests, replace(rows, positions=rows.positions[:1])),
        "lengths": (requests, replace(rows, output_lengths=rows.output_lengths.float())),
        "request": (requests, replace(rows, row_to_request=torch.tensor([0, 2]))),
        "negative_request": (requests, replace(rows, row_to_request=torch.tensor([0, -1]))),
        "path": (requests, replace(rows, path_tokens=torch.tensor([[1], [4]]))),
        "slot": (replace(requests, rules=biased), rows),
        "width": (replace(requests, rules=narrow), rows),
        "seeds": (replace(requests, sample_indices=requests.seeds[:1]), rows),
        "temperatures": (replace(requests, rules=LogitRules(temperatures=torch.ones(2).double())), rows),
        "top_p": (
            replace(requests, rules=LogitRules(temperatures=torch.ones(2), top_p=torch.ones(2))),
            rows,
        ),
    }


@pytest.mark.parametrize("name", broken_steps())
def test_steps_that_do_not_fit_are_refused(name: str) -> None:
    requests, rows = broken_steps()[name]
    with pytest.raises((InvalidParameterError, IndexError)):
        NativeSampling(Threads(1)).draw(requests, rows)
