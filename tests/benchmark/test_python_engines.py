"""The jobs of Aquiline and vLLM, their answers, and Aquiline's worker on a tiny model."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aquiline.benchmark.own_decoding import measure
from aquiline.benchmark.peers import Program, run_program
from aquiline.benchmark.python_engines import OwnModel, Workload, own_program, parse_answer, vllm_program
from tests.checkpoints import write_draft, write_target
from tests.tiny import tiny_eagle_config, tiny_llama_config
from tests.tiny_tokenizers import train_byte_level

ANSWER = (
    '{"version": "1", "readings": [{"kind": "decode", "batch_size": 4, "speculate": "off", "tokens_per_second": 9.5}]}'
)


def letters_of(prompts: list[tuple[int, ...]]) -> str:
    return "".join(chr(prompt[0]) for prompt in prompts)


def workload(text: str = "abcdefgh", batch_sizes: tuple[int, ...] = (1, 16)) -> Workload:
    return Workload(tuple((ord(letter),) for letter in text), batch_sizes, 32, 2)


def runs_of(program: Program) -> list[dict[str, Any]]:
    return list(json.loads(program.standard_input)["runs"])


@pytest.mark.parametrize(
    ("text", "batch_size", "taken"),
    [
        ("abcdefgh", 1, "aceg"),
        ("abcdefgh", 16, "aabbccddeeffgghh"),
        ("abcdefgh", 3, "abcefg"),
        ("a", 2, "aaaa"),
        ("abc", 5, "aabbc"),
    ],
)
def test_plain_prompts_are_whole_waves_spread_over_all(text: str, batch_size: int, taken: str) -> None:
    assert letters_of(workload(text).plain_prompts(batch_size)) == taken


def test_the_prefill_prompt_repeats_the_prompts() -> None:
    assert "".join(map(chr, workload("abc").prefill_prompt())) == "abc" * 170 + "ab"


def test_the_mean_prompt_is_rounded() -> None:
    assert Workload(((1,) * 10, (1,) * 13), (1,), 8, 1).mean_prompt_tokens == 12


def test_trees_answer_all_prompts_one_by_one() -> None:
    *plain, trees = runs_of(own_program(OwnModel("m.gguf", "m.gguf", "auto", "auto", "chain:2"), workload()))
    assert [(run["batch_size"], run["speculate"], len(run["prompts"])) for run in plain] == [
        (1, "off", 4),
        (16, "off", 16),
    ]
    assert (trees["batch_size"], trees["speculate"], len(trees["prompts"])) == (1, "chain:2", 8)


def test_without_trees_there_is_no_such_run() -> None:
    own = OwnModel("m.gguf", "m.gguf", "auto", "auto", "off")
    assert [run["speculate"] for run in runs_of(own_program(own, workload()))] == ["off", "off"]


def test_answers_stand_between_logged_lines() -> None:
    (found,) = parse_answer(f"{{'not': json}}\nINFO loading\n{ANSWER}\nINFO bye\n").readings
    assert (found.kind, found.batch_size, found.tokens_per_second) == ("decode", 4, 9.5)


@pytest.mark.parametrize("output", ["", "INFO loading", ANSWER.replace("9.5", "NaN"), ANSWER.replace("9.5", "0")])
def test_answers_without_figures_are_value_errors(output: str) -> None:
    with pytest.raises(ValueError):
        parse_answer(output)


def test_vllm_gets_the_cores_that_were_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5, 3, 8})
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libiomp5.so").touch()
    program = vllm_program(tmp_path / "bin" / "python", Path("models/folder"), workload())
    assert program.environment["VLLM_CPU_OMP_THREADS_BIND"] == "3,5"
    assert program.environment["LD_PRELOAD"] == str(tmp_path / "lib" / "libiomp5.so")
    assert "VLLM_CPU_KVCACHE_SPACE" not in program.environment
    assert (program.engine, program.file, program.command[0]) == ("vllm", "folder", str(tmp_path / "bin" / "python"))
    assert [run["batch_size"] for run in runs_of(program)] == [1, 16]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    config = replace(tiny_llama_config(), vocab_size=train_byte_level().get_vocab_size(), max_position=600)
    write_target(folder / "target", config)
    write_draft(folder / "draft", replace(tiny_eagle_config(config), draft_vocab_size=config.vocab_size))
    return folder


def own_model(folder: Path, speculate: str) -> OwnModel:
    return OwnModel(str(folder / "target"), "target", str(folder / "draft"), "auto", speculate)


def test_the_own_engine_measures_in_a_process_of_its_own(folder: Path) -> None:
    work = Workload(((5, 6, 7), (8, 9)), (1, 3), 6, 1)
    outcome = run_program(own_program(own_model(folder, "chain:2"), work), 0, 240.0)
    assert outcome.output is not None, outcome.message
    assert outcome.output.version in ("cpu backend", "pytorch backend")
    assert [(found.kind, found.batch_size, found.speculate) for found in outcome.output.readings] == [
        ("decode", 1, "off"),
        ("decode", 3, "off"),
        ("decode", 1, "chain:2"),
        ("prefill", 1, "off"),
    ]


def test_a_model_that_cannot_be_loaded_is_the_message(tmp_path: Path) -> None:
    own = OwnModel(str(tmp_path / "missing.gguf"), "missing.gguf", "none", "auto", "off")
    outcome = run_program(own_program(own, workload()), 0, 240.0)
    assert outcome.message.startswith("exit status 1: no model ")


def test_answers_that_the_context_cuts_short_are_refused(folder: Path) -> None:
    work = Workload(((5,) * 590,), (1,), 32, 1)
    job = json.loads(own_program(own_model(folder, "off"), work).standard_input)
    with pytest.raises(ValueError, match="no room for a prompt and 32 output tokens"):
        measure(job)
