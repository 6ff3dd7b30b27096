"""Rows, ratios and failures of made-up rounds."""

from __future__ import annotations

from aquiline.benchmark.peer_report import Quantity, as_json, failures_of, ratios_of, rows_of
from aquiline.benchmark.peers import Outcome, ProgramOutput, Reading

SINGLE, BATCH, TREES, PROMPT = ("decode", 1, "off"), ("decode", 16, "off"), ("decode", 1, "auto"), ("prefill", 1, "off")
Rates = dict[tuple[str, int, str], float]


def outcome(engine: str, file: str, round_number: int, rates: Rates, version: str = "") -> Outcome:
    readings = tuple(Reading(*key, rate) for key, rate in rates.items())
    return Outcome(engine, file, round_number, ProgramOutput(version, readings))


def failure(engine: str, file: str, round_number: int, message: str) -> Outcome:
    return Outcome(engine, file, round_number, None, message)


OUTCOMES = [
    outcome("aquiline", "q.gguf", 0, {SINGLE: 200.0, BATCH: 900.0, TREES: 300.0, PROMPT: 2000.0}, "cpu backend"),
    outcome("llama.cpp", "q.gguf", 0, {PROMPT: 500.0}, "7"),
    outcome("llama.cpp", "q.gguf", 0, {SINGLE: 100.0}, "7"),
    outcome("llama.cpp", "other.gguf", 0, {SINGLE: 160.0}),
    failure("vllm", "folder", 0, "out of memory"),
    outcome("vllm", "folder", 1, {SINGLE: 40.0, BATCH: 300.0}, "0.1"),
    outcome("llama.cpp", "other.gguf", 1, {SINGLE: 110.0}),
    outcome("llama.cpp", "q.gguf", 1, {SINGLE: 50.0}),
    outcome("aquiline", "q.gguf", 1, {SINGLE: 120.0, BATCH: 600.0, TREES: 240.0}),
]


def ratio_table(outcomes: list[Outcome]) -> dict[tuple[str, str], tuple[str, float, float, float]]:
    return {
        (ratio.own.shown, ratio.against): (
            ratio.peer,
            ratio.spread.median,
            ratio.spread.least,
            ratio.spread.greatest,
        )
        for ratio in ratios_of(rows_of(outcomes))
    }


def test_rows_join_the_programs_of_an_engine_over_rounds() -> None:
    rows = rows_of(OUTCOMES)
    (row,) = [row for row in rows if row.shown == "llama.cpp q.gguf" and row.quantity == Quantity(*SINGLE)]
    assert row.by_round == {0: 100.0, 1: 50.0}
    assert (row.spread.median, row.spread.least, row.spread.greatest) == (75.0, 50.0, 100.0)


def test_ratios_divide_within_rounds() -> None:
    ratios = ratio_table(OUTCOMES)
    assert ratios["plain, batch 1", "same file"] == ("llama.cpp q.gguf", 2.2, 2.0, 2.4)
    assert ratios["auto, batch 1", "own plain"] == ("aquiline q.gguf", 1.75, 1.5, 2.0)
    assert ratios["prefill 512", "best peer"] == ("llama.cpp q.gguf", 4.0, 4.0, 4.0)


def test_the_best_peer_has_the_greatest_median_not_the_greatest_rate() -> None:
    one_lucky_round = {
        0: {"steady": 100.0, "lucky": 10.0},
        1: {"steady": 100.0, "lucky": 500.0},
        2: {"steady": 100.0, "lucky": 10.0},
    }
    outcomes = []
    for number, rates in one_lucky_round.items():
        outcomes.append(outcome("aquiline", "q", number, {SINGLE: 150.0}))
        outcomes += [outcome("llama.cpp", file, number, {SINGLE: rate}) for file, rate in rates.items()]
    assert ratio_table(outcomes) == {("plain, batch 1", "best peer"): ("llama.cpp steady", 1.5, 1.5, 1.5)}


def test_trees_are_compared_with_plain_peers() -> None:
    peer, median, least, greatest = ratio_table(OUTCOMES)["auto, batch 1", "best peer"]
    assert peer == "llama.cpp other.gguf"
    assert (least, greatest) == (300.0 / 160.0, 240.0 / 110.0)
    assert median == (least + greatest) / 2


def test_a_round_in_which_one_failed_makes_no_ratio() -> None:
    assert ratio_table(OUTCOMES)["plain, batch 16", "vllm"] == ("vllm folder", 2.0, 2.0, 2.0)
    never_together = [outcome("aquiline", "q", 0, {SINGLE: 1.0}), outcome("vllm", "f", 1, {SINGLE: 1.0})]
    assert ratios_of(rows_of(never_together)) == []


def test_nothing_of_ours_makes_no_ratio() -> None:
    assert ratios_of(rows_of([outcome("vllm", "folder", 0, {SINGLE: 40.0})])) == []


def test_equal_failures_are_told_once() -> None:
    again = [failure("vllm", "folder", number, "out of memory") for number in (1, 2)]
    assert [found.message for found in failures_of([*OUTCOMES, *again])] == ["out of memory"]
    assert len(failures_of([*OUTCOMES, failure("vllm", "folder", 1, "killed")])) == 2


def test_json_holds_everything() -> None:
    result = as_json(OUTCOMES)
    assert result["engines"] == {"aquiline": "cpu backend", "llama.cpp": "7", "vllm": "0.1"}
    assert result["failures"] == [{"engine": "vllm", "file": "folder", "round": 0, "message": "out of memory"}]
    assert result["rows"][0] == {
        "engine": "aquiline",
        "file": "q.gguf",
        "kind": "decode",
        "batch_size": 1,
        "speculate": "off",
        "tokens_per_second": {"median": 160.0, "min": 120.0, "max": 200.0},
        "rounds": [200.0, 120.0],
    }
    same_file = {"against": "same file", "peer": "llama.cpp q.gguf", "median": 2.2, "min": 2.0, "max": 2.4}
    assert {"kind": "decode", "batch_size": 1, "speculate": "off", **same_file} in result["ratios"]
