"""llama.cpp as measured programs: its own `llama-bench` and `llama-batched-bench`, and what they print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aquiline.benchmark.peers import DECODE, PREFILL, Program, ProgramOutput, Reading, positive_rate
from aquiline.benchmark.python_engines import PREFILL_TOKENS, Workload

LLAMA_CPP = "llama.cpp"
REPETITIONS = 3
CONTEXT_STEP = 256
FLASH_ATTENTION = ("auto", "on", "off")


def single_programs(bench: Path, file: Path, workload: Workload, flash_attention: str) -> list[Program]:
    """`llama-bench`: prefill, and, where batch size 1 is asked for, decoding from a context as long as a prompt."""
    common = (
        *(str(bench), "-m", str(file), "-t", str(workload.num_threads), "-fa", flash_attention),
        *("-r", str(REPETITIONS), "-o", "jsonl"),
    )
    prefill = (*common, "-p", str(PREFILL_TOKENS), "-n", "0")
    programs = [Program(LLAMA_CPP, file.name, prefill, parse_bench)]
    if 1 in workload.batch_sizes:
        depth = str(workload.mean_prompt_tokens)
        decode = (*common, "-p", "0", "-n", str(workload.max_tokens), "-d", depth)
        programs.append(Program(LLAMA_CPP, file.name, decode, parse_bench))
    return programs


def batched_program(
    bench: Path, file: Path, workload: Workload, batch_sizes: tuple[int, ...], flash_attention: str
) -> Program:
    """`llama-batched-bench`: every request has a prompt of the mean length and a cache that holds all it decodes."""
    num_tokens = workload.mean_prompt_tokens + workload.max_tokens
    context = max(batch_sizes) * CONTEXT_STEP * -(-num_tokens // CONTEXT_STEP)
    command = (
        *(str(bench), "-m", str(file), "-t", str(workload.num_threads), "-c", str(context)),
        *("-fa", flash_attention),
        *("-npp", str(workload.mean_prompt_tokens), "-ntg", str(workload.max_tokens)),
        *("-npl", ",".join(map(str, batch_sizes)), "--output-format", "jsonl"),
    )

    def parse(output: str) -> ProgramOutput:
        return parse_batched(output, batch_sizes)

    return Program(LLAMA_CPP, file.name, command, parse)


def parse_bench(output: str) -> ProgramOutput:
    """The JSON lines of `llama-bench`: one per test, either a prompt or generated tokens.

    Raises:
        ValueError, KeyError, TypeError: no line, or one without the expected figures.
    """
    readings, version = [], ""
    for entry in _objects(output):
        kind = DECODE if entry["n_gen"] else PREFILL
        readings.append(Reading(kind, 1, "off", positive_rate(entry["avg_ts"])))
        if entry["build_number"]:
            version = f"{entry['build_number']} ({entry['build_commit']})"
    return ProgramOutput(version, tuple(readings))


def parse_batched(output: str, batch_sizes: tuple[int, ...]) -> ProgramOutput:
    """The JSON lines of `llama-batched-bench`: one per batch size.

    Raises:
        ValueError: a batch size is missing, which happens where the cache is too small for it.
        KeyError, TypeError: a line without the expected figures.
    """
    readings = [
        Reading(DECODE, int(entry["pl"]), "off", positive_rate(entry["speed_tg"])) for entry in _objects(output)
    ]
    if [reading.batch_size for reading in readings] != list(batch_sizes):
        raise ValueError(f"batch sizes {[reading.batch_size for reading in readings]} instead of {list(batch_sizes)}")
    return ProgramOutput("", tuple(readings))


def _objects(output: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    if not found:
        raise ValueError("no line is a JSON object")
    return found
