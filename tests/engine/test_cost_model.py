"""Costs: curves, what steps teach them, fitting, and files that are never trusted beyond their key."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import pytest

from aquiline.engine.cost_curve import Curve
from aquiline.engine.cost_fit import fit_costs
from aquiline.engine.cost_model import GENERIC_PROFILE, CostModel, StepSeconds, StepSize
from aquiline.engine.plan import StepReport
from aquiline.engine.profile import ProfileKey, StoredProfile, load_profile, machine_identity, save_profile
from aquiline.errors import InvalidParameterError, ModelFormatError, UserError
from aquiline.speculation import NO_TREE

KEY = ProfileKey(
    "m.gguf, 9 bytes", "d, 3 bytes", "cpu", "auto", "auto", "bfloat16", "bfloat16", 2, "cpu", "avx2", "x, 2", "1.0"
)
STORED = StoredProfile(KEY, GENERIC_PROFILE, 80, "2026-01-01 10:00", is_short=True)


def test_a_curve_is_straight_between_its_points_and_goes_on_beyond_them() -> None:
    curve = Curve((2, 4, 8), (1.0, 3.0, 4.0))
    assert [curve.at(rows) for rows in (0, 1, 2, 3, 4, 6, 8, 12)] == [0.0, 1.0, 1.0, 2.0, 3.0, 3.5, 4.0, 5.0]


def plain(num_rows: int) -> StepSize:
    return StepSize(num_rows, num_rows, num_rows, context=100 * num_rows, row_context=100 * num_rows)


def observe(model: CostModel, size: StepSize, factor: float) -> None:
    foretold = CostModel(learns=False).predict(size)
    model.observe(size, StepSeconds(*(factor * getattr(foretold, name) for name in StepSeconds.__slots__)))


def test_steps_that_take_longer_correct_their_row_count_and_its_neighbours() -> None:
    model, before = CostModel(), CostModel(learns=False)
    for _ in range(240):
        observe(model, plain(8), 1.5)

    def ratio(rows: int) -> float:
        return model.predict(plain(rows)).verify / before.predict(plain(rows)).verify

    assert ratio(8) == pytest.approx(1.5, rel=0.05)
    assert 1.1 < ratio(16) <= ratio(8) * 1.01
    assert model.version > 0


def test_what_is_seen_at_one_size_does_not_spoil_another() -> None:
    model = CostModel()
    for _ in range(200):
        observe(model, plain(1), 1.0)
        observe(model, plain(32), 1.4)
    assert model.predict(plain(32)).verify / GENERIC_PROFILE.verify.at(32) > 1.3
    assert model.predict(plain(1)).verify == pytest.approx(CostModel(learns=False).predict(plain(1)).verify, rel=0.05)


def test_accidents_hardly_move_anything() -> None:
    model, dice = CostModel(), random.Random(1)
    for _ in range(300):
        observe(model, plain(4), 4.0 if dice.random() < 0.05 else 1.0 + dice.gauss(0.0, 0.05))
    assert model.predict(plain(4)).total == pytest.approx(CostModel(learns=False).predict(plain(4)).total, rel=0.06)


def test_times_never_fall_with_more_rows() -> None:
    model = CostModel()
    for _ in range(64):
        observe(model, plain(16), 0.4)
    seconds = [model.verify_seconds(rows, 0, 0) for rows in range(1, 129)]
    assert all(later >= earlier * (1.0 - 1e-12) for earlier, later in pairwise(seconds))


def test_a_model_that_does_not_learn_stays() -> None:
    model = CostModel(learns=False)
    observe(model, plain(4), 3.0)
    assert model.version == 0 and model.predict(plain(4)) == CostModel(learns=False).predict(plain(4))


def reports_of(noise: float, seed: int = 0) -> list[StepReport]:
    """Steps of a machine that is as the generic profile says, with accidents."""
    truth, dice, reports = CostModel(learns=False), random.Random(seed), []
    for requests in (1, 2, 4, 16):
        for nodes, levels in ((0, ()), (1, (1,)), (3, (1, 1, 1)), (6, (1, 3)), (12, (1, 4, 2))):
            for context in (50, 400):
                rows = requests * (1 + nodes)
                size = StepSize(
                    num_rows=rows,
                    num_drawn_rows=rows,
                    num_requests=requests,
                    context=context * requests,
                    row_context=context * rows,
                    num_new_rows=2 * requests if nodes else 0,
                    level_rows=tuple(requests * width for width in levels),
                )
                for _ in range(8):
                    factor = (1.0 + abs(dice.gauss(0.0, noise))) * (3.0 if noise and dice.random() < 0.1 else 1.0)
                    true = truth.predict(size)
                    seconds = StepSeconds(*(factor * getattr(true, name) for name in StepSeconds.__slots__))
                    reports.append(StepReport(NO_TREE, size, seconds))
    dice.shuffle(reports)
    return reports


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_fit_foretells_the_steps_it_was_made_from(noise: float) -> None:
    fitted = CostModel(fit_costs(reports_of(noise)), learns=False)
    truth = CostModel(learns=False)
    errors = []
    for report in reports_of(0.0):
        errors.append(abs(fitted.predict(report.size).total / truth.predict(report.size).total - 1.0))
    assert sorted(errors)[len(errors) // 2] < (0.04 if noise == 0.0 else 0.1)
    assert max(errors) < 0.25


def test_a_stair_is_found_between_the_row_counts_on_both_sides_of_it() -> None:
    dice, reports = random.Random(3), []
    for rows in (1, 2, 4, 8, 16, 17, 24, 32, 33):
        for _ in range(12):
            factor = 1.0 + abs(dice.gauss(0.0, 0.05))
            verify = (1.0 + 0.06 * rows + 0.4 * ((rows - 1) // 16)) * factor
            reports.append(
                StepReport(NO_TREE, StepSize(rows, rows, 1, 50, 50 * rows), StepSeconds(verify, 0, 0.01, 0.1))
            )
    model = CostModel(fit_costs(reports), learns=False)
    assert model.stairs == (16, 32)
    leap = model.verify_seconds(17, 50, 850) - model.verify_seconds(16, 50, 800)
    assert leap == pytest.approx(0.46, rel=0.3)


def test_one_row_count_that_was_disturbed_does_not_lift_all_that_follow() -> None:
    reports = []
    for rows, verify in ((1, 1.0), (2, 3.0), (3, 1.2), (4, 1.3)):
        reports += [StepReport(NO_TREE, StepSize(rows, rows, 1), StepSeconds(verify, 0, 0.01, 0.1))] * 4
    curve = fit_costs(reports).verify
    pooled = 5.5 / 3
    # Beside the pool the middle of it and of the line to the first row.
    assert curve.seconds == pytest.approx((1.0, (pooled + (1.0 + pooled) / 2) / 2, pooled, pooled))


def test_accidents_do_not_turn_the_weights_into_context() -> None:
    for seed in range(8):
        costs = fit_costs(reports_of(0.6, seed))
        assert costs.verify.at(1) > 0.4 * GENERIC_PROFILE.verify.at(1)


def test_a_fit_needs_steps_of_several_sizes() -> None:
    with pytest.raises(InvalidParameterError, match="at least two different sizes"):
        fit_costs(reports_of(0.0)[:1])


def test_a_stored_profile_comes_back(tmp_path: Path) -> None:
    path = save_profile(tmp_path / "new", STORED)
    assert load_profile(tmp_path / "new", KEY) == STORED
    assert [file.name for file in (tmp_path / "new").iterdir()] == [path.name]


def test_nothing_stored_is_no_error(tmp_path: Path) -> None:
    assert load_profile(tmp_path, KEY) is None
    save_profile(tmp_path, STORED)
    assert load_profile(tmp_path, replace(KEY, num_threads=3)) is None


@pytest.mark.parametrize("field", [name for name in asdict(KEY)])
def test_a_profile_for_something_else_is_refused(tmp_path: Path, field: str) -> None:
    path = save_profile(tmp_path, STORED)
    content = json.loads(path.read_text())
    content["key"][field] = "another"
    path.write_text(json.dumps(content))
    with pytest.raises(ModelFormatError, match=f"for another {field}"):
        load_profile(tmp_path, KEY)


DAMAGES = {
    "no json": "{",
    "a list": "[]",
    "an old version": {"version": 0},
    "another format": {"format": "x"},
    "no costs": {"costs": {}},
    "a curve that falls": {"costs": asdict(GENERIC_PROFILE) | {"verify": {"rows": [1, 2], "seconds": [2.0, 1.0]}}},
    "rows out of order": {"costs": asdict(GENERIC_PROFILE) | {"level": {"rows": [2, 1], "seconds": [1.0, 2.0]}}},
    "a negative time": {"costs": asdict(GENERIC_PROFILE) | {"host_base": -1.0}},
    "no number": {"costs": asdict(GENERIC_PROFILE) | {"sample_base": "x"}},
    "infinity": {"costs": asdict(GENERIC_PROFILE) | {"sample_base": float("inf")}},
}


@pytest.mark.parametrize("damage", sorted(DAMAGES))
def test_a_damaged_profile_is_refused(tmp_path: Path, damage: str) -> None:
    path, change = save_profile(tmp_path, STORED), DAMAGES[damage]
    path.write_text(change if isinstance(change, str) else json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ModelFormatError, match="measure again"):
        load_profile(tmp_path, KEY)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        save_profile(tmp_path / "file", STORED)


def test_the_machine_has_a_name(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: Fast 9000\n")
    assert machine_identity(tmp_path / "cpuinfo").startswith("Fast 9000, ")
    assert "processors" in machine_identity(tmp_path / "missing")
