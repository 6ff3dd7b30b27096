"""A profile is measured in one mood of the machine and used in another: two scales follow within some 30 steps."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest

from aquiline.engine.cost_correction import TwoScales
from aquiline.engine.cost_curve import Curve, PreparedCurve
from aquiline.engine.cost_model import CostModel, CostProfile, StepSeconds, StepSize

# Milliseconds of a small 4-bit model on two cores, with stairs behind 16 and 32 rows.
STAIRS = Curve((1, 2, 4, 8, 16, 17, 32, 33, 64), (2.6, 2.7, 3.1, 3.7, 5.6, 6.8, 9.9, 11.0, 19.0))
PROFILE = CostProfile(
    verify=STAIRS,
    seconds_per_context_token=1e-5,
    seconds_per_row_context=2e-5,
    extend=Curve((1, 256), (0.2, 5.0)),
    propose_roots=Curve((1, 256), (0.2, 5.0)),
    level=Curve((1, 256), (0.2, 5.0)),
    sample_base=0.05,
    sample_per_row=0.01,
    host_base=0.2,
    host_per_request=0.01,
)


@dataclass
class Moody:
    """A machine that is as the profile says but for two factors, noise and accidents."""

    first: float
    more: float
    noise: float
    dice: random.Random

    def true(self, size: StepSize) -> float:
        first = STAIRS.seconds[0] + 3e-5 * size.context
        more = STAIRS.at(size.num_rows) - STAIRS.seconds[0] + 2e-5 * (size.row_context - size.context)
        return self.first * first + self.more * more

    def teach(self, model: CostModel, size: StepSize) -> None:
        accident = 3.0 if self.noise and self.dice.random() < 0.03 else 1.0
        factor = accident * max(0.5, 1.0 + self.dice.gauss(0.0, self.noise))
        foretold = model.predict(size)
        seconds = StepSeconds(self.true(size) * factor, foretold.draft, foretold.sample, foretold.host)
        model.observe(size, seconds)


def of_rows(num_rows: int) -> StepSize:
    return StepSize(num_rows, num_rows, 1, context=200, row_context=200 * num_rows)


MOODS = [(1.4, 1.0), (1.0, 1.4), (0.7, 0.7), (1.4, 1.4), (0.75, 1.35), (1.3, 0.7)]


@pytest.mark.parametrize(("first", "more"), MOODS)
@pytest.mark.parametrize("seed", range(3))
def test_thirty_steps_of_two_sizes_tell_what_all_others_take(first: float, more: float, seed: int) -> None:
    machine, model = Moody(first, more, 0.03, random.Random(seed)), CostModel(PROFILE)
    for step in range(32):
        machine.teach(model, of_rows((1, 6, 1, 16)[step % 4]))
    for rows in (1, 2, 4, 6, 16, 17, 24, 33):
        size = of_rows(rows)
        assert model.predict(size).verify == pytest.approx(machine.true(size), rel=0.1), rows


@pytest.mark.parametrize(("first", "more"), MOODS)
def test_a_mood_that_changes_while_steps_run_is_followed_within_thirty(first: float, more: float) -> None:
    machine, model = Moody(1.0, 1.0, 0.03, random.Random(7)), CostModel(PROFILE)
    for step in range(400):
        machine.teach(model, of_rows((1, 6, 16)[step % 3]))
    machine.first, machine.more = first, more
    for step in range(30):
        machine.teach(model, of_rows((1, 6, 16)[step % 3]))
    for rows in (1, 4, 8, 16, 17):
        size = of_rows(rows)
        assert model.predict(size).verify == pytest.approx(machine.true(size), rel=0.1), rows


def test_steps_of_one_size_scale_all_others_alike() -> None:
    machine, model = Moody(1.3, 1.3, 0.0, random.Random(0)), CostModel(PROFILE)
    for _ in range(64):
        machine.teach(model, of_rows(1))
    assert model.predict(of_rows(24)).verify == pytest.approx(machine.true(of_rows(24)), rel=0.05)


def test_what_was_learnt_of_further_rows_outlasts_plain_steps() -> None:
    machine, model = Moody(1.0, 1.4, 0.02, random.Random(1)), CostModel(PROFILE)
    for step in range(200):
        machine.teach(model, of_rows((1, 12)[step % 2]))
    for _ in range(300):
        machine.teach(model, of_rows(1))
    assert model.predict(of_rows(12)).verify == pytest.approx(machine.true(of_rows(12)), rel=0.08)


def test_accidents_hardly_move_the_scales() -> None:
    dice, scales = random.Random(2), TwoScales()
    for _ in range(500):
        scales.observe(1.0, 0.5, 1.5 * (4.0 if dice.random() < 0.04 else 1.0))
        assert 0.9 < scales.of(1.0, 0.5) / 1.5 < 1.15


@pytest.mark.parametrize("slowdown", [1.2, 1.4, 1.8])
@pytest.mark.parametrize("seed", range(3))
def test_a_mood_that_only_plain_steps_met_makes_no_row_free(slowdown: float, seed: int) -> None:
    dice, scales = random.Random(seed), TwoScales()
    for step in range(400):
        is_plain = 200 <= step < 220
        more = 0.1 * (1 if is_plain else dice.choice((1, 2, 2, 2, 3)))
        seconds = (1.0 + more) * dice.lognormvariate(0.0, 0.05)
        scales.observe(1.0, more, seconds * (slowdown if is_plain else 1.0))
        # Of a step with 24 rows, which never ran.
        assert scales.of(1.0, 2.3) / 3.3 > 0.75


def test_scales_stay_above_nothing() -> None:
    scales = TwoScales()
    for step in range(100):
        rows = (0.0, 4.0)[step % 2]
        scales.observe(1.0, rows, 1.0 if rows else 3.0)
        assert scales.first > 0.0 and scales.more > 0.0


def test_answers_are_only_said_to_have_changed_when_they_have() -> None:
    machine, model = Moody(1.0, 1.0, 0.02, random.Random(3)), CostModel(PROFILE)
    for step in range(600):
        machine.teach(model, of_rows((1, 5)[step % 2]))
    assert model.version <= 12
    settled = model.version
    machine.first = machine.more = 1.4
    for step in range(32):
        machine.teach(model, of_rows((1, 5)[step % 2]))
    assert model.version > settled


def test_nothing_is_reckoned_across_a_stair() -> None:
    prepared = PreparedCurve.of(STAIRS)
    assert prepared.stairs() == (16, 32)
    assert prepared.at(16) == 5.6 and prepared.at(17) == 6.8
    assert prepared.at(12) == pytest.approx(4.65)
    assert prepared.at(20) == pytest.approx(6.8 + 3 * 3.1 / 15)
    assert PreparedCurve.of(Curve((1, 2, 3, 4), (1.0, 1.1, 1.2, 1.3))).stairs() == ()
    assert CostModel(PROFILE).stairs == (16, 32)


def test_many_sizes_at_once_take_as_long_as_one_by_one() -> None:
    machine, model = Moody(1.2, 0.8, 0.02, random.Random(4)), CostModel(PROFILE)
    for step in range(60):
        machine.teach(model, of_rows((1, 5, 17)[step % 3]))
    rows = np.array([1.0, 3.0, 16.0, 17.0, 40.0, 900.0])
    row_context = 100.0 * rows
    many = model.verify_seconds_of(rows, 300, row_context)
    assert many.tolist() == pytest.approx(
        [model.verify_seconds(int(count), 300, int(context)) for count, context in zip(rows, row_context, strict=True)]
    )
    levels = np.array([[0.0, 0.0], [4.0, 0.0], [4.0, 8.0]])
    drafts = model.draft_seconds_of(np.array([0.0, 2.0, 9.0]), levels)
    assert drafts.tolist() == pytest.approx([0.0, model.draft_seconds(2, (4,)), model.draft_seconds(9, (4, 8))])
    others = model.other_seconds_of(np.array([1.0, 7.0]), 3)
    assert others.tolist() == pytest.approx([model.other_seconds(1, 3), model.other_seconds(7, 3)])


def test_masks_of_guided_requests_are_learnt() -> None:
    model = CostModel(PROFILE)
    size = StepSize(4, 4, 1, 100, 400, num_masked_rows=4)
    for _ in range(60):
        foretold = model.predict(size)
        model.observe(size, StepSeconds(foretold.verify, foretold.draft, foretold.sample, foretold.host, 4 * 2e-4))
    assert model.mask_seconds == pytest.approx(2e-4, rel=0.05)
    assert model.predict(size).grammar == pytest.approx(8e-4, rel=0.05)
