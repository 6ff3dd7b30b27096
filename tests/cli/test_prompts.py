from __future__ import annotations

import json
from pathlib import Path

import pytest

from aquiline.cli.prompts import Prompt, read_prompts
from aquiline.errors import PromptError


def user(text: str) -> Prompt:
    return Prompt(text, ({"role": "user", "content": text},))


def test_the_command_line_comes_before_the_file(tmp_path: Path) -> None:
    conversation = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    lines = [{"prompt": "one"}, {"turns": ["two", "ignored"], "question_id": 81}, {"messages": conversation}]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\ufeff" + "\n\n".join(map(json.dumps, lines)))
    prompts = read_prompts(["zero"], str(path), is_raw=False)
    assert prompts == (user("zero"), user("one"), user("two"), Prompt("Why?", tuple(conversation)))


def test_line_separators_inside_a_text_do_not_end_the_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a\u2028b\x0cc"}'.replace("\x0c", "\\f"), encoding="utf-8")
    assert read_prompts([], str(path), is_raw=True) == (user("a\u2028b\x0cc"),)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        pytest.param(b"{", "Expecting property name enclosed in double quotes at column 2", id="cut-off"),
        pytest.param(b"[" * 100_000, "line 2 is not JSON", id="deep"),
        pytest.param(b'{"prompt": "\xff"}', "line 2 is not UTF-8", id="bytes"),
        pytest.param(b'"hello"', "line 2 must be an object", id="not-an-object"),
        pytest.param(b"Name a bird", 'write an object such as {"prompt": "Hello"}', id="plain-text"),
        pytest.param(b'{"text": "hello"}', "it has none of them", id="no-prompt"),
        pytest.param(b'{"prompt": "a", "turns": ["b"]}', "it has prompt and turns", id="two-prompts"),
        pytest.param(b'{"prompt": ""}', "line 2: the prompt is empty", id="empty"),
        pytest.param(b'{"prompt": 5}', "line 2: the prompt is 5", id="number"),
        pytest.param(b'{"prompt": "\\ud800"}', "not valid Unicode", id="half-character"),
        pytest.param(b'{"turns": []}', "turns must be a list", id="no-turns"),
        pytest.param(b'{"turns": "hello"}', "turns must be a list", id="turns-text"),
        pytest.param(b'{"messages": []}', "messages must be a list", id="no-messages"),
        pytest.param(b'{"messages": ["hello"]}', "'hello' is not a message", id="message-text"),
        pytest.param(b'{"messages": [{"role": "user"}]}', "a message's content is None", id="no-content"),
        pytest.param(b'{"messages": [{"role": "", "content": "a"}]}', "a message's role is empty", id="empty-role"),
        pytest.param(b'{"prompt": "a", "prompt": "b"}', "the key 'prompt' is there more than once", id="twice"),
        pytest.param(
            b'{"messages": [{"role": "user", "content": "a", "content": "b"}]}',
            "the key 'content' is there more than once",
            id="twice-inside",
        ),
        pytest.param(b'{"prompt": [' + b"1, " * 50_000 + b"1]}", "the prompt is [1, 1", id="long-list"),
        pytest.param(b'{"messages": ["' + b"x" * 50_000 + b'"]}', "is not a message", id="long-message"),
    ],
)
def test_a_bad_line_is_named(line: bytes, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b'{"prompt": "fine"}\n' + line + b"\n")
    with pytest.raises(PromptError) as caught:
        read_prompts([], str(path), is_raw=False)
    assert str(path) in str(caught.value)
    assert complaint in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 300


def test_raw_has_no_use_for_messages(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "hello"}]}')
    with pytest.raises(PromptError, match="leave out --raw"):
        read_prompts([], str(path), is_raw=True)


def test_a_file_without_prompts_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n\n")
    with pytest.raises(PromptError, match="holds no prompts"):
        read_prompts(["there is one here"], str(path), is_raw=True)


def test_nothing_to_answer_is_refused() -> None:
    with pytest.raises(PromptError, match="nothing to answer"):
        read_prompts([], None, is_raw=False)
