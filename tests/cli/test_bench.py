"""`aquiline bench acceptance`: the figures, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from aquiline.benchmark.provenance import provenance
from aquiline.cli import bench, main
from aquiline.engine.acceptance_tally import AcceptanceTally
from aquiline.engine.trace import TreeTrace
from aquiline.request import RequestOutput, SamplingParams
from tests.fake_llm import FakeLLM


def chain_trace(num_accepted: int, num_committed: int | None = None) -> TreeTrace:
    committed = num_accepted + 1 if num_committed is None else num_committed
    return TreeTrace("r", 0, (9, 1, 2, 3), (-1, 0, 1, 2), (0,) * 4, (1, 2, 3)[:num_accepted], (5,) * committed)


def test_the_worked_example() -> None:
    tally = AcceptanceTally()
    for num_accepted in (0, 1, 1, 3):
        tally.add(chain_trace(num_accepted))
    assert (tally.num_steps, tally.reached) == (4, [3, 1, 1])
    assert tally.acceptance_length == 2.25
    assert tally.conditional_acceptance_per_position == [0.75, 1 / 3, 1.0]


def test_tokens_after_a_stop_do_not_count() -> None:
    tally = AcceptanceTally()
    tally.add(chain_trace(3, num_committed=1))
    assert tally.num_accepted_draft_tokens == 1


def test_a_root_alone_is_no_tree() -> None:
    tally = AcceptanceTally()
    tally.add(TreeTrace("r", 0, (9,), (-1,), (0,), (), (5,)))
    assert tally.num_steps == 0
    assert tally.acceptance_length == 0.0


def test_json_has_figures_and_provenance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "one"}\n{"turns": ["two", "three"]}\n')
    monkeypatch.setattr(bench, "open_llm", lambda settings: FakeLLM())
    assert main(["bench", "acceptance", "--prompts", str(prompts), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["num_prompts"] == 2
    assert {"commit", "versions", "machine", "arguments", "date"} <= result.keys()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(["--speculate", "off"], "without speculation", id="off"),
        pytest.param(["--draft", "none", "--lookup", "off"], "without speculation", id="no-draft"),
        pytest.param(["--model", "some/folder", "--lookup", "off"], "without speculation", id="model-without-draft"),
        pytest.param(["--logprobs", "2"], "this measurement reports no log-prob", id="logprobs"),
        pytest.param(["--prompt-logprobs", "0"], "this measurement reports no log-prob", id="prompt-logprobs"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "one"}\n')
    assert main(["bench", "acceptance", "--prompts", str(prompts), *options]) == 2
    assert capsys.readouterr().err.startswith(f"aquiline: error: {message}")


class TreelessLLM(FakeLLM):
    """Decodes plainly, as `--speculate auto` does for many requests."""

    def chat(
        self, conversations: Sequence[Sequence[Mapping[str, Any]]], params: SamplingParams, **callbacks: Any
    ) -> list[RequestOutput]:
        return super().chat(conversations, params, **(callbacks | {"on_trace": None}))


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["table", "json"])
def test_a_run_without_any_tree_is_refused(
    form: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "one"}\n')
    monkeypatch.setattr(bench, "open_llm", lambda settings: TreelessLLM())
    assert main(["bench", "acceptance", "--prompts", str(prompts), *form]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("aquiline: error: no draft tree was verified")


def test_provenance_names_versions_and_arguments() -> None:
    found = provenance(["bench", "acceptance"])
    assert found["arguments"] == ["bench", "acceptance"]
    assert "python" in found["versions"] and "torch" in found["versions"]
    assert found["machine"]["num_cpus"] >= 1
