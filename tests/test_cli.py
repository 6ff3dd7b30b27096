"""The whole command, run in this process against a fake engine."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aquiline.cli import generate, main, train_data
from aquiline.errors import InternalError, ModelFormatError
from aquiline.request import SamplingParams
from tests.fake_llm import FakeLLM

JSON_KEYS = [
    "index",
    "text",
    "token_ids",
    "finish_reason",
    "stop_reason",
    "num_prompt_tokens",
    "num_committed_tokens",
    "num_verify_steps",
    "num_draft_tokens",
    "num_accepted_draft_tokens",
    "num_lookup_tokens",
    "num_accepted_lookup_tokens",
    "acceptance_length",
    "time_per_committed_token_ms",
    "seed",
]


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> FakeLLM:
    fake = FakeLLM()
    monkeypatch.setattr(generate, "open_llm", lambda settings: fake)
    return fake


def run_json(capsys: pytest.CaptureFixture[str], *argv: str) -> list[dict[str, Any]]:
    """Run `aquiline generate --json ...`, which must succeed, and parse what it prints."""
    assert main(["generate", "--json", *argv]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return [json.loads(line) for line in captured.out.splitlines()]


def run_failing(capsys: pytest.CaptureFixture[str], *argv: str, status: int = 2) -> str:
    """Run a command that must fail with `status`, one line on standard error and nothing on standard output."""
    assert main(argv) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("aquiline: ")
    assert captured.err.count("\n") == 1
    return captured.err


def test_one_prompt_streams_its_text_and_then_the_figures(llm: FakeLLM, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--prompt", "an eagle"]) == 0
    text, figures = capsys.readouterr().out.splitlines()
    assert text == "AN EAGLE"
    assert figures.startswith("[8 committed tokens, acceptance length 2.67, 2.00 ms per committed token, ")
    assert figures.endswith(" tokens/s]")


def test_compiling_a_guide_does_not_slow_the_rate_that_is_told(
    llm: FakeLLM, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def grammar_of(params: SamplingParams) -> object:
        asked.append(params.guided)
        time.sleep(0.4)
        return object()

    llm.engine = SimpleNamespace(guidance=SimpleNamespace(grammar_of=grammar_of))  # type: ignore[attr-defined]
    assert main(["generate", "--prompt", "an eagle", "--guided-choice", "AN EAGLE"]) == 0
    found = re.fullmatch(
        r"\[.* (.+) tokens/s; compiling the guide took (.+) s\]", capsys.readouterr().out.splitlines()[1]
    )
    assert found is not None and len(asked) == 1
    # Eight tokens, which would be 20 a second.
    assert float(found[2]) >= 0.4 and float(found[1]) > 100.0


def test_text_is_written_before_the_answer_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = FakeLLM(failure=ModelFormatError("broken"))
    monkeypatch.setattr(generate, "open_llm", lambda settings: failing)
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(["generate", "--prompt", "an eagle"]) == 2
    assert stream.getvalue() == "AN "


def test_several_prompts_answer_in_order_under_headers(llm: FakeLLM, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--prompt", "first and long", "--prompt", "b", "--prompt", "third"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert lines[:-1] == [
        "== 1 of 3: first and long",
        "FIRST AND LONG",
        "== 2 of 3: b",
        "B",
        "== 3 of 3: third",
        "THIRD",
    ]


def test_json_has_exactly_the_documented_keys(llm: FakeLLM, capsys: pytest.CaptureFixture[str]) -> None:
    (record,) = run_json(capsys, "--prompt", "an eagle", "--max-tokens", "4", "--seed", "11")
    assert list(record) == JSON_KEYS
    assert record["text"] == "AN E"
    assert record["token_ids"] == [ord(letter) for letter in "AN E"]
    assert record["finish_reason"] == "length"
    assert (record["num_prompt_tokens"], record["num_committed_tokens"], record["num_verify_steps"]) == (8, 4, 2)
    assert record["acceptance_length"] == 2.0
    assert record["time_per_committed_token_ms"] == pytest.approx(2.0)
    assert record["seed"] == 11


def test_json_is_in_prompt_order(llm: FakeLLM, capsys: pytest.CaptureFixture[str]) -> None:
    records = run_json(capsys, "--prompt", "first and long", "--prompt", "b", "--prompt", "third")
    assert [(record["index"], record["text"]) for record in records] == [(0, "FIRST AND LONG"), (1, "B"), (2, "THIRD")]


def test_json_has_one_object_per_sample(llm: FakeLLM, capsys: pytest.CaptureFixture[str]) -> None:
    records = run_json(capsys, "--prompt", "a", "--prompt", "b", "--n", "2", "--temperature", "1")
    assert [(record["index"], record["sample_index"]) for record in records] == [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("temperature", "num_lines"), [("0", 1), ("1", 0)])
def test_equal_answers_are_announced(
    temperature: str, num_lines: int, llm: FakeLLM, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "--prompt", "an eagle", "--n", "2", "--temperature", temperature]) == 0
    error = capsys.readouterr().err
    assert error.count("\n") == error.count("all answers to a prompt are the same") == num_lines


def test_json_logprobs_are_null_where_a_token_is_impossible(llm: FakeLLM, capsys: pytest.CaptureFixture[str]) -> None:
    (record,) = run_json(capsys, "--prompt", "a", "--logprobs", "2", "--prompt-logprobs", "0")
    top = [{"token_id": 65, "logprob": -0.5}, {"token_id": 0, "logprob": None}]
    assert record["logprobs"] == [{"token_id": 65, "logprob": -0.5, "rank": 1, "top": top}]
    assert record["prompt_logprobs"] == [None]


def test_prompts_get_the_chat_template_unless_raw(llm: FakeLLM, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--prompt", "hello"]) == 0
    assert main(["generate", "--prompt", "hello", "--raw"]) == 0
    assert [call[:2] for call in llm.calls] == [
        ("chat", [[{"role": "user", "content": "hello"}]]),
        ("generate", ["hello"]),
    ]


def test_the_command_line_is_greedy_by_default(llm: FakeLLM) -> None:
    assert main(["generate", "--prompt", "hello"]) == 0
    assert llm.calls[0][2] == SamplingParams(temperature=0.0)


def test_prompts_come_from_standard_input(
    llm: FakeLLM, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"prompt": "x"}\n{"turns": ["y", "z"]}\n')))
    assert [record["text"] for record in run_json(capsys, "--prompts", "-")] == ["X", "Y"]


def test_explain_draws_every_step_and_still_answers(llm: FakeLLM, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--explain", "--prompt", "eagle"]) == 0
    out = capsys.readouterr().out
    assert "request 0, step 0: 1 of 2 draft tokens accepted, 2 committed" in out
    assert "request 0, step 1: " in out
    assert out.splitlines()[-4:-2] == ["== 1 of 1: eagle", "EAGLE"]


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        pytest.param(["--temperature", "nan"], "temperature is nan", id="temperature-nan"),
        pytest.param(["--temperature", "inf"], "temperature is inf", id="temperature-inf"),
        pytest.param(["--temperature", "-1"], "temperature is -1.0", id="temperature-negative"),
        pytest.param(["--temperature", "warm"], "'warm' is not a number", id="temperature-word"),
        pytest.param(["--top-p", "0"], "top_p is 0.0", id="top-p-zero"),
        pytest.param(["--top-k", "-1"], "top_k is -1", id="top-k-negative"),
        pytest.param(["--max-tokens", "0"], "max_tokens is 0", id="max-tokens-zero"),
        pytest.param(["--max-tokens", "1.5"], "'1.5' is neither", id="max-tokens-fraction"),
        pytest.param(["--max-tokens", "4", "--min-tokens", "5"], "min_tokens is 5", id="min-above-max"),
        pytest.param(["--seed", str(2**63)], "seed is 9223372036854775808", id="seed-too-large"),
        pytest.param(["--n", "0"], "n is 0", id="n-zero"),
        pytest.param(["--stop", ""], "stop is ('',)", id="stop-empty"),
        pytest.param(["--logit-bias", "five=1"], "'five=1' is not ID=VALUE", id="bias-word"),
        pytest.param(["--logit-bias", "5=nan"], "logit_bias[5] is nan", id="bias-nan"),
        pytest.param(["--logit-bias", "5=1", "--logit-bias", "5=2"], "token id 5 more than once", id="bias-twice"),
        pytest.param(["--batch-size", "0"], "max_num_seqs is 0", id="batch-size-zero"),
        pytest.param(["--kv-cache-gb", "nan"], "kv_cache_gb is nan", id="cache-nan"),
        pytest.param(["--kv-cache-gb", "1", "--num-blocks", "9"], "only one of them", id="cache-twice"),
        pytest.param(["--speculate", "tree:0"], "--speculate is 'tree:0'", id="speculate-zero"),
        pytest.param(["--acceptance", "hope"], "acceptance is 'hope'", id="acceptance-unknown"),
        pytest.param(["--dtype", "int3"], "dtype is 'int3'", id="dtype-unknown"),
        pytest.param(["--threads", "0"], "--threads is 0", id="threads-zero"),
        pytest.param(["--threads", "1025"], "from 1 to 1024", id="threads-too-many"),
        pytest.param(["--kv-cache-gb", "1e308"], "kv_cache_gb is 1e+308", id="cache-too-large"),
        pytest.param(["--stop", "\udcff"], "stop is ", id="stop-bytes"),
        pytest.param(["--top-k", "1", "--top-k", "2"], "--top-k is given twice", id="option-twice"),
        pytest.param(["--model", "a", "--model=b"], "--model is given twice", id="model-twice"),
        pytest.param(["--prompts", "-", "--prompts", "x"], "--prompts is given twice", id="prompt-files-twice"),
        pytest.param(["--explain", "--json"], "only one of them", id="explain-json"),
        pytest.param(["--logprobs", "2"], "add --json", id="logprobs-as-text"),
        pytest.param(["--prompt", ""], "the prompt is empty", id="prompt-empty"),
        pytest.param(["--prompt"], "expected one argument", id="prompt-missing"),
        pytest.param(["--no-such-option"], "--no-such-option; see aquiline generate --help", id="unknown-option"),
        pytest.param(["--temp", "1"], "--temp", id="abbreviated-option"),
        pytest.param(["--prompts", "no-such-file.jsonl"], "no-such-file.jsonl cannot be read", id="file-missing"),
        pytest.param(["--prompts", "."], ". cannot be read", id="file-is-folder"),
        pytest.param(["stray\nword"], "unrecognized arguments: stray\\nword", id="stray-line-break"),
        pytest.param(["Hello"], "a text to answer is given as --prompt TEXT", id="prompt-without-option"),
        pytest.param(["--max-token", "3"], "perhaps --max-tokens is meant", id="misspelt-option"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    argv: list[str], named: str, llm: FakeLLM, capsys: pytest.CaptureFixture[str]
) -> None:
    message = run_failing(capsys, "generate", "--prompt", "hello", *argv)
    assert message.startswith("aquiline: error: ")
    assert named in message
    assert llm.calls == []


@pytest.mark.parametrize("argv", [(), ("fly",), ("generate",), ("pull",)], ids=["nothing", "unknown", "bare", "pull"])
def test_an_incomplete_command_is_one_line_and_status_2(
    argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_failing(capsys, *argv).startswith("aquiline: error: ")


@pytest.mark.parametrize(
    ("failure", "status", "message"),
    [
        pytest.param(ModelFormatError("tensor a\nis missing"), 2, "error: tensor a\\nis missing\n", id="user-error"),
        pytest.param(
            InternalError("states differ"), 1, "internal error: InternalError: states differ; ", id="internal"
        ),
        pytest.param(ZeroDivisionError("oops"), 1, "internal error: ZeroDivisionError: oops; ", id="bug"),
    ],
)
def test_a_failure_of_the_engine_is_one_line(
    failure: Exception,
    status: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("AQUILINE_DEBUG", raising=False)
    monkeypatch.setattr(generate, "open_llm", lambda settings: FakeLLM(failure))
    assert run_failing(capsys, "generate", "--json", "--prompt", "eagle", status=status)[10:].startswith(message)


def test_debugging_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("AQUILINE_DEBUG", "1")
    monkeypatch.setattr(generate, "open_llm", lambda settings: FakeLLM(ZeroDivisionError("oops")))
    assert main(["generate", "--prompt", "eagle"]) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_an_interrupt_of_a_run_that_can_go_on_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(train_data, "check_arguments", interrupted)
    assert main(["train-data", "--output", "data"]) == 130
    assert "the same command goes on" in capsys.readouterr().err


def test_an_interrupt_is_quiet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(generate, "open_llm", lambda settings: FakeLLM(KeyboardInterrupt()))
    assert main(["generate", "--prompt", "eagle"]) == 130
    assert capsys.readouterr().err == ""


def test_help_and_version_need_no_torch() -> None:
    program = (
        "import sys\nfrom aquiline.cli import main\ntry:\n    main(sys.argv[1:])\nexcept SystemExit as leaving:\n"
        "    assert leaving.code == 0\nassert 'torch' not in sys.modules"
    )
    for argv, expected in ((["generate", "--help"], "--speculate"), (["--version"], "aquiline ")):
        result = subprocess.run(
            [sys.executable, "-c", program, *argv], capture_output=True, text=True, cwd=Path(__file__).parents[1]
        )
        assert (result.returncode, result.stderr) == (0, "")
        assert expected in result.stdout


def test_the_module_is_the_command() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "aquiline", "generate"], capture_output=True, text=True, cwd=Path(__file__).parents[1]
    )
    assert result.returncode == 2
    assert result.stderr.startswith("aquiline: error: there is nothing to answer")
