"""`aquiline bench peers` from the command line to the report, with small scripts in place of the peers."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

import pytest

from aquiline.benchmark.peers import Program
from aquiline.benchmark.python_engines import OwnModel, Workload, parse_answer
from aquiline.cli import bench_peers, main
from tests.tiny_tokenizers import byte_level_metadata, train_byte_level, write_gguf

LLAMA_BENCH = """
import json, sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
rate = 100.0 if "first" in given["-m"] else 160.0
fields = {"build_commit": "abc", "build_number": 7, "n_prompt": int(given["-p"]), "n_gen": int(given["-n"])}
print(json.dumps({**fields, "avg_ts": rate if fields["n_gen"] else 5 * rate}))
"""
LLAMA_BATCHED_BENCH = """
import json, sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
for size in map(int, given["-npl"].split(",")):
    print(json.dumps({"pl": size, "speed_tg": 300.0 if size > 1 else 90.0}))
"""
VLLM_PYTHON = """
import sys
print("INFO starting")
sys.exit("ImportError: no torch")
"""
OWN_RATES = {"off": 200.0, "auto": 320.0}


def script(path: Path, code: str) -> Path:
    """A program that runs `code`."""
    path.with_suffix(".py").write_text(code)
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(path))}.py "$@"\n')
    path.chmod(0o755)
    return path


def own_program(own: OwnModel, workload: Workload) -> Program:
    """In the place of our engine: twice as fast as `OWN_RATES` at batch size 2."""
    readings = [
        {"kind": "decode", "batch_size": size, "speculate": "off", "tokens_per_second": size * OWN_RATES["off"]}
        for size in workload.batch_sizes
    ]
    if own.speculate != "off":
        rate = OWN_RATES[own.speculate]
        readings.append({"kind": "decode", "batch_size": 1, "speculate": own.speculate, "tokens_per_second": rate})
    readings.append({"kind": "prefill", "batch_size": 1, "speculate": "off", "tokens_per_second": 2000.0})
    answer = json.dumps({"version": "cpu backend", "readings": readings})
    return Program("aquiline", own.file, (sys.executable, "-c", f"print({answer!r})"), parse_answer)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with programs, models and prompts, which is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench_peers, "own_program", own_program)
    script(tmp_path / "llama-bench", LLAMA_BENCH)
    script(tmp_path / "llama-batched-bench", LLAMA_BATCHED_BENCH)
    script(tmp_path / "vllm-python", VLLM_PYTHON)
    for name in ("first.gguf", "second.gguf"):
        write_gguf(tmp_path / name, byte_level_metadata(train_byte_level()))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.json").write_text("{}")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "one"}\n{"turns": ["two", "three"]}\n')
    return tmp_path


BASE = ["bench", "peers", "--prompts", "prompts.jsonl"]
FILES = ["--gguf", "first.gguf", "--gguf", "second.gguf"]
LLAMA = ["--llama-bench", "./llama-bench", "--llama-batched-bench", "./llama-batched-bench"]
VLLM = ["--vllm-python", "./vllm-python", "--vllm-model", "folder"]


def test_json_has_rows_ratios_failures_and_provenance(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--batch-sizes", "1,2", "--rounds", "2", "--threads", "1", "--json"]
    assert main([*BASE, *FILES, *LLAMA, *VLLM, *options]) == 0
    result = json.loads(capsys.readouterr().out)
    assert {"commit", "versions", "machine", "arguments", "date"} <= result.keys()
    assert (result["num_rounds"], result["num_prompts"], result["num_threads"]) == (2, 2, 1)
    assert result["engines"] == {"aquiline": "cpu backend", "llama.cpp": "7 (abc)"}
    assert [failed["message"] for failed in result["failures"]] == ["exit status 1: ImportError: no torch"] * 2
    ratios = {
        (ratio["kind"], ratio["batch_size"], ratio["speculate"], ratio["against"]): (ratio["peer"], ratio["median"])
        for ratio in result["ratios"]
    }
    assert ratios == {
        ("decode", 1, "off", "same file"): ("llama.cpp first.gguf", 2.0),
        ("decode", 1, "off", "best peer"): ("llama.cpp second.gguf", 1.25),
        ("decode", 2, "off", "same file"): ("llama.cpp first.gguf", 1.333),
        ("decode", 2, "off", "best peer"): ("llama.cpp first.gguf", 1.333),
        ("decode", 1, "auto", "same file"): ("llama.cpp first.gguf", 3.2),
        ("decode", 1, "auto", "best peer"): ("llama.cpp second.gguf", 2.0),
        ("decode", 1, "auto", "own plain"): ("aquiline first.gguf", 1.6),
        ("prefill", 1, "off", "same file"): ("llama.cpp first.gguf", 4.0),
        ("prefill", 1, "off", "best peer"): ("llama.cpp second.gguf", 2.5),
    }


def test_the_report_is_readable(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*BASE, *FILES, *LLAMA, *VLLM, "--batch-sizes", "1,2", "--rounds", "1"]) == 0
    shown = capsys.readouterr().out
    for text in ("plain, batch 2", "auto, batch 1", "prefill 512", "400.0", "best peer", "1.25"):
        assert text in shown
    assert "failed: vllm folder: exit status 1: ImportError: no torch\n" in shown
    assert shown.endswith("aquiline cpu backend, llama.cpp 7 (abc)\n")


def test_the_batched_program_measures_one_request_where_it_is_alone(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--gguf", "first.gguf", "--llama-batched-bench", "./llama-batched-bench"]
    assert main([*BASE, *options, "--batch-sizes", "1", "--rounds", "1", "--speculate", "off", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    rates = [row["tokens_per_second"]["median"] for row in rows if row["engine"] == "llama.cpp"]
    assert rates == [90.0]
    assert {row["speculate"] for row in rows} == {"off"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param([], "there is nobody to compare with", id="no-peer"),
        pytest.param(["--llama-bench", "./missing"], "--llama-bench is 'missing'; it must be", id="no-program"),
        pytest.param(["--llama-bench", "first.gguf"], "--llama-bench is 'first.gguf'; it must be", id="no-right"),
        pytest.param(["--vllm-python", "./vllm-python"], "--vllm-python and --vllm-model belong", id="no-folder"),
        pytest.param([*LLAMA, "--vllm-model", "folder"], "--vllm-python and --vllm-model belong", id="no-python"),
        pytest.param([*VLLM[:3], "."], "--vllm-model is '.'; it must be", id="no-config"),
        pytest.param([*VLLM, "--gguf", "second.gguf"], "only llama.cpp runs more than one", id="files-for-nobody"),
        pytest.param([*LLAMA, "--gguf", "folder/../first.gguf"], "two --gguf are called 'first.gguf'", id="equal"),
        pytest.param([*LLAMA, "--gguf", "folder"], "--gguf is 'folder', which is a folder", id="folder"),
        pytest.param([*LLAMA, "--gguf", "missing.gguf"], "no model 'missing.gguf'", id="missing-file"),
        pytest.param([*LLAMA, "--speculate", "chain:0"], "", id="shape"),
        pytest.param([*LLAMA, "--speculate", "chain:2", "--draft", "none"], "--draft none grows no tree", id="draft"),
        pytest.param([*LLAMA, "--quantization", "int3"], "quantization is 'int3'", id="quantization"),
        pytest.param([*LLAMA, "--batch-sizes", "1,1"], "--batch-sizes is '1,1', where a value", id="twice"),
        pytest.param([*LLAMA, "--batch-sizes", "0"], "max_num_seqs is 0", id="batch-size"),
        pytest.param([*LLAMA, "--max-tokens", "1"], "--max-tokens is 1; decoding is timed", id="tokens"),
        pytest.param([*LLAMA, "--rounds", "0"], "--rounds is 0; it must be an integer from 1", id="rounds"),
        pytest.param([*LLAMA, "--llama-flash-attention", "no"], "argument --llama-flash", id="attention"),
        pytest.param([*LLAMA, "--threads", "0"], "--threads is 0; it must be", id="threads"),
        pytest.param([*LLAMA, "--threads", "1000"], "--threads is 1000 and", id="more-threads-than-cores"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    options: list[str], message: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*BASE, "--gguf", "first.gguf", *options]) == 2
    assert capsys.readouterr().err.startswith(f"aquiline: error: {message}")


def test_without_threads_all_cores_compute(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--gguf", "first.gguf", *LLAMA, "--batch-sizes", "1", "--rounds", "1", "--json"]
    assert main([*BASE, *options]) == 0
    assert json.loads(capsys.readouterr().out)["num_threads"] == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(("load", "is_warned"), [(0.2, False), (3.5, True)])
def test_a_busy_machine_is_told(
    load: float, is_warned: bool, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    options = ["--gguf", "first.gguf", *LLAMA, "--batch-sizes", "1", "--rounds", "1", "--json"]
    assert main([*BASE, *options]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["load_average_before"] == load
    assert ("load average 3.5" in captured.err) == is_warned
