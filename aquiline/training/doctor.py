"""Examines a draft: what it foresees of its target, whether that is what it claims, and if not, what is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from aquiline.engine.draft_check import DraftFit
from aquiline.errors import PromptError
from aquiline.models.draft_metadata import AcceptanceFigures, DraftMetadata, chain_acceptance_length
from aquiline.models.draft_probe import MARGIN, MAX_RANK, ProbeHits, TargetReading, probe_draft
from aquiline.models.eagle import EagleModel
from aquiline.models.loading import LoadedDraft
from aquiline.models.model_config import LlamaConfig
from aquiline.models.tensor_shapes import ID_MAP
from aquiline.training.draft_mistakes import (
    BorrowedWeights,
    DraftVariant,
    Mistake,
    map_of_similar_rows,
    possible_mistakes,
)

NUM_STEPS = 4
# Mistakes are told apart by so short a chain: the second token shows faults of self-fed rows.
MISTAKE_STEPS = 2
# A variant foresees clearly more when it gains so many nats per token or accepted tokens per position, and so many
# standard errors.
CLEAR_LIKELIHOOD, CLEAR_ACCEPTED, CLEAR_ERRORS = 0.02, 0.1, 4.0
# Shares of the accepted draft tokens that may be missing against the figures of a draft: numerics and sample size
# explain the first, other prompts the second.
SAME_PROMPTS_LOSS, OTHER_PROMPTS_LOSS = 0.15, 0.5
# The share of right first guesses under which drafting can hardly pay.
WEAK_AGREEMENT = 0.2
PROBE_PROMPTS = "aquiline draft check"

Verdict = Literal["fits", "weak", "below its figures", "at chance", "mistake found"]
ProgressCallback = Callable[[str, int, int], None]
"""Called with what is being done, and how much of how much is done."""


@dataclass(frozen=True)
class TestedMistake:
    """What the draft foresees when it is run as if one mistake were mended.

    Attributes:
        agreement: share of right first guesses.
        accepted_gain: accepted tokens more per position, in a chain of MISTAKE_STEPS.
        likelihood_gain: by how much more likely it finds the target's tokens, in nats per token of such a chain.
        is_clear: whether the gain is far beyond what luck explains.
    """

    name: str
    meaning: str
    agreement: float
    accepted_gain: float
    likelihood_gain: float
    is_clear: bool


@dataclass(frozen=True)
class DraftReport:
    """What an examination found.

    Attributes:
        num_positions: places of the texts at which the draft was asked.
        agreement: share of positions at which the target's token is among the first 1, 2 and 4 candidates.
        conditional_per_position: share of draft tokens accepted at each place of a chain, given that all before were.
        coverage: share of the target's tokens that are in the draft's vocabulary.
        chance: what guesses at the wrong places, or of common tokens, would reach.
        claimed: the figures of the draft's own metadata that were compared, if there are any.
        cause: the mistake that explains it, if one does.
    """

    num_positions: int
    agreement: Mapping[int, float]
    conditional_per_position: tuple[float, ...]
    coverage: float
    chance: float
    claimed: AcceptanceFigures | None
    mistakes: tuple[TestedMistake, ...]
    cause: TestedMistake | None
    verdict: Verdict

    @property
    def acceptance_length(self) -> float:
        """Committed tokens per verify step to expect of a chain of NUM_STEPS."""
        return chain_acceptance_length(self.conditional_per_position)

    @property
    def is_sound(self) -> bool:
        return self.verdict in ("fits", "weak")


def examine(
    draft: LoadedDraft,
    target: LlamaConfig,
    weights: BorrowedWeights,
    readings: Sequence[TargetReading],
    on_progress: ProgressCallback | None = None,
) -> DraftReport:
    """Probe a draft as it is, and as it would be if each possible mistake were mended.

    Args:
        draft: float32.
        readings: of texts that the target wrote, with the outputs of `layers_to_read` as features.

    Raises:
        PromptError: no text is long enough to ask anything.
    """
    readings = [text for text in readings if len(text.token_ids) - text.num_prompt_tokens > NUM_STEPS + MARGIN]
    if not readings:
        raise PromptError(
            f"the target's answers end after at most {NUM_STEPS + MARGIN} tokens, too few to judge a draft by; "
            "give other prompts"
        )
    bench = _Bench(layers_to_read(draft, target, weights), weights, readings)
    variant = as_it_is(draft)
    hits, before = bench.probe(variant, NUM_STEPS), bench.probe(variant, MISTAKE_STEPS)
    mistakes = possible_mistakes(variant, target, weights)
    expected_ids = torch.tensor(sorted(set(hits.expected_ids.tolist())))
    of_rows = map_of_similar_rows(variant, weights, _proposed_draft_ids(draft, hits), expected_ids)
    if of_rows is not None:
        mistakes = (*mistakes, of_rows)
    tested = []
    for number, mistake in enumerate(mistakes):
        if on_progress is not None:
            on_progress("looking for mistakes", number, len(mistakes))
        tested.append(_compare(mistake, before, bench.probe(mistake.variant, MISTAKE_STEPS)))
    return _report(draft, hits, tuple(tested))


def as_it_is(draft: LoadedDraft) -> DraftVariant:
    """The draft, run as its file says."""
    return DraftVariant(draft.config, dict(draft.tensors), draft.config.aux_layer_ids)


def layers_to_read(draft: LoadedDraft, target: LlamaConfig, weights: BorrowedWeights) -> tuple[int, ...]:
    """Layers whose outputs the draft and any of its possible mistakes read, in ascending order."""
    variant = as_it_is(draft)
    mistakes = possible_mistakes(variant, target, weights)
    return tuple(sorted({*variant.layer_ids, *(i for mistake in mistakes for i in mistake.variant.layer_ids)}))


@dataclass(frozen=True)
class _Bench:
    """Runs variants of a draft on the same readings.

    Attributes:
        layers: whose outputs the readings have as features, in that order.
    """

    layers: tuple[int, ...]
    weights: BorrowedWeights
    readings: Sequence[TargetReading]

    def probe(self, variant: DraftVariant, num_steps: int) -> ProbeHits:
        model = EagleModel(variant.config, variant.tensors, self.weights.embedding, self.weights.head)
        readings = [replace(reading, features=self._features(reading, variant.layer_ids)) for reading in self.readings]
        with torch.inference_mode():
            return probe_draft(model, readings, num_steps, torch.float32, variant.pairing)

    def _features(self, reading: TargetReading, layer_ids: Sequence[int]) -> Tensor:
        if not layer_ids:
            return reading.hidden_states.float()
        outputs = dict(zip(self.layers, reading.features.float().chunk(len(self.layers), dim=-1), strict=True))
        return torch.cat([outputs[layer_id] for layer_id in layer_ids], dim=-1)


def _proposed_draft_ids(draft: LoadedDraft, hits: ProbeHits) -> Tensor:
    return torch.isin(draft.tensors[ID_MAP], hits.proposed_ids).nonzero().flatten()


def _compare(mistake: Mistake, before: ProbeHits, after: ProbeHits) -> TestedMistake:
    """Whether a variant foresees more, position by position; those of one token and one expectation are one.

    The likelihood shows what right guesses alone would need ten times the text for; but a draft that only hedges better
    is no better draft, so the guesses must not get worse, nor be those of chance. Where a variant is asked for other
    tokens than the draft, these may be easier for any draft: there the guesses have to be clearly better.
    """
    pairs = list(zip(before.root_ids.tolist(), before.expected_ids.tolist(), strict=True))
    number_of = {pair: number for number, pair in enumerate(dict.fromkeys(pairs))}
    kinds = torch.tensor([number_of[pair] for pair in pairs])
    likelier = _mean_per_kind((after.log_probs - before.log_probs).double().mean(dim=1), kinds)
    accepted = (after.num_accepted - before.num_accepted).double()
    is_clear = _is_clear(likelier, CLEAR_LIKELIHOOD)
    is_clear = is_clear and float(accepted.mean()) >= 0 and not DraftFit.of(after).is_at_chance
    if mistake.variant.pairing.label:
        is_clear = is_clear and _is_clear(_mean_per_kind(accepted, kinds), CLEAR_ACCEPTED)
    return TestedMistake(
        mistake.name,
        mistake.meaning,
        after.agreement(1),
        float(accepted.mean()),
        float(likelier.mean()),
        is_clear,
    )


def _mean_per_kind(values: Tensor, kinds: Tensor) -> Tensor:
    """Means over positions of one kind: a text that goes in circles is no new evidence each time round."""
    counts = torch.bincount(kinds)
    return torch.zeros(len(counts), dtype=values.dtype).index_add(0, kinds, values) / counts


def _is_clear(gains: Tensor, least: float) -> bool:
    """Whether a mean gain is so large, and far beyond what luck explains."""
    standard_error = float(gains.std()) / math.sqrt(len(gains))
    return float(gains.mean()) > max(least, CLEAR_ERRORS * standard_error)


def _report(draft: LoadedDraft, hits: ProbeHits, mistakes: tuple[TestedMistake, ...]) -> DraftReport:
    cause = max(
        (mistake for mistake in mistakes if mistake.is_clear), key=lambda mistake: mistake.likelihood_gain, default=None
    )
    claimed = _claimed(draft.metadata)
    fit = DraftFit.of(hits)
    conditional = hits.conditional_per_position()
    verdict: Verdict = "fits"
    if cause is not None:
        verdict = "mistake found"
    elif fit.is_at_chance:
        verdict = "at chance"
    elif claimed is not None and _falls_short(conditional, claimed):
        verdict = "below its figures"
    elif hits.agreement(1) < WEAK_AGREEMENT:
        verdict = "weak"
    return DraftReport(
        num_positions=len(hits.ranks),
        agreement={count: hits.agreement(count) for count in (1, 2, MAX_RANK)},
        conditional_per_position=conditional,
        coverage=float(torch.isin(hits.expected_ids, draft.tensors[ID_MAP]).double().mean()),
        chance=fit.chance,
        claimed=claimed,
        mistakes=mistakes,
        cause=cause,
        verdict=verdict,
    )


def _claimed(metadata: DraftMetadata) -> AcceptanceFigures | None:
    """The figures to compare with: those on the same prompts, else the first at temperature 0."""
    greedy = [figures for figures in metadata.acceptance if figures.temperature == 0.0]
    same = [figures for figures in greedy if figures.prompts == PROBE_PROMPTS]
    return next(iter([*same, *greedy]), None)


def _falls_short(conditional: tuple[float, ...], claimed: AcceptanceFigures) -> bool:
    """Whether a chain accepts fewer draft tokens than the figures say, by more than other prompts explain."""
    steps = min(len(conditional), len(claimed.conditional_per_position))
    found = chain_acceptance_length(conditional[:steps]) - 1.0
    expected = chain_acceptance_length(claimed.conditional_per_position[:steps]) - 1.0
    tolerated = SAME_PROMPTS_LOSS if claimed.prompts == PROBE_PROMPTS else OTHER_PROMPTS_LOSS
    return found < (1.0 - tolerated) * expected
