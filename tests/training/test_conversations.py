"""Conversations in JSONL files: both forms, and every way in which a line can be bad."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aquiline.errors import TrainingDataError
from aquiline.training.conversations import BadLine, Conversation, read_conversations

MESSAGES = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]


def lines_of(folder: Path, *lines: bytes | str | dict[str, Any]) -> Path:
    path = folder / "data.jsonl"
    encoded = [
        line if isinstance(line, bytes) else line.encode() if isinstance(line, str) else json.dumps(line).encode()
        for line in lines
    ]
    path.write_bytes(b"\n".join(encoded))
    return path


def test_both_forms_say_the_same(tmp_path: Path) -> None:
    speeches = [{"from": "human", "value": "Hi", "id": 3}, {"from": "gpt", "value": "Hello!"}]
    path = lines_of(
        tmp_path,
        b"\xef\xbb\xbf" + json.dumps({"messages": MESSAGES, "category": "chat"}).encode() + b"\r",
        "",
        {"conversations": [{"from": "system", "value": "Be kind."}, *speeches], "source": "x"},
        {"prompt": "Hi"},
    )
    read = list(read_conversations([path]))
    assert read == [
        Conversation(tuple(MESSAGES), "chat", f"{path} line 1"),
        Conversation(({"role": "system", "content": "Be kind."}, *MESSAGES), "", f"{path} line 3"),
        Conversation((MESSAGES[0],), "", f"{path} line 4"),
    ]


BAD_LINES: dict[str, tuple[bytes | str | dict[str, Any], str]] = {
    "cut off": ('{"messages": [', "not JSON: Expecting value at column 15"),
    "nested without end": ("[" * 100_000, "not JSON"),
    "Latin-1": ('{"prompt": "\xe9"}'.encode("latin-1"), "not UTF-8"),
    "a list": ("[1]", "exactly one of"),
    "no form": ({"text": "Hi"}, "it has none of them"),
    "two forms": ({"messages": MESSAGES, "prompt": "Hi"}, "it has messages and prompt"),
    "no message": ({"messages": []}, "messages must be a list of at least one object"),
    "a text as list": ({"conversations": "Hi"}, "conversations must be a list"),
    "a text as message": ({"messages": ["Hi"]}, r"messages\[0\] is 'Hi'"),
    "no role": (
        {"messages": [{"content": "Hi"}]},
        r"messages\[0\] has the role None; roles are system, user, assistant",
    ),
    "a role of tools": (
        {"messages": [*MESSAGES, {"role": "tool", "content": "Hi"}]},
        r"messages\[2\] has the role 'tool'",
    ),
    "an unknown speaker": ({"conversations": [{"from": "parrot", "value": "Hi"}]}, "from 'parrot'; speakers are"),
    "a list as speaker": ({"conversations": [{"from": ["gpt"], "value": "Hi"}]}, "speakers are"),
    "no content": ({"messages": [{"role": "user", "content": None}]}, r"the content of messages\[0\] is None"),
    "a number as value": ({"conversations": [{"from": "gpt", "value": 3}]}, r"the value of conversations\[0\] is 3"),
    "a number as prompt": ({"prompt": 3}, "prompt is 3"),
    "half a character": ('{"prompt": "\\ud800"}', "half characters"),
    "a number as category": ({"prompt": "Hi", "category": 3}, "category is 3"),
}


@pytest.mark.parametrize("name", list(BAD_LINES))
def test_bad_lines_are_named_and_the_others_read(tmp_path: Path, name: str) -> None:
    line, message = BAD_LINES[name]
    path = lines_of(tmp_path, {"prompt": "one"}, line, {"prompt": "three"})
    first, bad, third = read_conversations([path])
    assert isinstance(first, Conversation) and isinstance(third, Conversation)
    assert isinstance(bad, BadLine) and bad.place == f"{path} line 2"
    with pytest.raises(TrainingDataError, match=message):
        raise TrainingDataError(bad.reason)


@pytest.mark.parametrize("content", [b"", b"\n \n\n"], ids=["nothing", "empty lines"])
def test_empty_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_bytes(content)
    with pytest.raises(TrainingDataError, match=r"empty\.jsonl is empty"):
        list(read_conversations([path]))


@pytest.mark.parametrize("name", ["missing.jsonl", "."], ids=["missing", "a folder"])
def test_files_that_cannot_be_read_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(TrainingDataError, match="cannot be read"):
        list(read_conversations([tmp_path / name]))
