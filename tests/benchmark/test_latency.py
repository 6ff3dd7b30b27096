"""What one user waits for, on a toy model and in numbers written out."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from aquiline.benchmark.latency import Answer, Variant, _percentile, _row, measure_latency
from aquiline.benchmark.workloads import WORKLOADS, workload
from aquiline.engine.forecast_tally import ForecastTally
from aquiline.errors import InvalidParameterError
from aquiline.request import SamplingParams
from aquiline.speculation import parse_speculation
from aquiline.speculation_figures import SpeculationFigures
from tests.fake_llm import FakeLLM

OFF, AUTO = Variant(parse_speculation("off"), "off"), Variant(parse_speculation("auto"), "auto")


def answer(token_ids: tuple[int, ...], appeared: tuple[float, ...]) -> Answer:
    figures = SpeculationFigures(len(appeared), 6, 2, len(token_ids), appeared[-1], 4, 1)
    output: Any = SimpleNamespace(outputs=[SimpleNamespace(token_ids=token_ids, speculation=figures)])
    return Answer(output, appeared, {"draft": 0.25 * appeared[-1], "verify": 0.75 * appeared[-1]})


def test_the_worked_example() -> None:
    row = _row("chat", AUTO, [answer((1, 2, 3, 4), (0.050, 0.060, 0.068))], [answer((1, 2, 3, 4), (0.07,))])
    assert (row["ttft_ms"], row["tpot_ms"], row["itl_p50_ms"], row["itl_p95_ms"]) == (50.0, 6.0, 8.0, 10.0)
    assert row["time_per_committed_token_ms"] == pytest.approx(68 / 4)
    assert row["phases_ms"] == pytest.approx({"draft": 17 / 4, "verify": 51 / 4})
    assert row["acceptance_length"] == pytest.approx(4 / 3, abs=1e-3)
    assert row["num_equal_answers"] == 1


def test_prompts_are_pooled_by_tokens_and_other_answers_noticed() -> None:
    answers = [answer((1, 2), (0.1, 0.2)), answer((1, 2, 3, 4), (0.3, 0.6))]
    row = _row("chat", OFF, answers, [answers[0], answer((1, 2, 3, 5), (0.1,))])
    assert row["tpot_ms"] == pytest.approx(1e3 * (0.1 + 0.3) / (1 + 3))
    assert (row["ttft_ms"], row["num_committed_tokens"], row["num_equal_answers"]) == (200.0, 6, 1)


def test_answers_of_one_token_have_no_time_between_tokens() -> None:
    row = _row("chat", OFF, [answer((1,), (0.1,))], [answer((1,), (0.1,))])
    assert row["tpot_ms"] is None and row["itl_p50_ms"] is None


def test_percentiles_are_values_that_were_seen() -> None:
    values = [float(value) for value in range(1, 101)]
    assert [_percentile(values, percent) for percent in (1, 50, 95, 100)] == [1.0, 50.0, 95.0, 100.0]
    assert _percentile([3.0, 1.0], 50) == 1.0


class TurnLLM(FakeLLM):
    """Knows how it was reconfigured, and notes every answer in a list shared by all."""

    def __init__(self, order: list[str], name: str = "") -> None:
        super().__init__()
        self.config: Any = SimpleNamespace()
        self.order, self.name = order, name
        self.engine: Any = SimpleNamespace(
            clock=SimpleNamespace(seconds={"verify": 1.0}), compare_forecasts=ForecastTally
        )

    def chat(self, conversations: Any, params: SamplingParams, **callbacks: Any) -> Any:
        self.order.append(self.name)
        return super().chat([conversations], params, **{"on_output": None, "on_trace": None, **callbacks})


def test_variants_take_turns_and_each_begins_once(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr("aquiline.benchmark.latency._engine", lambda llm, variant: TurnLLM(order, variant.mode.text))
    counts: list[int] = []
    rows = measure_latency(
        TurnLLM(order),  # type: ignore[arg-type]
        {"own": [[{"role": "user", "content": "hello"}]]},
        SamplingParams(max_tokens=4),
        [OFF, AUTO],
        rounds=2,
        on_answer=counts.append,
    )
    assert order == ["off", "auto", "off", "auto", "auto", "off"]
    assert counts == [1, 2, 3, 4]
    assert [row["speculate"] for row in rows] == ["off", "auto"]
    assert all(row["forecast"] is None for row in rows)
    assert all(row["num_equal_answers"] == row["num_prompts"] == 1 for row in rows)


def test_workloads_have_names_and_documents() -> None:
    for name, texts in WORKLOADS.items():
        assert len(set(texts)) == len(texts) >= 2
        assert [turn["content"] for (turn,) in workload(name)] == list(texts)
    assert all(len(text) > 2000 for name in ("summary", "retrieval") for text in WORKLOADS[name])
    with pytest.raises(InvalidParameterError, match="there is no workload 'chats'; there are chat, code"):
        workload("chats")


def test_variants_differ_by_mode_and_lookup() -> None:
    assert replace(AUTO, lookup="off") != AUTO
