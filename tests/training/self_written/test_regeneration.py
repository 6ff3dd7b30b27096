"""Answers written anew: to the questions of files, turn by turn, and the same after a kill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aquiline.errors import TrainingDataError
from aquiline.llm import LLM
from aquiline.training.conversations import Conversation
from aquiline.training.dataset import DatasetFolder
from aquiline.training.examples import ExampleStore, TrainingExample
from aquiline.training.exclusion import ExcludedPrompts
from aquiline.training.importing import ImportReport, ImportSettings
from aquiline.training.self_written import regeneration
from aquiline.training.self_written.dialogues import Dialogue, DialogueWriter
from aquiline.training.self_written.regeneration import AnswerWriter, questions_of
from aquiline.training.self_written.settings import SelfWrittenSettings
from tests.training.self_written.tiny_chat import open_chat_model

WRITING = SelfWrittenSettings(seed=5, num_turns_per_round=6, max_answer_tokens=20, held_out_share=0.2)
SETTINGS = ImportSettings(max_length=400, held_out_share=0.2, skips_bad_lines=True)
USER = {"role": "user", "content": "Which bird sings at night?"}
OLD_ANSWER = {"role": "assistant", "content": "An old answer that must not be learnt."}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return open_chat_model(tmp_path_factory.mktemp("target"))


def write_lines(path: Path, lines: list[dict[str, Any] | str]) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def run(llm: LLM, path: Path, folder: Path, settings: ImportSettings = SETTINGS, kill_at: int = 10**9) -> ImportReport:
    calls: list[int] = []

    def on_tokens(num_tokens: int) -> None:
        calls.append(num_tokens)
        if len(calls) >= kill_at:
            raise KeyboardInterrupt

    excluded = ExcludedPrompts(["what is it that is measured"])
    writer = AnswerWriter(llm, settings, WRITING, excluded)
    return writer.run([path], DatasetFolder(folder, {}), lambda report: None, on_tokens)


def everything(folder: Path) -> list[TrainingExample]:
    return [*ExampleStore(folder), *ExampleStore(folder / "evaluation")]


def test_questions_are_kept_and_answers_are_not() -> None:
    system = {"role": "system", "content": "Be kind."}
    more = {"role": "user", "content": "And by day?"}
    questions = questions_of(Conversation((system, USER, OLD_ANSWER, more), "chat", "file line 1"))
    assert questions.turns == ((system, USER), (more,)) and questions.category == "chat"
    assert questions.text == "Which bird sings at night?\nAnd by day?"


def test_old_answers_are_replaced_and_turns_follow_each_other(llm: LLM, tmp_path: Path) -> None:
    conversations = [
        {"messages": [{"role": "user", "content": f"Question {n}?"}, OLD_ANSWER, USER, OLD_ANSWER]} for n in range(20)
    ]
    report = run(llm, write_lines(tmp_path / "data.jsonl", [*conversations]), tmp_path / "data")
    examples = everything(tmp_path / "data")
    assert len(examples) == report.num_stored > 10
    texts = [llm.tokenizer.decode(example.token_ids) for example in examples]
    assert not any(OLD_ANSWER["content"] in text for text in texts)
    assert {len(example.answers) for example in examples} == {1, 2}
    for example, text in zip(examples, texts, strict=True):
        # The second question stands there exactly when the first answer came to an end.
        assert (USER["content"] in text) == (len(example.answers) == 2)


def test_every_reason_to_skip_is_counted(llm: LLM, tmp_path: Path) -> None:
    lines: list[dict[str, Any] | str] = [
        {"prompt": "Who sings?"},
        "{",
        {"messages": [OLD_ANSWER]},
        {"prompt": "who sings"},
        {"prompt": "word " * 400},
        {"prompt": "What is it that is measured here?"},
        {"prompt": "Who flies?"},
    ]
    path = write_lines(tmp_path / "data.jsonl", lines)
    report = run(llm, path, tmp_path / "data")
    skipped = {
        name: report.num_skipped[name] for name in ("bad line", "no question", "duplicate", "too long", "excluded")
    }
    assert set(skipped.values()) == {1} and report.num_read == 7
    with pytest.raises(TrainingDataError, match=r"data\.jsonl line 2: it is not JSON"):
        run(llm, path, tmp_path / "strict", ImportSettings(400))


@pytest.mark.parametrize("kill_at", [1, 40, 150])
def test_a_killed_run_goes_on_as_if_nothing_had_happened(llm: LLM, tmp_path: Path, kill_at: int) -> None:
    path = write_lines(tmp_path / "data.jsonl", [{"prompt": f"Question {n}?"} for n in range(20)])
    whole = run(llm, path, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(llm, path, tmp_path / "killed", kill_at=kill_at)
    again = run(llm, path, tmp_path / "killed")
    assert again.num_stored == whole.num_stored
    assert everything(tmp_path / "killed") == everything(tmp_path / "whole")


def test_nothing_to_ask_is_an_error(llm: LLM, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "data.jsonl", [{"messages": [OLD_ANSWER]}])
    with pytest.raises(TrainingDataError, match=r"none of 1 conversations can be used .*there is no user turn"):
        run(llm, path, tmp_path / "data")


def test_no_usable_answer_is_an_error_that_says_why(llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def drop_all(writer: DialogueWriter, *_: object) -> list[Dialogue]:
        writer.seen.num_dropped.update({"empty answers": 2, "answers that are too long": 0})
        return []

    monkeypatch.setattr(regeneration, "answer_questions", drop_all)
    path = write_lines(tmp_path / "data.jsonl", [{"messages": [USER]}, {"prompt": "Who sings by day?"}])
    with pytest.raises(TrainingDataError, match=r"none of 2 conversations can be used \(2 empty answers\)"):
        run(llm, path, tmp_path / "data")
