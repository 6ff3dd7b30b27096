"""The command line of `bench serving`, against a server whose delays are known and against one of ours."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from aquiline.cli import main
from aquiline.cli.app import build_parser
from aquiline.cli.bench_serving import check_arguments
from aquiline.cli.serving_table import drawing
from aquiline.tokenizer import Tokenizer
from tests.benchmark.serving.fake_server import GAP_SECONDS, NUM_EVENTS, NUM_TOKENS, FakeServer, fake_server
from tests.server.serving import write_toy

LOAD = ["--request-rates", "50", "--num-requests", "2"]


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    with fake_server() as server:
        yield server


def settings_of(*options: str) -> Any:
    return check_arguments(build_parser().parse_args(["bench", "serving", *options]))


def test_a_server_that_is_there_is_measured(fake: FakeServer, tmp_path: Path, capsys: Any) -> None:
    key = tmp_path / "key"
    key.write_text("right\n")
    argv = ["bench", "serving", "--url", fake.url, "--api-key-file", str(key), "--slo", "ttft:9000", "--label", "other"]
    assert main([*argv, "--request-rates", "50,inf", "--num-requests", "2", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["kind"], result["label"], result["model"], result["slo"]) == (
        "serving",
        "other",
        "good",
        "ttft:9000",
    )
    assert [(row["load"], row["request_rate"]) for row in result["rows"]] == [("rate", 50.0), ("burst", None)]
    assert all(row["num_output_tokens"] == 2 * NUM_TOKENS and row["good_share"] == 1.0 for row in result["rows"])
    assert result["rows"][0]["itl_ms"]["p50"] >= 0.95e3 * GAP_SECONDS
    assert "commit" in result and "right" not in json.dumps(result["arguments"])


def test_the_fields_of_a_request_are_those_that_were_typed(fake: FakeServer, capsys: Any) -> None:
    argv = ["bench", "serving", "--url", fake.url, "--max-tokens", "9", "--temperature", "0.5", "--seed", "4"]
    more = ["--ignore-eos", "--extra-body", '{"top_k": 5}', "--workloads", "code", "--repeat-prompts"]
    assert main([*argv, *more, "--concurrency", "2", "--num-requests", "2"]) == 0
    body = fake.bodies[-1]
    assert (body["max_tokens"], body["temperature"], body["ignore_eos"], body["top_k"]) == (9, 0.5, True, 5)
    assert body["seed"] in (5, 6) and not body["messages"][0]["content"].startswith("Question")
    assert "2 at once" in capsys.readouterr().out


def test_a_tokenizer_counts_where_a_server_tells_no_usage(fake: FakeServer, tmp_path: Path, capsys: Any) -> None:
    fake.models = ["strict"]
    tokenizer = write_toy(tmp_path) / "target"
    assert main(["bench", "serving", "--url", fake.url, "--tokenizer", str(tokenizer), "--json", *LOAD]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    answer = Tokenizer.from_path(tokenizer).encode("owl " * NUM_EVENTS)
    assert (row["tokens_counted_by"], row["num_output_tokens"]) == ("tokenizer", 2 * len(answer))


def test_every_figure_fits_on_80_columns(fake: FakeServer, capsys: Any) -> None:
    fake.models = ["full"]
    argv = ["bench", "serving", "--url", fake.url, "--slo", "ttft:500,tpot:50", "--json"]
    assert main([*argv, "--concurrency", "10", "--num-requests", "4"]) == 0
    result = json.loads(capsys.readouterr().out)
    row = result["rows"][0]
    row |= {
        "num_complete": 12345,
        "num_requests": 12347,
        "server_peak_memory_mb": 123456.0,
        "output_throughput": 12345.6,
    }
    row |= {"kept_schedule": False, "tokens_counted_by": "events", "concurrency": 100.0}
    console = Console(file=io.StringIO(), width=80, highlight=False)
    console.print(drawing(result))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "…" not in text and max(map(len, text.splitlines())) <= 80
    said = ["goodput under ttft:500,tpot:50", "acceptance length", "failed: 2 429", "the queue is full", "too slow"]
    said += ["of the server: 123456 MB", "every event counts as one token"]
    for part in ("12345.6", "TPOT", *said):
        assert part in " ".join(text.split()), part


def test_a_server_of_ours_is_started_measured_and_stopped(tmp_path: Path, capsys: Any) -> None:
    folder = write_toy(tmp_path)
    argv = [
        "bench",
        "serving",
        "--model",
        str(folder / "target"),
        "--draft",
        str(folder / "draft"),
        "--dtype",
        "float32",
    ]
    options = ["--speculate", "chain:2", "--draft-check", "off", "--batch-size", "2", "--max-tokens", "12"]
    (tmp_path / "arrivals").write_text("7\n7.01\n7.02\n")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "The eagle flies."}\n')
    load = ["--arrivals", str(tmp_path / "arrivals"), "--prompts", str(tmp_path / "prompts.jsonl"), "--ignore-eos"]
    assert main([*argv, *options, *load, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    (row,) = result["rows"]
    assert (result["label"], result["speculate"], result["url"]) == ("chain:2", "chain:2", None)
    assert (row["num_complete"], row["num_output_tokens"]) == (3, 36)
    assert row["server"]["num_committed_tokens"] == 36 and row["server"]["num_trees"] > 0
    assert row["server_peak_memory_mb"] > 50
    assert sum(row["server"]["phases_ms"].values()) <= 1.05 * row["server"]["time_per_committed_token_ms"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param([], "give either --url", id="no-server"),
        pytest.param(["--url", "http://a/v1", "--model", "smollm2-135m"], "give either --url", id="two-servers"),
        pytest.param(["--url", "localhost:8000"], "--url is 'localhost:8000'", id="url"),
        pytest.param(["--url", "http://a/v1", "--draft", "none"], "--draft=none is of a server that", id="draft"),
        pytest.param(["--url", "http://a/v1", "--no-prefix-cache"], "--no-prefix-cache is of a", id="engine"),
        pytest.param(["--model", "smollm2-135m", "--server-pid", "1"], "--server-pid belongs to --url", id="pid"),
        pytest.param(["--model", "smollm2-135m", "--batch-size", "0"], "max_num_seqs is 0", id="batch"),
        pytest.param(["--model", "smollm2-135m", "--speculate", "bush"], "bush", id="speculate"),
        pytest.param(["--url", "http://a/v1", "--timeout", "0"], "--timeout is 0", id="timeout"),
        pytest.param(["--url", "http://a/v1", "--max-tokens", "0"], "max_tokens is 0", id="max-tokens"),
        pytest.param(["--url", "http://a/v1", "--slo", "itl:5"], "--slo is 'itl:5'", id="slo"),
        pytest.param(["--url", "http://a/v1", "--extra-body", "[]"], "it must be an object", id="extra"),
        pytest.param(["--url", "http://a/v1", "--extra-body", "{"], "not JSON", id="extra-json"),
        pytest.param(["--url", "http://a/v1", "--extra-body", '{"n": 2}'], "has n, which", id="extra-n"),
        pytest.param(["--url", "http://a/v1", "--workloads", "poems"], "no workload 'poems'", id="workload"),
        pytest.param(["--url", "http://a/v1", "--api-key-file", "no/file"], "cannot be read", id="key"),
        pytest.param(["--url", "http://127.0.0.1:9/v1"], "cannot be reached", id="nobody-there"),
    ],
)
def test_what_cannot_be_measured_is_refused(options: list[str], message: str, capsys: Any) -> None:
    assert main(["bench", "serving", *LOAD, *options]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("load", "message"),
    [
        ([], "there is none of them"),
        (["--request-rates", "1", "--concurrency", "1"], "--request-rates and --concurrency"),
        (["--request-rates", "1,0"], "--request-rates has '0'"),
        (["--request-rates", "1,1.0"], "a value stands twice"),
        (["--request-rates", "nan"], "--request-rates has 'nan'"),
        (["--concurrency", "1.5"], "--concurrency has '1.5'"),
        (["--concurrency", "10001"], "must be 1 to 10000"),
        (["--request-rates", "1", "--num-requests", "0"], "--num-requests is 0"),
        (["--arrivals", "none.txt", "--num-requests", "3"], "leave --num-requests away"),
        (["--arrivals", "none.txt"], "cannot be read"),
    ],
)
def test_loads_that_are_none_are_refused(load: list[str], message: str, capsys: Any) -> None:
    assert main(["bench", "serving", "--url", "http://a/v1", *load]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_the_settings_of_a_server_are_passed_on_as_typed() -> None:
    shape = "dynamic:steps=2,topk=2,nodes=4"
    settings = settings_of(
        "--model", "smollm2-135m", "--speculate", shape, "--batch-size", "3", "--threads", "2", *LOAD
    )
    assert settings.own.arguments == ("smollm2-135m", "--threads=2", f"--speculate={shape}", "--max-num-seqs=3")
    assert settings.own.text == shape
    assert settings_of("--model", "smollm2-135m", "--objective", "latency", *LOAD).own.text == "auto, latency"
    assert settings_of("--model", "smollm2-135m", "--speculate", "off", *LOAD).own.text == "plain"


def test_loads_are_seeded_and_ordered() -> None:
    there = ["--url", "http://a/v1"]
    one = settings_of(*there, "--request-rates", "2,0.5,inf", "--num-requests", "5", "--seed", "1").plan.loads
    two = settings_of(*there, "--concurrency", "4,2").plan.loads
    assert [load.value for load in one] == [2.0, 0.5, None]
    assert [4.0 * time for time in one[0].arrivals] == pytest.approx(list(one[1].arrivals))
    assert one[2].arrivals == (0.0,) * 5
    assert [(load.value, load.num_requests) for load in two] == [(4.0, 64), (2.0, 64)]
