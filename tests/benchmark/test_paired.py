"""Settings that take turns group by group, and ratios that say how sure they are."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aquiline.benchmark import paired
from aquiline.benchmark.full_batch import FullBatch
from aquiline.benchmark.offline import Run, Sweep
from aquiline.benchmark.paired import measure_paired, num_groups, paired_ratio
from aquiline.llm import LLM, Conversation
from aquiline.request import SamplingParams
from aquiline.speculation import parse_speculation

MODES = (parse_speculation("off"), parse_speculation("chain:1"))


def test_a_ratio_is_the_mean_of_pairs_and_says_how_far_they_scatter() -> None:
    ratio = paired_ratio([110.0, 240.0], [100.0, 200.0])
    assert ratio is not None
    assert ratio.mean == pytest.approx(1.1489, abs=1e-4)
    assert ratio.standard_error == pytest.approx(0.0435, abs=1e-4)
    assert ratio.num_pairs == 2


def test_a_machine_that_changes_its_speed_changes_no_ratio() -> None:
    moods = (1.0, 0.4, 1.7, 0.9)
    ratio = paired_ratio([120.0 * mood for mood in moods], [100.0 * mood for mood in moods])
    assert ratio is not None and ratio.standard_error is not None
    assert ratio.mean == pytest.approx(1.2) and ratio.standard_error == pytest.approx(0.0, abs=1e-9)


def test_groups_in_which_a_batch_was_never_full_pair_with_nothing() -> None:
    ratio = paired_ratio([0.0, 150.0, 80.0], [100.0, 100.0, 0.0])
    assert ratio is not None
    assert (ratio.mean, ratio.standard_error, ratio.num_pairs) == (1.5, None, 1)
    assert paired_ratio([0.0], [1.0]) is None and paired_ratio([], []) is None


class Turns:
    """Stands for what answers: `off` commits 100 tokens a second and `chain:1` 150, in moods of the machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str, int, str]] = []
        self.tallies: list[str] = []
        monkeypatch.setattr(paired, "config_of", lambda llm, batch_size, mode, shares_prompts: mode.text)
        monkeypatch.setattr(paired, "started", self._start)
        monkeypatch.setattr(paired, "answer", self._answer)

    def _start(self, llm: object, config: str, conversations: object, params: object) -> LLM:
        def compare() -> Any:
            self.tallies.append(config)
            return SimpleNamespace(figures=lambda: None)

        return cast(LLM, SimpleNamespace(name=config, engine=SimpleNamespace(compare_forecasts=compare)))

    def _answer(self, engine: Any, group: Sequence[Conversation], params: object, batch_size: int) -> Run:
        self.asked.append((engine.name, len(group), cast(str, group[0])))
        mood = 1.0 + (len(self.asked) - 1) // len(MODES) % 3
        seconds = mood * (1.0 if engine.name == "off" else 1 / 1.5)
        speculation = SimpleNamespace(num_verify_steps=80)
        output = SimpleNamespace(outputs=[SimpleNamespace(token_ids=[1] * 100, speculation=speculation)])
        return Run(cast(Any, [output]), seconds, {"verify": seconds}, FullBatch(80, 100, seconds))


def test_modes_take_turns_group_by_group_and_change_places(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(monkeypatch)
    done: list[int] = []
    sweep = Sweep((2,), MODES, rounds=2, warm_up_rounds=1)
    conversations = cast(list[Conversation], ["a", "b", "c"])
    rows = measure_paired(cast(LLM, None), conversations, SamplingParams(), sweep, done.append)
    one_round = [("off", 2, "a"), ("chain:1", 2, "a"), ("chain:1", 1, "c"), ("off", 1, "c")]
    other_round = [("chain:1", 2, "a"), ("off", 2, "a"), ("off", 1, "c"), ("chain:1", 1, "c")]
    assert turns.asked == [*one_round, *other_round, *one_round]
    assert done == list(range(1, 3 * len(MODES) * num_groups(3, 2) + 1))
    # What was foretold while engines warmed up is in no figure.
    assert turns.tallies == ["off", "chain:1"]
    assert [row["ratio"]["mean"] for row in rows] == [1.0, 1.5]
    assert [row["ratio"]["num_pairs"] for row in rows] == [4, 4]


def test_rows_hold_the_sums_of_all_groups_that_count(monkeypatch: pytest.MonkeyPatch) -> None:
    Turns(monkeypatch)
    conversations = cast(list[Conversation], ["a", "b", "c"])
    row = measure_paired(cast(LLM, None), conversations, SamplingParams(), Sweep((1,), MODES))[0]
    assert (row["batch_size"], row["speculate"], row["num_committed_tokens"]) == (1, "off", 300)
    assert row["tokens_per_second"] == 50.0 and row["phases_ms"] == {"verify": 20.0}
    assert row["full_batch"]["num_steps"] == 240 and row["acceptance_length"] == 1.25
    assert row["ratio"] == {"mean": 1.0, "standard_error": 0.0, "num_pairs": 3}
