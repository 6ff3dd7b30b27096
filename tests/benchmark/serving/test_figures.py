"""Figures of a load, in numbers written out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aquiline.benchmark.serving.figures import Counting, busy_seconds, most_at_once, row_of
from aquiline.benchmark.serving.load import Load, LoadRun
from aquiline.benchmark.serving.reading import Reading, TokenCounts
from aquiline.benchmark.serving.server_figures import growth, read_counters
from aquiline.benchmark.serving.service_levels import parse_service_levels
from aquiline.errors import InvalidParameterError

LOAD = Load("rate", 2.0, 4, (0.0, 0.5, 1.0, 1.5))


def reading(due: float, appeared: tuple[float, ...], num_output: int | None, late: float = 0.0) -> Reading:
    counts = None if num_output is None else TokenCounts(10, num_output)
    return Reading(due, due + late, due + appeared[-1], tuple(due + at for at in appeared), text="a b c", num_events=2,
                   counts=counts)  # fmt: skip


READINGS = [
    reading(0.0, (0.1, 0.2, 0.4), 4),
    reading(0.5, (0.3, 0.5), 3),
    reading(1.0, (0.1,), 1),
    Reading(1.5, 1.5, 1.6, outcome="429", message="the queue is full"),
]


def test_latencies_throughput_and_goodput() -> None:
    row = row_of(LoadRun(LOAD, READINGS, 0.08), parse_service_levels("ttft:200,tpot:150"), Counting())
    assert row["ttft_ms"] == pytest.approx({"mean": 500 / 3, "p50": 100, "p90": 300, "p99": 300}, abs=1e-3)
    # (400 - 100) / 3 and (500 - 300) / 2; one token has no time between tokens.
    assert row["tpot_ms"] == pytest.approx({"mean": 100, "p50": 100, "p90": 100, "p99": 100})
    assert row["itl_ms"] == pytest.approx({"mean": 500 / 3, "p50": 200, "p90": 200, "p99": 200}, abs=1e-3)
    assert row["e2el_ms"] == pytest.approx({"mean": 1000 / 3, "p50": 400, "p90": 500, "p99": 500}, abs=1e-3)
    assert (row["num_requests"], row["num_complete"], row["failures"]) == (4, 3, {"429": 1})
    assert row["failure_messages"] == ["the queue is full"]
    assert (row["num_output_tokens"], row["num_input_tokens"], row["tokens_counted_by"]) == (8, 30, "usage")
    assert row["seconds"] == pytest.approx(1.6)
    assert row["output_throughput"] == pytest.approx(8 / 1.6)
    # The second answer began too late, the last one failed.
    assert (row["goodput"], row["good_share"]) == (pytest.approx(2 / 1.6), 0.5)
    assert row["time_per_committed_token_ms"] == pytest.approx(1e3 * (0.4 + 0.5 + 0.1 + 0.1) / 8)
    assert (row["client_processor_share"], row["kept_schedule"]) == (pytest.approx(0.05), True)


def test_a_client_that_is_late_says_so() -> None:
    late = [reading(0.1 * n, (0.5,), 3, late=0.02 * n) for n in range(4)]
    row = row_of(LoadRun(Load("rate", 10.0, 4, (0.0, 0.1, 0.2, 0.3)), late, 0.0), None, Counting())
    assert row["sent_late_ms"] == pytest.approx({"mean": 30, "p99": 60})
    assert row["kept_schedule"] is False
    assert row["goodput"] is None and row["ttft_ms"]["p50"] == pytest.approx(460)
    burst = row_of(LoadRun(Load("burst", None, 4, (0.0,) * 4), late, 0.0), None, Counting())
    assert burst["kept_schedule"] is True and burst["sent_late_ms"] == row["sent_late_ms"]


def test_nothing_complete_has_no_latencies() -> None:
    row = row_of(LoadRun(LOAD, READINGS[3:], 0.0), parse_service_levels("ttft:1"), Counting())
    assert row["ttft_ms"] is row["tpot_ms"] is row["tokens_counted_by"] is None
    assert row["time_per_committed_token_ms"] is None
    assert row["goodput"] == 0.0


def test_without_usage_a_tokenizer_or_the_events_count() -> None:
    untold = [reading(0.0, (0.1, 0.4), None), READINGS[0]]
    run = LoadRun(LOAD, untold, 0.0)
    by_events, by_words = row_of(run, None, Counting()), row_of(run, None, Counting(lambda text: len(text.split())))
    assert (by_events["tokens_counted_by"], by_events["num_output_tokens"]) == ("events", 2 + 4)
    assert (by_words["tokens_counted_by"], by_words["num_output_tokens"]) == ("tokenizer", 3 + 4)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)).map(lambda pair: (pair[0], sum(pair))), min_size=1))
def test_busy_time_and_most_at_once_agree_with_counting_every_unit(spans: list[tuple[int, int]]) -> None:
    at_once = [sum(begin <= unit < end for begin, end in spans) for unit in range(40)]
    assert busy_seconds(spans) == sum(count > 0 for count in at_once)
    if all(begin < end for begin, end in spans):
        assert most_at_once(spans) == max(at_once)


def test_service_levels_are_spelt_as_they_are_read() -> None:
    levels = parse_service_levels("ttft:500,tpot:12.5")
    assert levels.text == "ttft:500,tpot:12.5"
    assert levels.are_met({"ttft": 500.0, "tpot": None, "e2el": 1e9})
    assert not levels.are_met({"ttft": 1.0, "tpot": 12.6, "e2el": 1.0})


@pytest.mark.parametrize(
    "text", ["", "ttft", "ttft:", "ttft:0", "ttft:-1", "ttft:inf", "ttft:1.2.3", "itl:5", "ttft:1,ttft:2"]
)
def test_other_service_levels_are_refused(text: str) -> None:
    with pytest.raises(InvalidParameterError, match="--slo is"):
        parse_service_levels(text)


def exposition(num_committed: int, num_trees: int, accepted: tuple[int, int]) -> str:
    first, second = accepted
    return f"""# HELP aquiline:generation_tokens_total committed tokens
# TYPE aquiline:generation_tokens_total counter
aquiline:generation_tokens_total{{model_name="toy"}} {num_committed}
aquiline:spec_decode_num_drafts_total{{model_name="toy"}} {num_trees}
aquiline:spec_decode_num_draft_tokens_total{{model_name="toy"}} {4 * num_trees}
aquiline:spec_decode_num_accepted_draft_tokens_total{{model_name="toy"}} {first + second}
aquiline:spec_decode_num_accepted_draft_tokens_per_pos_total{{model_name="toy",position="0"}} {first}
aquiline:spec_decode_num_accepted_draft_tokens_per_pos_total{{model_name="toy",position="1"}} {second}
aquiline:step_seconds_sum{{model_name="toy"}} {0.01 * num_committed}
aquiline:step_seconds_count{{model_name="toy"}} {num_trees}
aquiline:step_phase_seconds_total{{model_name="toy",phase="verify"}} {0.008 * num_committed}
python_gc_objects_total 5
"""


def test_a_server_of_ours_tells_what_grew() -> None:
    before, after = read_counters(exposition(100, 10, (5, 5))), read_counters(exposition(120, 20, (11, 8)))
    grown = growth(before, after)
    assert grown is not None
    assert (grown["num_committed_tokens"], grown["num_trees"], grown["num_steps"]) == (20, 10, 10)
    assert (grown["acceptance_length"], grown["acceptance_rate"]) == (1.9, pytest.approx(9 / 40))
    assert grown["conditional_acceptance_per_position"] == [0.6, 0.5]
    assert grown["time_per_committed_token_ms"] == pytest.approx(10.0)
    assert grown["phases_ms"] == {"verify": pytest.approx(8.0)}


def test_other_servers_tell_nothing() -> None:
    ours = read_counters(exposition(1, 0, (0, 0)))
    assert read_counters("vllm:generation_tokens_total 5\n") is read_counters(None) is None
    assert read_counters("<html>") is None
    assert growth(None, ours) is growth(ours, None) is growth(ours, ours) is None
