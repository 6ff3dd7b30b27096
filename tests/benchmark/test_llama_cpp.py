"""llama.cpp's commands, and the JSON lines of its two programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aquiline.benchmark.llama_cpp import batched_program, parse_batched, parse_bench, single_programs
from aquiline.benchmark.peers import Reading
from aquiline.benchmark.python_engines import Workload

WORKLOAD = Workload(((1,) * 99, (1,) * 101), (1, 4, 16), 128, 2)


def bench_line(num_prompt: int, num_generated: int, rate: float, build: int = 7100) -> str:
    fields = {"build_commit": "abc1234", "build_number": build, "n_prompt": num_prompt, "n_gen": num_generated}
    return json.dumps({**fields, "n_depth": 0, "avg_ts": rate, "stddev_ts": 0.5, "samples_ts": [rate]})


def batched_line(batch_size: int, rate: float) -> str:
    return json.dumps({"pp": 100, "tg": 128, "pl": batch_size, "speed_pp": 900.5, "speed_tg": rate, "speed": 500.1})


def options_of(command: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(command[1::2], command[2::2], strict=True))


def test_bench_is_asked_for_a_prompt_and_for_tokens_behind_a_prompt() -> None:
    prefill, decode = single_programs(Path("bin/llama-bench"), Path("models/a.gguf"), WORKLOAD, "off")
    assert prefill.command[0] == "bin/llama-bench"
    assert (prefill.engine, prefill.file) == ("llama.cpp", "a.gguf")
    assert options_of(prefill.command).items() >= {"-m": "models/a.gguf", "-p": "512", "-n": "0", "-t": "2"}.items()
    assert "-d" not in prefill.command
    assert options_of(decode.command).items() >= {"-p": "0", "-n": "128", "-d": "100", "-fa": "off"}.items()


def test_bench_decodes_only_where_one_request_is_asked_for() -> None:
    workload = Workload(WORKLOAD.prompts, (4,), 128, 2)
    (prefill,) = single_programs(Path("llama-bench"), Path("a.gguf"), workload, "on")
    assert options_of(prefill.command)["-p"] == "512"


def test_the_batched_program_has_room_for_every_request() -> None:
    program = batched_program(Path("llama-batched-bench"), Path("a.gguf"), WORKLOAD, (4, 16), "on")
    wanted = {"-npp": "100", "-ntg": "128", "-npl": "4,16", "-c": str(16 * 256), "-t": "2", "-fa": "on"}
    assert options_of(program.command).items() >= wanted.items()
    output = program.parse(batched_line(4, 300.0) + "\n" + batched_line(16, 500.0))
    assert output.readings == (Reading("decode", 4, "off", 300.0), Reading("decode", 16, "off", 500.0))


def test_bench_lines_become_readings() -> None:
    output = parse_bench(f"a warning\n{bench_line(512, 0, 812.5)}\n{bench_line(0, 128, 131.25)}\n")
    assert output.readings == (Reading("prefill", 1, "off", 812.5), Reading("decode", 1, "off", 131.25))
    assert output.version == "7100 (abc1234)"


def test_a_build_without_a_number_has_no_version() -> None:
    assert parse_bench(bench_line(512, 0, 812.5, build=0)).version == ""


@pytest.mark.parametrize("output", ["", "no figures\n", "{broken\n"])
def test_output_without_figures_is_a_value_error(output: str) -> None:
    with pytest.raises(ValueError):
        parse_bench(output)
    with pytest.raises(ValueError):
        parse_batched(output, (4,))


def test_a_line_without_its_figure_is_an_error() -> None:
    with pytest.raises(KeyError):
        parse_bench('{"n_gen": 0}')
    with pytest.raises(KeyError):
        parse_batched('{"pl": 4}', (4,))


@pytest.mark.parametrize("rate", ["0", "NaN", "-1"])
def test_a_rate_that_is_none_is_an_error(rate: str) -> None:
    line = f'{{"n_gen": 0, "n_prompt": 512, "avg_ts": {rate}, "build_number": 1, "build_commit": ""}}'
    with pytest.raises(ValueError, match="tokens per second"):
        parse_bench(line)


def test_a_batch_size_that_was_left_out_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"\[4\] instead of \[4, 16\]"):
        parse_batched(batched_line(4, 300.0), (4, 16))
