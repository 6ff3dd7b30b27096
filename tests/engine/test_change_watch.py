"""When what the draft's confidence promises stops coming true, or begins to."""

from __future__ import annotations

import random

from aquiline.engine.change_watch import ChangeWatch


def trials(watch: ChangeWatch, chance: float, truth: float, count: int, dice: random.Random) -> list[float]:
    """Trials of one chance of which a share comes true; what the watch finds, with its own share of 1."""
    found = [watch.see(float(dice.random() < chance * truth), chance, 1.0) for _ in range(count)]
    return [share for share in found if share is not None]


def test_the_worked_example() -> None:
    watch = ChangeWatch()
    found = [watch.see(0.0, 0.7, 1.0) for _ in range(16)]
    assert found[:15] == [None] * 15
    assert found[15] == 0.01


def test_what_stays_true_is_left_alone() -> None:
    false_alarms = sum(len(trials(ChangeWatch(), 0.7, 1.0, 2000, random.Random(seed))) for seed in range(20))
    assert false_alarms <= 8  # of 40,000 trials


def test_a_change_is_found_soon_and_with_its_size() -> None:
    for seed in range(10):
        for truth in (0.0, 0.4, 1.4):
            dice, watch = random.Random(seed), ChangeWatch()
            trials(watch, 0.6, 1.0, 500, dice)
            found = trials(watch, 0.6, truth, 120, dice)
            # The first may begin before the change; each says what has come true since it began.
            assert found and min(abs(share - truth) for share in found) < 0.3
