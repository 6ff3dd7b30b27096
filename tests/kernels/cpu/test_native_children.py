"""The best children of draft nodes, natively: those of the sampler's scores."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from aquiline.engine.sample import Proposal, Sampler
from aquiline.engine.sampling_inputs import SamplingInputs
from aquiline.errors import InvalidParameterError
from aquiline.kernels import cpu
from aquiline.kernels.cpu import Threads
from aquiline.kernels.reference.sampling import LogitRules, largest
from aquiline.kernels.sampling_kernels import LogitRows, SamplingRequests
from tests.kernels.cpu.drawing_cases import CaseMaker, rows_of
from tests.kernels.cpu.levels import with_levels

if cpu.is_available():
    from aquiline.kernels.cpu.sampling import BestChildren, NativeSampling, PreparedRequests, best_children

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason=cpu.why_not())


class DraftCase:
    """Draft logits over some of the target's ids, and the requests they belong to."""

    def __init__(self, seed: int, vocab_size: int, num_columns: int | None, num_rows: int = 5) -> None:
        make = CaseMaker(seed, vocab_size, 3)
        requests = make.requests()
        self.vocab_size = vocab_size
        self.requests = SamplingInputs(
            requests.rules, requests.seeds, requests.sample_indices, requests.prompt_lengths, True, None
        )
        self.column_ids: Tensor | None = None
        if num_columns is not None:
            self.column_ids = torch.randperm(vocab_size, generator=make.generator)[:num_columns]
        row_to_request, positions = make.integers(0, 3, num_rows), make.integers(9, 20, num_rows)
        self.rows = LogitRows(
            make.logits(num_rows, num_columns or vocab_size),
            row_to_request,
            torch.zeros(3, 1, dtype=torch.int64),
            positions,
            positions - requests.prompt_lengths[row_to_request],
            make.paths(num_rows),
            make.masks(num_rows),
        )

    def native(self, width: int, num_threads: int = 2, part: slice | None = None) -> BestChildren:
        rows = self.rows if part is None else rows_of(self.rows, part)
        prepared = PreparedRequests(self.requests, self.vocab_size)
        return best_children(prepared, rows, self.column_ids, width, Threads(num_threads))

    def reference(self) -> Proposal:
        rows = self.rows
        return Sampler(self.vocab_size).propose_scores(
            self.requests,
            rows.logits,
            rows.row_to_request,
            rows.positions,
            self.column_ids,
            rows.path_tokens,
            rows.masks,
        )


def assert_like_reference(case: DraftCase, width: int) -> None:
    """The very columns, unless the last places of two scores decide; confidences within rounding."""
    best, proposal = case.native(width), case.reference()
    expected = largest(proposal.scores, width)
    scores = proposal.scores.gather(1, expected)
    own_scores = proposal.scores.gather(1, best.columns)
    gap = (own_scores - scores).abs()
    assert bool(((gap < 4e-6) | (own_scores == scores)).all())
    assert all(len(set(row)) == width for row in best.columns.tolist())
    is_random = case.requests.is_greedy.logical_not()[case.rows.row_to_request]
    assert torch.equal(best.columns[~is_random], expected[~is_random])
    confidence = proposal.log_confidence.gather(1, best.columns)
    finite = confidence > -1e30
    assert torch.allclose(best.log_confidence[finite], confidence[finite], rtol=1e-5, atol=2e-5)
    assert bool((best.log_confidence[~finite] <= -1e30).all())


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    vocab_size=st.sampled_from([6, 64, 65, 700, 9000]),
    is_reduced=st.booleans(),
    width=st.integers(1, 6),
)
def test_children_are_those_of_the_reference(seed: int, vocab_size: int, is_reduced: bool, width: int) -> None:
    num_columns = max(width, vocab_size // 2) if is_reduced else None
    assert_like_reference(DraftCase(seed, vocab_size, num_columns), width)


@with_levels
@pytest.mark.parametrize("num_columns", [6, 63, 64, 65, 129, 1000, None])
def test_children_are_those_of_the_reference_at_every_level(level: str, num_columns: int | None) -> None:
    for seed in range(4):
        assert_like_reference(DraftCase(seed, 2000, num_columns), 4)


@pytest.mark.parametrize("seed", range(12))
def test_a_row_does_not_depend_on_the_others_or_on_threads(seed: int) -> None:
    case = DraftCase(seed, 5000, 3001, num_rows=9)
    whole = case.native(7, 1)
    for num_threads in (1, 2, 3):
        for part in (slice(0, 1), slice(4, 5), slice(2, 9), slice(0, 9)):
            some = case.native(7, num_threads, part)
            assert torch.equal(some.columns, whole.columns[part])
            assert torch.equal(some.log_confidence, whole.log_confidence[part])


def test_children_begin_with_the_tokens_that_the_target_would_draw() -> None:
    """A perfect draft without filters is always right."""
    for seed in range(20):
        case = DraftCase(seed, 900, None)
        rules = LogitRules(case.requests.rules.bias, temperatures=torch.tensor([0.0, 0.7, 1.3]))
        requests = SamplingInputs(
            rules, case.requests.seeds, case.requests.sample_indices, case.requests.prompt_lengths, True, None
        )
        drawn = NativeSampling(Threads(1)).draw(requests, case.rows)
        best = best_children(PreparedRequests(requests, 900), case.rows, None, 3, Threads(1))
        assert torch.equal(best.columns[:, 0], drawn)


def test_every_column_can_be_asked_for_and_ties_go_to_the_lowest() -> None:
    case = DraftCase(1, 130, None, num_rows=2)
    case.requests = SamplingInputs(
        LogitRules(), case.requests.seeds, case.requests.seeds, case.requests.prompt_lengths, True, None
    )
    case.rows.logits[:] = torch.tensor([0.0, -0.0, 1.0, -torch.inf, 0.0]).repeat(26)
    for width in (1, 3, 27, 104, 130):
        assert torch.equal(case.native(width).columns, largest(case.rows.logits, width))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_no_confidence_is_a_nan(bad: float) -> None:
    """A dynamic tree sorts by it, and must keep a node only together with its parent."""
    for seed in range(8):
        case = DraftCase(seed, 130, None)
        case.rows.logits[:, ::3] = bad
        case.rows.logits[-1] = bad
        assert not bool(case.native(5).log_confidence.isnan().any())
        assert not bool(case.reference().log_confidence.isnan().any())


def test_children_that_do_not_fit_are_refused() -> None:
    case = DraftCase(0, 50, None)
    prepared = PreparedRequests(case.requests, 50)
    wrong_ids = torch.arange(1, 51)
    for column_ids, width in ((None, 0), (None, 51), (wrong_ids, 2), (wrong_ids[:7], 2), (wrong_ids.int(), 2)):
        with pytest.raises(InvalidParameterError):
            best_children(prepared, case.rows, column_ids, width, Threads(1))
    bare = SamplingRequests(LogitRules(), case.requests.seeds, case.requests.seeds, case.requests.seeds)
    with pytest.raises(InvalidParameterError, match="give column_ids"):
        best_children(PreparedRequests(bare, 60), case.rows, None, 2, Threads(1))
