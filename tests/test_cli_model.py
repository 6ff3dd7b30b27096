"""The command with the real model. Most of these share one engine; loading is tested with the documents."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aquiline import LLM, EngineConfig, SamplingParams, SchedulerConfig, SpeculativeConfig, parse_speculation
from aquiline.cli import generate, main
from aquiline.model_store import cached_path
from aquiline.request import MAX_COUNT
from tests.quickstart_model import IS_ON_DISK, PULL_IT, QUICKSTART_MODEL

pytestmark = [pytest.mark.model, pytest.mark.skipif(not IS_ON_DISK, reason=PULL_IT)]

MAX_MODEL_LEN = 96
PROMPTS = ["Name three birds of prey.", "What is the capital of France?"]


@pytest.fixture(scope="module")
def llm() -> LLM:
    config = EngineConfig(
        dtype="float32",
        scheduler=SchedulerConfig(max_num_seqs=2, max_model_len=MAX_MODEL_LEN),
        speculative=SpeculativeConfig(parse_speculation("tree:3x1")),
    )
    return LLM(QUICKSTART_MODEL, config=config)


@pytest.fixture
def loaded(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> Iterator[LLM]:
    """Every command of the test uses the engine that is already loaded."""
    monkeypatch.setattr(generate, "open_llm", lambda settings: llm)
    yield llm
    assert not llm.engine.has_unfinished


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """Standard output of `aquiline generate` on both prompts, which must succeed."""
    prompts = [word for prompt in PROMPTS for word in ("--prompt", prompt)]
    assert main(["generate", *prompts, *argv]) == 0
    return capsys.readouterr().out


def test_text_json_and_python_give_the_same_answers(loaded: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    records = [json.loads(line) for line in printed(capsys, "--json", "--max-tokens", "12").splitlines()]
    answers = [record["text"] for record in records]
    text = printed(capsys, "--max-tokens", "12")
    conversations = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    outputs = loaded.chat(conversations, SamplingParams(temperature=0.0, max_tokens=12))
    assert [output.outputs[0].text for output in outputs] == answers
    assert [list(output.outputs[0].token_ids) for output in outputs] == [record["token_ids"] for record in records]
    expected = [f"== {i + 1} of 2: {prompt}\n{answers[i]}\n" for i, prompt in enumerate(PROMPTS)]
    assert text.startswith("\n".join(expected))


def test_figures_of_the_objects_agree(loaded: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    for line in printed(capsys, "--json", "--max-tokens", "12").splitlines():
        record = json.loads(line)
        assert record["num_committed_tokens"] == len(record["token_ids"]) <= 12
        assert record["acceptance_length"] == record["num_committed_tokens"] / record["num_verify_steps"] >= 1.0
        assert record["time_per_committed_token_ms"] > 0
        assert record["num_prompt_tokens"] > 3


def test_a_seed_repeats_every_sample_and_samples_differ(loaded: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("--json", "--max-tokens", "8", "--temperature", "1", "--seed", "5", "--n", "2")

    def samples() -> dict[tuple[int, int], list[int]]:
        records: list[dict[str, Any]] = [json.loads(line) for line in printed(capsys, *argv).splitlines()]
        return {(record["index"], record["sample_index"]): record["token_ids"] for record in records}

    first = samples()
    assert list(first) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert first == samples()
    assert first[0, 0] != first[0, 1]


def test_logprobs_of_greedy_tokens_have_the_first_rank(loaded: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("--json", "--max-tokens", "6", "--logprobs", "2", "--prompt-logprobs", "0")
    for line in printed(capsys, *argv).splitlines():
        record = json.loads(line)
        assert [entry["token_id"] for entry in record["logprobs"]] == record["token_ids"]
        assert all(entry["rank"] == 1 and entry["logprob"] < 0 for entry in record["logprobs"])
        assert all(entry["top"][0]["token_id"] == entry["token_id"] for entry in record["logprobs"])
        assert len(record["prompt_logprobs"]) == record["num_prompt_tokens"]
        assert record["prompt_logprobs"][0] is None


def test_the_drawn_steps_add_up_to_the_answer(loaded: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--explain", "--prompt", PROMPTS[1], "--max-tokens", "12"]) == 0
    out = capsys.readouterr().out
    committed = "".join(re.findall(r"^committed: (.*)$", out, re.MULTILINE))
    answer = out.split(f"== 1 of 1: {PROMPTS[1]}\n")[1].split("\n\n[")[0]
    assert committed.replace("·", " ").replace("⏎", "\n").rstrip("\n").startswith(answer)
    assert "✓" in out
    assert out.count("★ bonus") == out.count("committed: ")


def test_each_drawn_root_is_the_last_token_of_the_step_before(loaded: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--explain", "--prompt", PROMPTS[1], "--max-tokens", "12"]) == 0
    out = capsys.readouterr().out
    first_root, *roots = re.findall(r"^└── (.*)  root$", out, re.MULTILINE)
    *committed, _ = re.findall(r"^committed: (.*)$", out, re.MULTILINE)
    assert first_root == "⏎", "the template ends with a line break"
    assert [before.endswith(root) for before, root in zip(committed, roots, strict=True)] == [True] * len(roots)


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        pytest.param(["--prompt", "word " * MAX_MODEL_LEN], str(MAX_MODEL_LEN), id="prompt-too-long"),
        pytest.param(["--stop-token-id", "999999"], "999999", id="token-beyond-the-vocabulary"),
        pytest.param(["--logit-bias", "999999=1"], "999999", id="bias-beyond-the-vocabulary"),
    ],
)
def test_what_only_the_model_can_refuse_is_one_line(
    argv: list[str], named: str, loaded: LLM, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "--prompt", PROMPTS[0], *argv]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("aquiline: error: ")
    assert captured.err.count("\n") == 1
    assert named in captured.err


def test_counts_as_large_as_allowed_are_no_fault_of_the_engine(loaded: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    largest = str(MAX_COUNT)
    argv = ("--json", "--temperature", "1", "--top-k", largest, "--min-tokens", largest, "--max-tokens", largest)
    for line in printed(capsys, *argv).splitlines():
        record = json.loads(line)
        assert record["finish_reason"] == "length"
        assert record["num_prompt_tokens"] + record["num_committed_tokens"] == MAX_MODEL_LEN


def test_a_truncated_model_and_a_folder_that_is_no_draft_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    truncated = tmp_path / "truncated.gguf"
    with cached_path(QUICKSTART_MODEL).open("rb") as stream:
        truncated.write_bytes(stream.read(5_000_000))
    for argv in (["--model", str(truncated)], ["--draft", str(tmp_path)], ["--draft", str(tmp_path / "none")]):
        assert main(["generate", "--prompt", PROMPTS[0], *argv]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        assert str(tmp_path) in captured.err
